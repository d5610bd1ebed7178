"""Waiting: without the GIL, ended by Ctrl-C, by closing, by other threads."""

import threading
import time

import pytest

import kit
import tensorbus as tb

WAITS = {
    "reader": "reader.next()",
    "newest": "reader.newest()",
    "loop": "next(iter(reader))",
    "open": "tb.Reader('nobody/front', timeout=None)",
    "pool": "tb.Reader('camera/absent', timeout=None)",
    "loan": "pool.loan()",
    "write": "pool.write(bytes(4))",
    "acked": "acked.wait_acked()",
}

SCENE = """
bus = tb.open_bus("camera")
pool = tb.Pool.register(tb.Spec(4, "u1"), name="front", policy="every", wait_readers=2)
acked = tb.Pool.register(tb.Spec(4, "u1"), name="acked")
reader = tb.Reader("camera/front")
acker = tb.Reader("camera/acked", ack=True)
acked.write(bytes(4))
"""


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_a_wait_at_once(name: str, directory: object) -> None:
    best = 1.0
    for _ in range(3):
        with kit.Script(SCENE, f"""
        say("waiting")
        try:
            {WAITS[name]}
        except KeyboardInterrupt:
            say(time.monotonic())
            acked.write(bytes(4), 0)
            say("works")
        """) as script:
            script.hear()
            time.sleep(0.03)  # long enough to be asleep, most times; the test holds either way
            began = time.monotonic()
            script.interrupt()
            best = min(best, float(script.hear()) - began)
            assert script.hear() == "works"
            script.end()
    assert best < 0.1


def test_ctrl_c_without_a_handler_ends_the_program(directory: object) -> None:
    with kit.Script(SCENE, "say('waiting')\nreader.next()") as script:
        script.hear()
        script.interrupt()
        _, err = script.end(-2)
        assert "KeyboardInterrupt" in err


def test_a_signal_whose_handler_returns_does_not_end_a_wait(directory: object) -> None:
    with kit.Script(SCENE, """
        seen = []
        signal.signal(signal.SIGUSR1, lambda number, frame: (seen.append(number), say("seen")))
        say("waiting")
        began = time.monotonic()
        try:
            reader.next(0.5)
        except TimeoutError:
            say(len(seen), time.monotonic() - began)
        """) as script:
        script.hear()
        for _ in range(3):
            script.process.send_signal(10)
            script.hear()
        count, seconds = script.hear().split()
        assert count == "3" and 0.5 <= float(seconds) < 2
        script.end()


def test_a_drop_is_counted_once_however_long_it_waits(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), policy="every", wait_readers=1)
    with pytest.raises(tb.AgainError, match="0 of the 1 readers"):
        pool.write(bytes(4), 0.3)
    assert (pool.stats().drops, pool.stats().waits) == (1, 1)


@pytest.mark.parametrize("name", WAITS)
def test_other_threads_run_meanwhile(name: str, directory: object) -> None:
    """The GIL is free: a counter goes on; and the thread that waits does not keep the program from
    ending."""
    out, _ = kit.run(SCENE, f"""
        thread = threading.Thread(target=lambda: {WAITS[name]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 0.2
        turns = 0
        while time.monotonic() < deadline:
            turns += 1
        say(turns > 1000, thread.is_alive())
        """)
    assert out == "True True\n"


def test_a_copy_lets_other_threads_run(bus: tb.Bus) -> None:
    """While one thread copies 64 MiB again and again, another takes turns in between."""
    pool = tb.Pool.register(tb.Spec(64 << 20, "u1"), slots=2)
    source = bytes(64 << 20)
    done = threading.Event()
    turns = [0]

    def count() -> None:
        while not done.is_set():
            turns[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    before = turns[0]
    during = []
    for _ in range(5):
        pool.write(source)
        during.append(turns[0] - before)
        before = turns[0]
    done.set()
    thread.join()
    assert max(during) > 50


@pytest.mark.parametrize("name", ["reader", "newest", "loop", "loan", "write", "acked", "pool"])
def test_closing_the_bus_ends_waits(name: str, directory: object) -> None:
    out, _ = kit.run(SCENE, f"""
        def wait():
            try:
                {WAITS[name]}
            except tb.ClosedError as error:
                say("closed", "closed" in str(error))
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        began = time.monotonic()
        bus.close()
        thread.join()
        say(time.monotonic() - began < 1, bus.closed)
        """)
    assert out == "closed True\nTrue True\n"


def test_closing_a_reader_ends_its_waits(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
    reader = tb.Reader("camera/front")
    errors: list[Exception] = []

    def wait() -> None:
        try:
            for _ in reader:
                pass
        except tb.ClosedError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    kit.await_true(lambda: reader.stats().waits >= 3, "all wait")
    reader.close()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert len(errors) == 3
    kit.await_true(lambda: pool.stats().readers == 0, "it is detached")


def test_freeing_a_pool_ends_waits_for_its_slots(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), policy="every", wait_readers=1)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            pool.write(bytes(4))
        except tb.FreedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    kit.await_true(lambda: pool.stats().waits == 1, "it waits")
    pool.free()
    thread.join(5)
    assert len(errors) == 1 and kit.pool_mappings() == []


def test_what_was_opened_on_a_closed_bus_says_so(directory: object) -> None:
    bus = tb.open_bus("camera")
    pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
    pool.write(b"abcd")
    reader = tb.Reader("camera/front")
    frame, other = reader.next(0), pool.read()
    loan = pool.loan()
    bus.close()
    bus.close()
    for use in (pool.loan, pool.read, pool.stats, pool.free, lambda: pool.write(b"abcd"),
                reader.next, reader.stats, lambda: iter(reader), frame.numpy, frame.hold,
                loan.numpy, loan.publish, lambda: bus.name,
                lambda: tb.Reader("camera/front", bus=bus)):
        with pytest.raises(tb.ClosedError):
            use()
    frame.release()
    loan.cancel()
    reader.close()
    del other, pool
    assert "closed" in repr(bus)
    with tb.open_bus("camera") as again:
        assert again.name == "camera"


def test_views_outlive_a_closed_bus(directory: object) -> None:
    out, _ = kit.run("""
        bus = tb.open_bus("camera")
        pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
        pool.write(b"abcd")
        view = pool.read().numpy()
        loan = pool.loan().numpy()
        raw = memoryview(tb.Reader("camera/front").next(0))
        bus.close()
        loan[:] = 5
        say(view.tobytes(), bytes(raw), loan.tobytes())
        """)
    assert out == f"{b'abcd'!r} {b'abcd'!r} {bytes([5] * 4)!r}\n"


def test_the_default_bus(directory: object, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tb.Pool.register(tb.Spec(1, "u1"))
    assert first.bus.name == "" and first.bus is tb.Pool.register(tb.Spec(1, "u1")).bus
    other = tb.open_bus("other")
    assert tb.Pool.register(tb.Spec(1, "u1")).bus is first.bus
    tb.open_bus("third", default=True)
    assert tb.Pool.register(tb.Spec(1, "u1")).bus.name == "third"
    assert tb.Pool.register(tb.Spec(1, "u1"), bus=other).bus is other
    tb.Pool.register(tb.Spec(1, "u1")).bus.close()
    monkeypatch.setenv("TENSORBUS_NODE", "node-7")
    assert tb.Pool.register(tb.Spec(1, "u1")).bus.name == "node-7"
