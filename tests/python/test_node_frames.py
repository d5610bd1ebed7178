"""Handles through nodes: the frame arrives where it is; large values are written once."""

import gc

import numpy as np
import pytest
from node_kit import Node, node_pair, nodes, open_node

import kit
import tensorbus as tb

SIZE = 100_000


@pytest.fixture
def pair():
    with node_pair() as nodes:
        yield nodes


@pytest.fixture
def pool(pair):
    return tb.Pool.register(tb.Spec((SIZE,), "uint8"), name="frames", slots=4, bus=pair[0].bus)


def address(array):
    return array.__array_interface__["data"][0]


def page(array):
    return kit.page_of("self", address(array))


def through(pair, value):
    source, sink = pair
    source.send_output("out", value, {"a": 1})
    event = sink.next(10)
    assert event.metadata == {"a": 1} and event.dropped == 0
    return event


def test_a_handle_arrives_as_its_frame(pair, pool):
    with pool.loan() as image:
        image[:] = 7
        written = page(image)
    event = through(pair, pool.last)
    assert (
        type(event.value) is tb.Frame and event.frame is event.value and event.value is event.value
    )
    assert event.frame.sequence == 1 and event.frame.handle == pool.last
    assert event.frame.info.pool == "frames" and event.frame.info.copies == 0
    array = event.numpy()
    assert array.shape == (SIZE,) and array[0] == 7 and not array.flags.writeable
    assert page(array) == written  # the very memory that was written


def test_a_frame_is_sent_as_its_handle(pair, pool):
    pool.write(np.full(SIZE, 3, np.uint8))
    frame = pool.read()
    event = through(pair, frame)
    assert event.frame.handle == pool.last and page(event.numpy()) == page(frame.numpy())
    frame.release()
    with pytest.raises(tb.InvalidError, match="released"):
        through(pair, frame)


def test_a_frame_ends_with_its_turn(pair, pool):
    pool.write(np.full(SIZE, 3, np.uint8))
    event = through(pair, pool.last)
    frame = event.value
    pair[1].next(0)
    assert frame.released
    for look in (frame.numpy, event.numpy, event.hold, lambda: event.value.numpy()):
        with pytest.raises(tb.InvalidError):
            look()
    late = through(pair, pool.last)
    pair[1].next(0)
    for look in (lambda: late.value, lambda: late.frame):  # which was not asked for in time
        with pytest.raises(tb.InvalidError, match="turn is over"):
            look()


@pytest.mark.parametrize("how", ["event before", "event after", "frame", "view", "block"])
def test_holding(pair, pool, how):
    pool.write(np.full(SIZE, 3, np.uint8))
    event = through(pair, pool.last)
    kept = [None]
    if how == "event before":
        event.hold()
    frame = event.value
    if how == "event after":
        event.hold()
    elif how == "frame":
        kept.append(frame.hold())
    elif how == "view":
        kept.append(frame.numpy())
    elif how == "block":
        kept.append(event.__enter__())
    pair[1].next(0)
    assert frame.released == (how == "view")
    for n in range(9):
        pool.write(np.full(SIZE, n, np.uint8))
    assert (kept[1] if how == "view" else frame.numpy())[0] == 3
    event.release()
    del kept, frame
    gc.collect()


def test_releasing_an_event_releases_its_frame(pair, pool):
    event = through(pair, pool.write(np.full(SIZE, 3, np.uint8)))
    frame = event.hold().value
    event.release()
    assert frame.released
    with pytest.raises(tb.InvalidError, match="released"):
        event.value.numpy()


def test_frames_give_their_leases_back(pair, pool):
    """More than one reader may hold, and more than the pool has slots."""
    kept = []
    for n in range(12):
        pool.write(np.full(SIZE, n, np.uint8), timeout=5)
        event = through(pair, pool.last)
        assert event.numpy()[0] == n
        kept.append(event if n % 2 else event.value)
    del event


def test_leases_of_held_events_come_back_when_they_are_gone(pair, pool):
    for n in range(12):
        pool.write(np.full(SIZE, n, np.uint8), timeout=5)
        event = through(pair, pool.last).hold()
        assert event.frame.numpy()[0] == n
        if n % 2:
            event.release()
        del event


def test_holding_too_many_is_an_error_event(pair, pool):
    source, sink = pair
    many = tb.Pool.register(tb.Spec(4, "u1"), name="many", slots=80, bus=source.bus)
    held = []
    for n in range(64):
        source.send_output("out", many.write(bytes([n] * 4)))
        held.append(sink.next(10).hold())
    source.send_output("out", many.write(b"next"))
    event = sink.next(10)
    assert event.type == "ERROR" and event.id == "in" and "lease" in event.text
    held.pop().release()
    assert bytes(sink.next(10).value) == b"next"  # it was not lost
    for event in held:
        event.release()


