"""Readers: opening, order, timeouts, ends, other processes."""

import signal
import threading
import time

import numpy as np
import pytest

import kit
import tensorbus as tb

OWNER = """
tb.open_bus("camera")
pool = tb.Pool.register(tb.Spec(1000, "i8"), name="front", slots=4, policy="every")
"""


@pytest.mark.parametrize(
    ("path", "options", "error", "text"),
    [
        ("nobody/front", {"timeout": 0}, tb.NotFoundError, "nobody"),
        ("camera/back", {"timeout": 0.01}, tb.NotFoundError, "back"),
        ("camera", {"timeout": 0}, tb.InvalidError, "camera"),
        ("camera/front", {"max_leases": 65}, tb.InvalidError, "1 to 64"),
        ("camera/front", {"max_leases": 0}, tb.InvalidError, "1 to 64"),
        ("camera/front", {"start": "oldest"}, tb.InvalidError, "newest"),
        ("camera/front", {"spin_us": -1}, tb.InvalidError, "spin_us"),
        ("camera/front", {"timeout": -1}, ValueError, "0 or more"),
        ("camera/front", {"timeout": float("nan")}, ValueError, "0 or more"),
        ("camera/front", {"timeout": "1"}, TypeError, "seconds"),
        ("a\0b/c", {"timeout": 0}, ValueError, "null"),
        (3, {}, TypeError, "Handle"),
        ("camera/front", {"bus": "x"}, TypeError, "Bus"),
    ],
)
def test_what_cannot_be_opened(
    bus: tb.Bus, path: object, options: dict[str, object], error: type[Exception], text: str
) -> None:
    tb.Pool.register(tb.Spec(4, "u1"), name="front")
    with pytest.raises(error, match=text):
        tb.Reader(path, **options)


def test_order_and_newest(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(1, "u1"), name="front", slots=4)
    handles = [pool.write(bytes([value])) for value in range(3)]
    reader = tb.Reader("camera/front")
    assert [reader.next(0).sequence, reader.pool] == [3, "camera/front"]
    late = tb.Reader("camera/front", start="next")
    handles += [pool.write(bytes([value])) for value in range(3, 6)]
    assert [late.next(0).sequence for _ in range(2)] == [4, 5]
    assert reader.newest(0).sequence == 6
    for call in (reader.next, reader.newest):
        with pytest.raises(tb.AgainError, match="no new frame"):
            call(0)
    assert reader.frame(handles[4]).sequence == 5
    assert reader.frame(bytes(handles[5])).numpy()[0] == 5
    with pytest.raises(tb.StaleError, match="frame 1 .*overwritten"):
        reader.frame(handles[0])
    stats = reader.stats()
    assert (stats.frames, stats.missed, stats.stale, stats.held) == (4, 2, 1, 0)
    by_handle = tb.Reader(handles[5])
    assert by_handle.next(0).sequence == 6 and by_handle.pool == handles[5]


def test_a_timeout_is_a_timeout(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(1, "u1"), name="front")
    reader = tb.Reader("camera/front")
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        reader.next(timeout=0.12)
    assert 0.12 <= time.monotonic() - began < 2
    pool.write(b"x")
    for timeout in (1e-12, 1e300, float("inf"), None, 0):
        frame = reader.next(timeout)
        pool.write(b"x")
    assert frame.sequence == 5


def test_a_producer_comes_and_goes(directory: object) -> None:
    tb.open_bus("reader")
    with kit.Script(OWNER, """
        say("ready")
        hear()
        for value in range(20):
            pool.write(np.full(1000, value), 10)
        """) as script:
        script.hear()
        reader = tb.Reader("camera/front")  # wants the newest: it may miss some
        script.tell()
        values = [int(frame.numpy()[999]) for frame in reader]
        script.end()
    assert values[-1] == 19 and values == sorted(values)


def test_every_reader_gets_every_frame(directory: object) -> None:
    tb.open_bus("reader")
    with kit.Script("""
        tb.open_bus("camera")
        pool = tb.Pool.register(tb.Spec(1000, "i8"), name="front", slots=3, policy="every",
                                wait_readers=1)
        for value in range(50):
            with pool.loan(10) as array:
                array[:] = value
        """) as script:
        reader = tb.Reader("camera/front", every=True)
        values = [int(frame.numpy()[999]) for frame in reader]
        script.end()
    assert values == list(range(50)) and reader.stats().missed == 0
    with pytest.raises(tb.ClosedError, match="goodbye"):
        reader.next()


