"""Frames whose handles are given out before they are written."""

from __future__ import annotations

import signal

import numpy as np
import pytest

import kit
import tensorbus as tb

OPENER = """
def opened(handle):
    try:
        with tb.open_frame(bytes.fromhex(handle)) as frame:
            return int(frame.numpy().min()), int(frame.numpy().max())
    except tb.Error as error:
        return type(error).__name__
say(*opened(hear()))        # attaches
handle = hear()
say("opening")
say(opened(handle))
"""


@pytest.fixture
def pool(bus: tb.Bus) -> tb.Pool:
    return tb.Pool.register(tb.Spec(4096, "u1"), name="front", slots=3)


def attach(opener: kit.Script, pool: tb.Pool) -> None:
    opener.tell(bytes(pool.write(np.full(4096, 1, np.uint8))).hex())
    assert opener.hear() == "1 1"


def test_who_opens_a_promised_frame_waits_for_it(pool: tb.Pool) -> None:
    with kit.Script(OPENER) as opener:
        attach(opener, pool)
        loan = pool.loan()
        handle = loan.promise()
        assert loan.promise() == handle and loan.handle is None and handle.sequence == 2
        opener.tell(bytes(handle).hex())
        assert opener.hear() == "opening"
        with loan as array:
            array[:2048] = 7
            array[2048:] = 7
        assert opener.hear() == "(7, 7)"
        assert loan.handle == handle == pool.last
        opener.end()


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        ("cancel", "StaleError"),
        ("raise", "StaleError"),
        ("drop", "StaleError"),
        ("free", "FreedError"),
    ],
)
def test_and_is_told_when_it_never_comes(pool: tb.Pool, ending: str, error: str) -> None:
    with kit.Script(OPENER) as opener:
        attach(opener, pool)
        loan = pool.loan()
        opener.tell(bytes(loan.promise()).hex())
        assert opener.hear() == "opening"
        if ending == "cancel":
            loan.cancel()
        elif ending == "raise":
            with pytest.raises(KeyError), loan:
                raise KeyError
        elif ending == "drop":
            del loan
        else:
            pool.free()
        assert opener.hear() == error
        opener.end()


def test_a_write_tells_its_handle_before_it_copies(pool: tb.Pool) -> None:
    with kit.Script(OPENER) as opener:
        attach(opener, pool)
        told = []

        def tell(handle: tb.Handle) -> None:
            told.append(handle)
            opener.tell(bytes(handle).hex())
            assert opener.hear() == "opening"
            assert pool.stats().frames == 1

        handle = pool.write(np.full(4096, 9, np.uint8), promised=tell)
        assert told == [handle] == [pool.last] and opener.hear() == "(9, 9)"
        opener.end()


def test_pools_of_varying_shapes_promise_the_shape_of_what_is_written(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec((2, 2), "i4"), name="any", capacity_bytes=1000)
    told: list[tb.Handle] = []
    handle = pool.write(np.arange(9, dtype=np.int32).reshape(3, 3).T, promised=told.append)
    assert told == [handle] and handle.nbytes == 36
    assert pool.read().numpy().tolist() == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_what_telling_raises_gives_the_frame_up(pool: tb.Pool) -> None:
    told: list[tb.Handle] = []

    def refuse(handle: tb.Handle) -> None:
        told.append(handle)
        raise KeyError("no")

    data = np.full(4096, 3, np.uint8)
    for _ in range(5):  # no slot is lost
        with pytest.raises(KeyError):
            pool.write(data, 0, promised=refuse)
    with pytest.raises(tb.StaleError, match="was never finished: its producer gave it up"):
        tb.open_frame(told[-1])
    assert pool.stats().frames == 0 and pool.last is None
    assert pool.write(data, 0).sequence == 6


def test_a_signal_while_it_is_told_gives_the_frame_up(pool: tb.Pool) -> None:
    with pytest.raises(KeyboardInterrupt):
        pool.write(np.zeros(4096, np.uint8),
                   promised=lambda handle: signal.raise_signal(signal.SIGINT))  # fmt: skip
    assert pool.stats().frames == 0 and pool.write(bytes(4096), 0).sequence == 2


def test_waiting_for_oneself_is_an_error(pool: tb.Pool) -> None:
    with pytest.raises(tb.DeadlockError, match="promised by this thread"):
        pool.write(bytes(4096), promised=tb.open_frame)


def test_the_bus_may_be_closed_while_it_is_told(pool: tb.Pool) -> None:
    with pytest.raises(tb.ClosedError):
        pool.write(bytes(4096), promised=lambda handle: pool.bus.close())


def test_wrong_uses_tell_nothing(pool: tb.Pool) -> None:
    told: list[tb.Handle] = []
    with pytest.raises(tb.MismatchError):
        pool.write(bytes(3), promised=told.append)
    with pytest.raises(TypeError, match="promised must be callable"):
        pool.write(bytes(4096), promised=3)
    with pytest.raises(tb.UnsupportedError, match="needs no promise"):
        pool.write(bytes(4096), promised=told.append, stream=1)
    loans = [pool.loan() for _ in range(3)]
    with pytest.raises(tb.DeadlockError):
        pool.write(bytes(4096), promised=told.append)
    for loan in loans:
        loan.cancel()
    with pytest.raises(tb.InvalidError, match="given back"):
        loans[0].promise()
    pool.free()
    with pytest.raises(tb.FreedError):
        pool.write(bytes(4096), promised=told.append)
    assert told == []