def test_a_stale_handle_is_an_error_or_counted(pair, pool):
    source, sink = pair
    first = pool.write(np.zeros(SIZE, np.uint8))
    for n in range(8):
        pool.write(np.full(SIZE, n, np.uint8))
    source.send_output("out", first)  # a drop_oldest queue does not hold it
    source.send_output("out", pool.last)
    event = sink.next(10)
    assert event.dropped == 1 and event.numpy()[0] == 7
    pool.free()
    with pytest.raises(tb.InvalidError):
        source.send_output("out", tb.Handle(bytes(48)))


def test_backpressure_keeps_the_frame_of_a_queued_handle():
    with node_pair("queue=2;policy=backpressure") as (source, sink):
        pool = tb.Pool.register(tb.Spec(4, "u1"), name="frames", slots=4, bus=source.bus)
        source.send_output("out", pool.write(b"kept"))
        for n in range(20):
            pool.write(bytes([n] * 4), timeout=5)
        assert bytes(sink.next(10).value) == b"kept"
        with pytest.raises(tb.StaleError):
            source.send_output("out", tb.Handle(bytes(source_handle(pool))))


def source_handle(pool):
    """A handle whose frame was overwritten."""
    handle = pool.write(b"gone")
    for n in range(8):
        pool.write(bytes([n] * 4), timeout=5)
    return handle


def test_a_frame_forwarded_by_a_node_between():
    """The middle node does not own what it passes on, and copies nothing."""
    with Node(
        """
        with tb.Node() as node:
            for event in node:
                if event.type == "INPUT":
                    node.send_output("out", event.value, event.metadata)
        """,
        "middle",
        "in=first/out",
        "out=last/in",
    ) as middle:
        with nodes(first=("", "out=middle/in"), last=("in=middle/out", "")) as (first, last):
            pool = tb.Pool.register(tb.Spec(SIZE, "u1"), name="mine", bus=first.bus)
            with pool.loan() as image:
                image[:] = 9
                written = page(image)
            del image
            first.send_output("out", pool.last, {"n": 1})
            event = last.next(20)
            assert event.metadata == {"n": 1} and event.frame.handle == pool.last
            assert page(event.numpy()) == written and event.numpy()[0] == 9
            first.send_output("out", np.arange(5))
            assert list(last.next(20).value) == [0, 1, 2, 3, 4]
            first.close_output("out")
            assert last.next(20).type == "INPUT_CLOSED"
            assert middle.end() == ("", "")


def test_a_frame_outlives_its_senders_death():
    with Node(
        """
        node = tb.Node()
        pool = tb.Pool.register(tb.Spec(100_000, "u1"), name="frames")
        node.send_output("out", pool.write(np.full(100_000, 5, np.uint8)))
        node.send_output("out", np.arange(50_000))
        say("sent")
        hear()
        """,
        "source",
        outputs="out=sink/in",
    ) as source:
        with open_node("sink", "in=source/out") as sink:
            assert source.hear() == "sent"
            frame, large = sink.next(10).hold(), sink.next(10).hold()
            source.kill()
            assert sink.next(10).type == "INPUT_CLOSED"
            assert frame.numpy().sum() == 500_000 and large.numpy()[-1] == 49_999
            frame.release()
            large.release()


@pytest.mark.parametrize("value", [
    "np.arange(50_000)", "pool.write(np.zeros(100_000, np.uint8))",
], ids=["value", "handle"])  # fmt: skip
def test_writing_into_what_arrived_ends_with_a_line(value):
    """By code that does not know that memory is read-only."""
    with Node(
        f"""
        with tb.Node() as node:
            pool = tb.Pool.register(tb.Spec(100_000, "u1"), name="frames")
            node.send_output("out", {value})
            say("sent")
            hear()
        """,
        "source",
        outputs="out=sink/in",
    ) as source:
        with Node(
            """
            import ctypes
            node = tb.Node()
            array = node.next(20).numpy()
            ctypes.memset(array.ctypes.data, 1, 8)
            """,
            "sink",
            "in=source/out",
        ) as sink:
            _, err = sink.end(-11)
            lines = [line for line in err.splitlines() if "tensorbus" in line]
            assert len(lines) == 1 and "read-only" in lines[0] and "copy" in lines[0], err
            assert ("`source/frames`" if "pool" in value else "input `in`") in lines[0]
        source.tell()
        source.end()