def test_the_death_of_an_owner_is_an_error(directory: object) -> None:
    tb.open_bus("reader")
    with kit.Script(OWNER, "pool.write(np.full(1000, 7)); say('ready'); hear()") as script:
        script.hear()
        reader = tb.Reader("camera/front")
        loop = iter(reader)
        view = next(loop).numpy()
        script.kill()
        began = time.monotonic()
        with pytest.raises(tb.OwnerDiedError, match="camera"):
            next(loop)
        assert time.monotonic() - began < 1
        assert (view == 7).all()
        assert isinstance(tb.OwnerDiedError(), ConnectionError)


def test_a_consumer_that_dies_holds_nothing(directory: object) -> None:
    tb.open_bus("camera")
    pool = tb.Pool.register(tb.Spec(8, "u1"), name="front", slots=2)
    for _ in range(3):
        pool.write(bytes(8))
        with kit.Script("""
            frame = tb.Reader("camera/front").next(10)
            say("held")
            hear()
            """) as script:
            script.hear()
            pool.write(bytes(8), 0)
            with pytest.raises(tb.AgainError, match="holds 1"):
                pool.write(bytes(8), 0)
            script.kill()
            pool.write(bytes(8), 1)


def test_two_threads_in_one_loop(bus: tb.Bus) -> None:
    """Both wait before either has its frame: the loop's turn is the later one's."""
    pool = tb.Pool.register(tb.Spec(1, "u1"), name="front", slots=4)
    reader = tb.Reader("camera/front", every=True)
    loop = iter(reader)
    frames: list[tb.Frame] = []
    threads = [threading.Thread(target=lambda: frames.append(next(loop))) for _ in range(2)]
    for thread in threads:
        thread.start()
    kit.await_true(lambda: reader.stats().waits == 2, "two threads that wait")
    for value in range(2):
        pool.write(bytes([value]))
        kit.await_true(lambda: len(frames) > value, "a frame")
    for thread in threads:
        thread.join()
    later = frames.pop()
    frames.clear()  # the former one's end is not the end of the later one's turn
    pool.write(b"x")
    assert next(loop).sequence == 3
    assert later.released


def test_freed_by_a_reader(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(8, "u1"), name="front")
    pool.write(bytes(8))
    reader = tb.Reader("camera/front")
    reader.free_pool()
    with pytest.raises(tb.FreedError, match="camera/front"):
        for _ in reader:
            raise AssertionError
    with pytest.raises(tb.FreedError):
        reader.free_pool()
    with pytest.raises(tb.FreedError):
        pool.write(bytes(8))
    assert pool.free() is False and pool.freed
    with pytest.raises(tb.NotFoundError):
        tb.Reader("camera/front", timeout=0)


def test_waiting_for_a_pool_that_comes(bus: tb.Bus) -> None:
    with kit.Script("""
        hear()
        tb.open_bus("late")
        pool = tb.Pool.register(tb.Spec(1, "u1"), name="front")
        pool.write(b"x")
        hear()
        """) as script:
        timer = kit.later(0.05, script.tell)
        with tb.Reader("late/front", timeout=None) as reader:
            assert reader.next(10).sequence == 1
        timer.join()
        script.tell()
        script.end()


def test_torn_frames_are_never_seen(directory: object) -> None:
    tb.open_bus("reader")
    with kit.Script("""
        tb.open_bus("camera")
        pool = tb.Pool.register(tb.Spec(100000, "i8"), name="front", slots=3)
        say("ready")
        value = 0
        while True:
            value += 1
            try:
                with pool.loan(0) as array:
                    array[:] = value
            except tb.AgainError:
                pass
        """) as script:
        script.hear()
        for turn, frame in enumerate(tb.Reader("camera/front")):
            first = frame.numpy()
            assert first[0] == first[-1] and (first == first[0]).all()
            if turn == 200:
                break
        script.process.send_signal(signal.SIGKILL)


def test_objects_that_cannot_be_made_or_sent(bus: tb.Bus) -> None:
    import pickle

    pool = tb.Pool.register(tb.Spec(1, "u1"), name="front")
    pool.write(b"x")
    reader = tb.Reader("camera/front")
    for thing in (bus, pool, reader, reader.next(0), pool.loan(0), iter(reader)):
        with pytest.raises(TypeError):
            pickle.dumps(thing)
        with pytest.raises(TypeError):
            type(thing)() if not isinstance(thing, tb.Reader) else tb.Reader()
        with pytest.raises(TypeError):
            type("Sub", (type(thing),), {})
        with pytest.raises((AttributeError, TypeError)):
            type(thing).extra = 1


def test_numpy_of_a_strided_frame(bus: tb.Bus) -> None:
    """Owners in C may give a frame strides; nothing here makes them, so only packed ones appear."""
    pool = tb.Pool.register(tb.Spec((3, 4), "i4"), name="front")
    pool.write(np.arange(12, dtype="i4").reshape(4, 3).T)
    view = pool.read().numpy()
    assert view.flags.c_contiguous and view.tolist() == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
