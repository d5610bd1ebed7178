"""What a stream is told has to wait while its queue is full, and what empties the queue may be
another thread of Python: none of the calls keeps the GIL meanwhile. See test_gpu.py."""

from __future__ import annotations

import pytest

import gpu_kit
from gpu_kit import needs_gpu, run_scene

pytestmark = [pytest.mark.usefixtures("directory"), needs_gpu]
needs_fake = pytest.mark.skipif(gpu_kit.REAL, reason="the fake driver is told how much it takes")

FULL = """
mine, second = gpu.stream(), gpu.stream()
memory = Memory(A)

def full(call):  # while there is no room, until another thread has made some
    brake = Brake(mine)
    timer = threading.Timer(0.1, brake.off)
    timer.start()
    begin = time.monotonic()
    result = call()
    assert time.monotonic() - begin > 0.05, "it did not wait"
    timer.join()
    return result

def release_late(frame):  # a thread gives it back, once the brake is off
    brake = Brake(mine)
    thread = threading.Thread(target=frame.release, kwargs=dict(stream=mine))
    thread.start()
    soon(lambda: frame.released)
    return brake, thread

def all_given_back():
    gpu.synchronize(mine)
    soon(lambda: pool.stats().held == 0)
"""


def run(source: str) -> None:
    run_scene(FULL, source, machine="devices=1;queue=1")


# ---- publishing ----


@needs_fake
def test_other_threads_run_while_the_streams_queue_is_full() -> None:
    run("""
        loan = pool.loan()
        full(lambda: loan.publish(stream=mine))
        """)


@needs_fake
@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
@pytest.mark.parametrize("stream", ["-1", "second"])
def test_nor_does_another_publisher_of_the_pool_keep_them(device: str, stream: str) -> None:
    run(f"""
        other = tb.Pool.register(A, name="other", device="{device}")
        loan, complete = other.loan(), other.loan()
        brake = Brake(mine)
        first = threading.Thread(target=loan.publish, kwargs=dict(stream=mine))
        first.start()
        time.sleep(0.1)  # it waits for room
        timer = threading.Timer(0.1, brake.off)
        timer.start()
        complete.publish(stream={stream})  # behind it, in one pool
        first.join()
        timer.join()
        """)


def test_another_publisher_of_the_loan_does_not_choose_its_stream() -> None:
    """It is told that the loan was published, and the stream that it has named is nobody's. It asks
    for the GIL while the call reads its stream, and so has it when the call lets go of it."""
    run_scene(FULL, """
        import functools

        class Slow:  # takes long without a look at who else wants to run
            __cuda_stream__ = functools.partial(max, [(0, mine)] * 1_000_000)

        def publish_too():
            go.acquire()
            try:
                loan.publish(stream=second)
            except tb.InvalidError:
                late.append(loan)

        late = []
        slow = Slow()
        reader = tb.Reader("camera/front", stream_ordered=True)
        for _ in range(20):
            brake, loan, go = Brake(mine), pool.loan(), threading.Lock()
            go.acquire()
            thread = threading.Thread(target=publish_too)
            thread.start()
            go.release()
            try:
                loan.publish(stream=slow)
            except tb.InvalidError:
                brake.off()  # it was the other one's
                thread.join()
                reader.next(5).release()
                continue
            thread.join()
            frame = reader.next(5)
            time.sleep(0.001)  # the other stream would be done by now
            assert frame.poll() is False, "published in the order of another thread's stream"
            brake.off()
            frame.release(stream=mine)
        assert late
        """)


@needs_fake
@pytest.mark.parametrize("call", [
    "pool.write(Exporter(memory), stream=mine)",
    "pool.write(Interface(memory, stream=mine), stream=second)",
    "host.write(Interface(memory), stream=mine)",
    "pool.loan(stream=mine).cancel()",
])
def test_marks_behind_a_streams_work_wait_too(call: str) -> None:
    run(f"""
        host = tb.Pool.register(A, name="host", device="cpu")
        with host.loan() as array:  # Python looks at a slot: written in the default stream's order
            kept = array[0]
        del array
        full(lambda: {call})
        """)


# ---- giving frames back ----


