"""Writes whose copy several threads share."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

import kit
import tensorbus

SHAPE = (3, 700, 1001, 3)  # 6.3 MB, of odd rows


def helpers() -> int:
    """Copying threads of this process."""
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                names.append(file.read().strip())
        except OSError:
            pass  # it has just ended
    return names.count("tensorbus-copy")


def test_every_element_arrives_and_the_threads_end(bus):
    random = np.random.default_rng(7)
    like = random.integers(0, 256, SHAPE, dtype=np.uint8)
    with tensorbus.Pool.register(like, copy_threads=3, bus=bus) as pool:
        assert helpers() == 2
        for source in (like, like[::-1], np.asfortranarray(like), like ^ 255):
            pool.write(source)
            assert (pool.read().numpy() == source).all()
    assert helpers() == 0


def test_one_thread_is_the_default(bus):
    with tensorbus.Pool.register(np.empty(SHAPE, np.uint8), bus=bus):
        assert helpers() == 0


def test_writers_in_several_threads(bus):
    like = np.empty(SHAPE, np.uint8)
    wrong = []
    with tensorbus.Pool.register(like, slots=8, copy_threads=2, bus=bus) as pool:

        def write(seed: int) -> None:
            for step in range(10):
                value = (seed + 3 * step) % 256
                handle = pool.write(np.full(SHAPE, value, np.uint8))
                try:
                    frame = tensorbus.open_frame(handle, bus=bus)
                except tensorbus.StaleError:
                    continue  # the other writers were faster
                if not (frame.numpy() == value).all():
                    wrong.append(value)

        threads = [threading.Thread(target=write, args=(seed,)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize("count", [0, -1, 33, 2**40])
def test_counts_that_make_no_sense(bus, count):
    with pytest.raises(tensorbus.InvalidError, match=f"copy_threads is {count}: 1 to 32"):
        tensorbus.Pool.register(np.empty(3), copy_threads=count, bus=bus)


def test_the_copy_begins_while_its_handle_is_sent(bus):
    source = np.full(SHAPE, 3, np.uint8)

    def send(handle: tensorbus.Handle) -> None:
        time.sleep(0.2)  # far longer than the helper needs
        source[:] = 4  # which nobody should do: it shows what was copied before

    with tensorbus.Pool.register(source, copy_threads=2, bus=bus) as pool:
        pool.write(source, promised=send)
        assert (pool.read().numpy() == 3).all()
    with tensorbus.Pool.register(source, bus=bus) as pool:  # nobody could begin
        source[:] = 3
        pool.write(source, promised=send)
        assert (pool.read().numpy() == 4).all()


def interrupted(call, action):
    """A script in which a signal's handler acts within a call, half of whose work is done."""
    # Another thread asks for the GIL while the call reads a number, and so has it for certain when
    # the call lets go of it. Its signal is there when the call has the GIL back: the handler runs
    # then.
    return f"""
        import functools

        def act(*_):
            if between:
                {action}

        def interrupt():
            go.acquire()
            os.kill(os.getpid(), signal.SIGUSR1)

        def promised(_):
            global between
            between = False

        class Slow:  # takes long without a look at who else wants to run
            __float__ = functools.partial(max, [1.0] * 3_000_000)
            __index__ = functools.partial(max, [2] * 3_000_000)

        signal.signal(signal.SIGUSR1, act)
        source = np.full((5, 1 << 20), 3, np.uint8)
        bus = tb.open_bus("one")
        pool = tb.Pool.register(source, copy_threads=2, bus=bus)
        patience = Slow()
        for _ in range(20):  # other things on the machine may be in between
            go = threading.Lock()
            go.acquire()
            thread = threading.Thread(target=interrupt)
            thread.start()
            between = True
            go.release()
            result = None
            try:
                result = {call}
            except (KeyError, tb.ClosedError, tb.FreedError):
                break
            if pool.freed:
                break
            assert not bus.closed
            between, result = False, None
            thread.join()
        thread.join()
        """


PERTURB = {"MALLOC_PERTURB_": "165"}  # what was freed is no pool any more


@pytest.mark.parametrize("call", [
    "pool.write(source, patience, promised=promised)",
    "pool.write(source, patience)",
    "pool.loan(patience)",
    "tb.Pool.register(b'1', slots=patience, bus=bus)",
])
@pytest.mark.parametrize("end", ["raise KeyError", "return"])
def test_a_signals_handler_closes_the_bus_under_a_call(directory, call, end):
    kit.run(interrupted(call, f"bus.close(); {end}"), "assert bus.closed", env=PERTURB)


@pytest.mark.parametrize("call", ["pool.write(source, patience, promised=promised)",
                                  "pool.loan(patience)"])
def test_a_signals_handler_frees_the_pool_under_a_call(directory, call):
    kit.run(interrupted(call, "pool.free()"), """
        assert pool.freed
        if isinstance(result, tb.Loan):  # its slot is there as long as it is
            result.numpy()[:] = 5
            try:
                result.publish()
                raise SystemExit("published into a pool that was freed")
            except tb.FreedError:
                pass
        """, env=PERTURB)