@needs_fake
@pytest.mark.parametrize("before, call", [
    ("", "frame.release(stream=mine)"),
    ("frame.wait(mine)", "frame.release()"),
    ("frame.wait(mine)", "frame.__exit__(None, None, None)"),
    ("frames = [frame]; frame.wait(mine); del frame", "frames.clear()"),
    ("taken = take(frame, mine); frame.release()", "taken.close()"),
    ("capsules = [frame.__dlpack__(stream=mine)]; frame.release()", "capsules.clear()"),
    ("another = frame.hold(); frame.release(); another.wait(mine)", "another.release()"),
], ids=["release", "waited", "block", "dropped", "deleter", "capsule", "hold"])
def test_a_frame_is_given_back(before: str, call: str) -> None:
    run(f"""
        pool.write(A)
        frame = pool.read()
        {before}
        full(lambda: {call})
        all_given_back()
        """)


@needs_fake
def test_a_loop_gives_back_the_frame_of_its_former_turn() -> None:
    run("""
        reader = tb.Reader("camera/front", every=True)
        pool.write(A)
        pool.write(A + 1)
        loop = iter(reader)
        first = next(loop)
        first.wait(mine)
        second = full(lambda: next(loop))
        assert first.released and (second.copy() == A + 1).all()
        second.release()
        all_given_back()
        """)


@needs_fake
def test_a_frame_that_is_being_given_back_is_nobodys() -> None:
    """Neither another thread that looks at it nor one that releases it, too, disturbs that."""
    run("""
        pool.write(A)
        frame = pool.read()
        brake, thread = release_late(frame)
        for call in (frame.copy, frame.hold, frame.wait, lambda: take(frame, 1),
                     lambda: frame.shape):
            try:
                call()
                raise SystemExit("it was used")
            except tb.InvalidError:
                pass
        frame.release(stream=second)
        frame.release()
        assert pool.stats().held == 1, "it was given back before its stream had room"
        brake.off()
        thread.join()
        all_given_back()
        """)


@needs_fake
def test_the_bus_is_closed_when_the_frame_was_given_back() -> None:
    run("""
        pool.write(A)
        brake, thread = release_late(pool.read())
        timer = threading.Timer(0.1, brake.off)
        timer.start()
        pool.bus.close()
        assert not Brake.on, "closed under a call"
        thread.join()
        timer.join()
        """)


NODES = """
from node_kit import node_pair
both = node_pair()
source, sink = both.__enter__()
pool = tb.Pool.register(A, name="front", device="cuda:0", bus=source.bus)
source.send_output("out", pool.write(A))
source.send_output("out", A + 1)
events = [sink.next(5)]
events[0].frame.wait(mine)
"""


def run_nodes(source: str) -> None:
    gpu_kit.run("gpu.begin()\nA = np.arange(24, dtype='f4').reshape(4, 6)", FULL, NODES, source,
                "both.__exit__(None, None, None)", machine="devices=1;queue=1")


@needs_fake
@pytest.mark.parametrize("call", ["events[0].release()", "sink.next(5)", "events.clear()"])
def test_an_events_frame_is_given_back(call: str) -> None:
    run_nodes(f"""
        full(lambda: {call} and None)
        all_given_back()
        """)


@needs_fake
def test_an_event_goes_while_its_turn_ends() -> None:
    """Another thread drops it, and takes the next one, which is that thread's then."""
    run_nodes("""
        frame = events[0].frame
        brake = Brake(mine)
        thread = threading.Thread(target=sink.next, args=(0,))
        thread.start()
        soon(lambda: frame.released)
        events.clear()
        event = sink.next(5)
        brake.off()
        thread.join()
        assert (event.value.copy() == A + 1).all()  # its turn goes on
        del event, frame
        """)


# ---- closing ----


@pytest.mark.parametrize("before, call", [
    ("frame = reader.next(5); frame.release(stream=mine)", "reader.close()"),
    ("frame = reader.next(5); frame.release(stream=mine); readers = [reader]; del reader",
     "readers.clear()"),
    ("pool.loan().publish(stream=mine)", "pool.free()"),
], ids=["reader", "dropped", "pool"])
def test_closing_waits_for_streams(before: str, call: str) -> None:
    run_scene(FULL, f"""
        pool.write(A)
        reader = tb.Reader("camera/front")
        brake = Brake(mine)
        {before}
        timer = threading.Timer(0.1, brake.off)
        timer.start()
        begin = time.monotonic()
        {call}
        assert 0.05 < time.monotonic() - begin < 5
        timer.join()
        """)
