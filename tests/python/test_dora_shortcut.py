"""Messages from bus to bus, past dora: which take that way, and that both ways are one stream."""

from __future__ import annotations

import asyncio
import datetime
import threading
import time

import kit
import numpy as np
import pytest
import tensorbus.dora
from tensorbus import _dora_shortcut

pa = pytest.importorskip("pyarrow")
from dora_fake import FakeNode, attach  # noqa: E402  (needs pyarrow)

FLOW = [
    {"id": "camera", "inputs": {}},
    {"id": "viewer", "inputs": {"image": "camera/image"}},
]
WHEN = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.timezone.utc)


class Pair:
    """A camera and a viewer of one dataflow; dora's part is played by deliver()."""

    def __init__(
        self, source: object = "camera/image", flow: list | None = None, **options: object
    ) -> None:
        if flow is None:
            flow = [FLOW[0], {"id": "viewer", "inputs": {"image": source}}]
        table: dict = {}
        options.setdefault("shortcut", True)
        self.camera = attach(FakeNode(table, flow), "camera", **options)
        self.viewer = self.attach_viewer(table, flow, source, **options)
        self.arrived = 0

    @staticmethod
    def attach_viewer(table: dict, flow: list, source: object, **options) -> tensorbus.dora.Bus:
        node = FakeNode(table, flow)
        node.inputs = {"image": source}
        options.setdefault("shortcut", True)
        return attach(node, "viewer", **options)

    def await_gone(self, consumer: str = "viewer") -> None:
        """Until the camera has heard that a consumer reads its shortcut no more."""
        pool = self.camera._past._ways["image"].pool
        kit.await_true(lambda: consumer not in pool.readers(), f"{consumer} is still a reader")

    @property
    def through_dora(self) -> int:
        return len(self.camera.node.sent)

    def deliver(self) -> None:
        """dora hands over what was sent through it."""
        while self.arrived < self.through_dora:
            self.viewer.node.give(self.camera.node.message(self.arrived))
            self.arrived += 1

    def open(self) -> None:
        """The first message goes through dora, and the viewer attaches when it takes it."""
        self.camera.send_output("image", b"first")
        assert self.through_dora == self.arrived + 1
        self.deliver()
        assert bytes_of(self.viewer.next(timeout=1)) == b"first"

    def close(self) -> None:
        self.viewer.close()
        self.camera.close()


@pytest.fixture
def pair():
    both = Pair()
    yield both
    both.close()


def bytes_of(event: dict) -> bytes:
    assert event["type"] == "INPUT", event
    return event["value"].to_numpy().tobytes()


def take_all(bus: tensorbus.dora.Bus) -> list[bytes]:
    return [bytes_of(event) for event in bus.drain()]


def test_after_the_first_message_dora_sees_none(pair):
    pair.open()
    pool = pair.camera.register(np.empty((2, 3), np.int32), name="image")
    with pool.loan() as image:
        image[:] = 5
    sent = {"n": 1, "z": [1.5], "a": "ä", "flag": True, "when": WHEN}
    pair.camera.send_output("image", pool.last, sent)
    pair.camera.send_output("image", b"plain", sent)
    pair.camera.send_output("image", np.arange(300_000), sent)  # promised: sent before it is copied
    assert pair.through_dora == 1 and pair.camera.past_dora == {"image": 3}
    frame, plain, large = (pair.viewer.next(timeout=1) for _ in range(3))
    assert frame["value"].numpy().tolist() == [[5, 5, 5], [5, 5, 5]] and frame["pool"] == pool.id
    assert large["value"].numpy()[-1] == 299_999 and large["dropped"] == 0
    assert bytes_of(plain) == b"plain" and isinstance(plain["value"], pa.UInt8Array)
    for event in (frame, plain, large):
        assert event["id"] == "image" and event["kind"] == "dora"
        assert list(event["metadata"]) == ["timestamp", *sorted(sent)]
        age = datetime.datetime.now(datetime.timezone.utc) - event["metadata"].pop("timestamp")
        assert abs(age.total_seconds()) < 5 and event["metadata"] == sent


def test_a_handle_that_goes_through_dora_is_the_same(pair):
    pool = pair.camera.register(np.empty(3, np.uint8), name="image")
    with pool.loan() as image:
        image[:] = 7
    pair.camera.send_output("image", pool.last, {"n": 1})
    pair.deliver()
    event = pair.viewer.next()
    assert event["pool"] == pool.id and event["dropped"] == 0 and event["metadata"] == {"n": 1}
    assert event["value"].numpy().tolist() == [7, 7, 7]


@pytest.mark.parametrize("metadata", [{"n": 2**63}, {"\ud800": 1}, {"dora.datetimes": 1}, [1]])
def test_of_odd_metadata_dora_says_what_becomes_of_it(pair, metadata, monkeypatch):
    pair.open()

    def refuse(*args: object) -> None:
        raise OverflowError("as dora does")

    with monkeypatch.context() as patched:
        patched.setattr(pair.camera.node, "send_output", refuse)
        with pytest.raises((OverflowError, TypeError)):
            pair.camera.send_output("image", b"x", metadata)
    # And what comes after it does not wait for it.
    pair.camera.send_output("image", b"next")
    assert take_all(pair.viewer) == [b"next"]


def test_a_closed_bus_s_node_goes_on(pair):
    pair.open()
    pair.camera.close()
    pair.camera.send_output("image", b"last")
    assert pair.through_dora == 2 and pair.camera.node.sent[1][1] == b"last"


@pytest.mark.parametrize(
    "other",
    [
        {"id": "camera", "inputs": {"own": "camera/image"}},
        {"id": "other", "operator": {"inputs": {"image": "camera/image"}}},
        {"id": "other", "operators": [{"id": "a", "inputs": {"image": "camera/image"}}]},
    ],
)
def test_takers_that_cannot_read_it(other):
    pair = Pair(flow=[other, FLOW[1]])
    for number in range(3):
        pair.camera.send_output("image", b"%d" % number)
        pair.deliver()
        assert take_all(pair.viewer) == [b"%d" % number]
    assert pair.through_dora == 3
    pair.close()


def test_a_consumer_without_a_bus_gets_everything_from_dora():
    flow = [*FLOW, {"id": "recorder", "inputs": {"all": {"source": "camera/image"}}}]
    pair = Pair(flow=flow)
    for number in range(5):
        pair.camera.send_output("image", b"%d" % number)
        pair.deliver()
    assert take_all(pair.viewer) == [b"0", b"1", b"2", b"3", b"4"]
    # And finds nothing of ours in what is not ours.
    assert [metadata for _, _, metadata in pair.camera.node.sent] == [{}] * 5
    # It attaches after all: from now on it needs dora no more.
    late = FakeNode(pair.camera.node.table, flow)
    late.inputs = {"all": {"source": "camera/image"}}
    with attach(late, "recorder", shortcut=True) as recorder:
        pair.camera.turn()
        pair.camera.send_output("image", b"5")
        pair.deliver()
        late.give(pair.camera.node.message(-1) | {"id": "all"})
        assert bytes_of(recorder.next()) == b"5" and take_all(pair.viewer) == [b"5"]
        pair.camera.send_output("image", b"6")
        assert pair.through_dora == 6
        assert take_all(recorder) == take_all(pair.viewer) == [b"6"]
    pair.await_gone("recorder")
    pair.camera.send_output("image", b"7")
    assert pair.through_dora == 7
    pair.close()


@pytest.mark.parametrize(
    "source",
    [
        {"source": "camera/image", "input_timeout": 5.0},
        {"source": "camera/image", "queue_policy": "backpressure"},
        {"source": "camera/image", "queue_size": 1000},
    ],
)
def test_inputs_that_dora_has_to_see(source):
    pair = Pair(source)
    for number in range(3):
        pair.camera.send_output("image", b"%d" % number)
        pair.deliver()
    assert take_all(pair.viewer) == [b"0", b"1", b"2"]
    assert pair.through_dora == 3 and pair.camera.past_dora == {}
    pair.close()


def test_a_dataflow_that_is_inspected(monkeypatch):
    descriptor = {"nodes": FLOW, "debug": {"enable_debug_inspection": True}}
    monkeypatch.setattr(FakeNode, "dataflow_descriptor", lambda self: descriptor)
    pair = Pair()
    pair.camera.send_output("image", b"seen")
    assert pair.camera.node.sent[0][2] == {}
    pair.close()


@pytest.mark.parametrize(
    ("shortcut", "setting", "taken"),
    [(None, None, False), (None, "0", False), (None, "1", True), (False, "1", False)],
)
def test_only_if_it_is_asked_for(shortcut, setting, taken, monkeypatch):
    if setting is not None:
        monkeypatch.setenv("TENSORBUS_DORA_SHORTCUT", setting)
    pair = Pair(shortcut=shortcut)
    for _ in range(3):
        pair.camera.send_output("image", b"x")
        pair.deliver()
        pair.viewer.next(timeout=1)
    assert pair.through_dora == (1 if taken else 3)
    assert taken or pair.camera.node.sent[2][2] == {}
    pair.close()


def test_one_that_does_not_want_it_gets_everything_from_dora():
    pair = Pair(shortcut=False)
    pair.camera.close()
    pair.camera = attach(FakeNode(pair.viewer.node.table, FLOW), "camera", shortcut=True)
    for number in range(3):
        pair.camera.send_output("image", b"%d" % number)
        pair.deliver()
    assert take_all(pair.viewer) == [b"0", b"1", b"2"] and pair.through_dora == 3
    pair.close()


# ------------------------------------------------------------------ one stream


def test_what_was_sent_through_dora_comes_first(pair):
    pair.open()
    pair.camera.send_output("image", pa.array([1], pa.uint8()))  # dora's alone
    pair.camera.send_output("image", b"\2")
    assert pair.through_dora == 2 and pair.viewer.try_recv() is None  # dora is slower
    pair.camera.send_output("image", pa.array([3], pa.uint8()))
    pair.deliver()
    assert take_all(pair.viewer) == [b"\1", b"\2", b"\3"]


def test_what_is_too_long_for_it_keeps_its_place(pair):
    pair.open()
    long = b"x" * _dora_shortcut.CAPACITY
    for data, metadata in ((b"1", None), (long, None), (b"2", None), (b"3", {"t": "x" * 5000})):
        pair.camera.send_output("image", data, metadata)
    assert pair.through_dora == 3
    pair.deliver()
    assert take_all(pair.viewer) == [b"1", long, b"2", b"3"]


def test_a_message_waits_for_a_lost_one_no_longer_than_it_must(pair, monkeypatch):
    monkeypatch.setattr(_dora_shortcut, "_PATIENCE_S", 0.2)
    pair.open()
    pair.camera.send_output("image", pa.array([1], pa.uint8()))  # which dora drops
    pair.camera.send_output("image", b"\2")
    begin = time.monotonic()
    assert bytes_of(pair.viewer.next(timeout=5)) == b"\2"
    assert 0.15 < time.monotonic() - begin < 2
    pair.camera.send_output("image", b"\3")
    assert bytes_of(pair.viewer.try_recv()) == b"\3"  # which does not wait anew


def test_the_end_comes_last(pair):
    pair.open()
    pair.camera.send_output("image", b"1")
    pair.camera.send_output("image", b"2")
    pair.camera.close()
    pair.viewer.node.give({"type": "INPUT_CLOSED", "id": "image", "kind": "dora"})
    pair.viewer.node.give({"type": "STOP", "id": "ALL_INPUTS_CLOSED", "kind": "dora"})
    events = [pair.viewer.next(timeout=1) for _ in range(4)]
    assert [event["type"] for event in events] == ["INPUT", "INPUT", "INPUT_CLOSED", "STOP"]
    assert [bytes_of(event) for event in events[:2]] == [b"1", b"2"]


@pytest.mark.parametrize(
    "end", [None, {"type": "STOP", "id": "ALL_INPUTS_CLOSED", "kind": "dora"}]
)
def test_the_end_comes_last_although_dora_lost_a_message(pair, end):
    pair.open()
    pair.camera.send_output("image", pa.array([1], pa.uint8()))
    pair.camera.send_output("image", b"2")
    pair.camera.close()
    assert pair.viewer.next(timeout=0.01)["type"] == "ERROR"  # the lost one may still come
    pair.viewer.node.give(end)
    assert bytes_of(pair.viewer.next(timeout=1)) == b"2"
    assert pair.viewer.next(timeout=1) == end


def test_being_told_to_stop_comes_at_once(pair):
    pair.open()
    pair.camera.send_output("image", b"1")
    pair.viewer.node.give({"type": "STOP", "id": "MANUAL", "kind": "dora"})
    assert [event["type"] for event in pair.viewer.drain()] == ["STOP", "INPUT"]


def test_the_older_of_two_inputs_comes_first(pair):
    pair.open()
    tick = {"type": "INPUT", "id": "tick", "value": pa.nulls(0), "kind": "dora"}
    now = datetime.datetime.now(datetime.timezone.utc)
    pair.camera.send_output("image", b"1")
    for seconds in (-60, 60):
        when = now + datetime.timedelta(seconds=seconds)
        pair.viewer.node.give(tick | {"metadata": {"timestamp": when}})
    assert [event["id"] for event in pair.viewer.drain()] == ["tick", "image", "tick"]


def test_of_a_full_queue_the_oldest_go_and_are_counted():
    pair = Pair({"source": "camera/image", "queue_size": 3})
    pair.open()
    pool = pair.camera.register(np.empty(4, np.uint8), name="image", slots=32)
    for number in range(20):  # more than the shortcut has room for
        with pool.loan() as image:
            image[:] = number
        pair.camera.send_output("image", pool.last)
    events = pair.viewer.drain()
    assert [int(event["value"].numpy()[0]) for event in events] == [17, 18, 19]
    assert [event["dropped"] for event in events] == [17, 0, 0]
    assert pair.viewer.dropped == {"image": 17} and pair.through_dora == 1
    del events, image  # views that outlive their bus keep its memory mapped
    pair.close()


def test_a_queue_of_nothing_keeps_the_newest():
    pair = Pair({"source": "camera/image", "queue_size": 0})
    pair.open()
    for data in (b"1", b"2"):
        pair.camera.send_output("image", data)
    assert take_all(pair.viewer) == [b"2"] and pair.viewer.dropped == {"image": 1}
    pair.close()


def test_two_inputs_of_one_output():
    inputs = {"left": "camera/image", "right": {"source": "camera/image", "queue_size": 1}}
    flow = [FLOW[0], {"id": "viewer", "inputs": inputs}]
    pair = Pair(flow=flow)
    pair.viewer.close()
    node = FakeNode(pair.camera.node.table, flow)
    node.inputs = inputs
    pair.viewer = attach(node, "viewer", shortcut=True)
    pair.camera.turn()
    pair.camera.send_output("image", b"0")
    for name in inputs:
        node.give(pair.camera.node.message(-1) | {"id": name})
    assert {event["id"] for event in pair.viewer.drain()} == {"left", "right"}
    pair.camera.send_output("image", b"1")
    pair.camera.send_output("image", b"2")
    events = [(event["id"], bytes_of(event)) for event in pair.viewer.drain()]
    assert sorted(events) == [("left", b"1"), ("left", b"2"), ("right", b"2")]
    assert pair.through_dora == 1
    pair.close()


# ------------------------------------------------------------------ coming and going


def test_a_consumer_that_goes_and_comes_again(pair):
    pair.open()
    pair.camera.send_output("image", b"for the first")
    pair.viewer.close()
    pair.await_gone()
    pair.camera.send_output("image", b"1")
    assert pair.through_dora == 2
    flow, table = pair.camera.node.nodes, pair.camera.node.table
    pair.viewer = pair.attach_viewer(table, flow, "camera/image")
    pair.deliver()
    assert take_all(pair.viewer) == [b"1"]  # nothing of its former life's
    pair.camera.send_output("image", b"2")
    assert pair.through_dora == 2 and take_all(pair.viewer) == [b"2"]


def test_a_sender_that_is_started_anew(pair):
    pair.open()
    pair.viewer.next(timeout=0.01)  # it has waited for the old one
    pair.camera.send_output("image", b"old")
    pair.camera.close()
    pair.camera = attach(FakeNode(pair.viewer.node.table, FLOW), "camera", shortcut=True)
    pair.arrived = 0
    pair.camera.send_output("image", b"new")
    pair.deliver()
    assert take_all(pair.viewer) == [b"old", b"new"]
    pair.camera.send_output("image", b"newer")
    assert pair.through_dora == 1 and take_all(pair.viewer) == [b"newer"]
    begin = time.monotonic()
    thread = later(pair.camera.send_output, "image", b"newest")
    assert bytes_of(pair.viewer.next(timeout=5)) == b"newest"
    assert time.monotonic() - begin < 3
    thread.join()


def test_where_it_cannot_be_reached_it_is_tried_seldom(pair, monkeypatch):
    tried = []

    def refuse(*args: object) -> None:
        tried.append(args)
        raise tensorbus.NotFoundError("not here")

    monkeypatch.setattr(_dora_shortcut, "_Incoming", refuse)
    for number in range(100):
        pair.camera.send_output("image", b"%d" % number)
        pair.deliver()
        assert take_all(pair.viewer) == [b"%d" % number]
    assert pair.through_dora == 100 and len(tried) == 8  # messages 0, 1, 2, 4, ..., 64


# ------------------------------------------------------------------ waiting


def later(call, *args: object) -> threading.Thread:
    def wait_and_call() -> None:
        time.sleep(0.1)
        call(*args)

    thread = threading.Thread(target=wait_and_call)
    thread.start()
    return thread


def waits(bus: tensorbus.dora.Bus, asynchronous: bool, timeout: float | None = 5) -> dict | None:
    return asyncio.run(bus.recv_async(timeout)) if asynchronous else bus.next(timeout)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_it_is_woken_by_both(pair, asynchronous):
    pair.open()
    tick = {"type": "INPUT", "id": "tick", "metadata": {}, "value": pa.nulls(0), "kind": "dora"}
    for _ in range(3):
        thread = later(pair.camera.send_output, "image", b"by shortcut")
        assert bytes_of(waits(pair.viewer, asynchronous)) == b"by shortcut"
        thread.join()
        thread = later(pair.viewer.node.give, dict(tick))
        assert waits(pair.viewer, asynchronous)["id"] == "tick"
        thread.join()
    thread = later(pair.viewer.node.give, None)
    assert waits(pair.viewer, asynchronous) is None
    thread.join()
    assert pair.through_dora == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_timeout_is_dora_s_event(pair, asynchronous):
    pair.open()
    begin = time.monotonic()
    event = waits(pair.viewer, asynchronous, 0.1)
    assert event["type"] == "ERROR" and "timed out" in event["error"]
    assert 0.09 < time.monotonic() - begin < 2
    pair.camera.send_output("image", b"1")
    assert bytes_of(waits(pair.viewer, asynchronous, 0)) == b"1"


def test_within_a_running_loop_the_loop_stays(pair):
    pair.open()

    async def main() -> None:
        pair.viewer.next(timeout=0.01)  # not asynchronous: it blocks, and nothing else
        assert asyncio.get_running_loop() is loop
        task = asyncio.create_task(pair.viewer.recv_async())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pair.camera.send_output("image", b"1")
        assert bytes_of(await pair.viewer.recv_async()) == b"1"  # nothing is lost

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()


def test_it_is_woken_by_one_that_came_later():
    inputs = {"image": "camera/image", "depth": "lidar/depth"}
    flow = [{"id": "viewer", "inputs": inputs}]
    pair = Pair(flow=flow)
    pair.viewer.close()
    table = pair.camera.node.table
    node = FakeNode(table, flow)
    node.inputs = inputs
    pair.viewer = attach(node, "viewer", shortcut=True)
    pair.camera.turn()
    pair.open()
    pair.viewer.next(timeout=0.01)  # waits for the camera alone
    with attach(FakeNode(table, flow), "lidar", shortcut=True) as lidar:
        lidar.turn()
        lidar.send_output("depth", b"first")
        node.give(lidar.node.message())
        assert bytes_of(pair.viewer.next(timeout=1)) == b"first"
        thread = later(lidar.send_output, "depth", b"second")
        begin = time.monotonic()
        assert bytes_of(pair.viewer.next(timeout=5)) == b"second"
        assert time.monotonic() - begin < 3
        thread.join()
    pair.close()


def test_looking_whether_something_is_there_takes_nothing(pair):
    pair.open()
    assert pair.viewer.is_empty()
    pair.camera.send_output("image", b"1")
    assert not pair.viewer.is_empty() and not pair.viewer.is_empty()
    assert bytes_of(pair.viewer.next(timeout=1)) == b"1" and pair.viewer.is_empty()


def test_dora_s_node_is_free_between_two_waits(pair):
    pair.open()
    assert pair.viewer.next(timeout=0.01)["type"] == "ERROR"
    assert pair.viewer.node.asked is not None  # it was waited for
    assert pair.viewer.node.extension_load("a", "b") is None
    asyncio.run(pair.viewer.recv_async(0.01))
    assert pair.viewer.node.extension_load("a", "b") is None


def test_what_is_no_message_ends_the_shortcut(pair):
    pair.open()
    way = pair.camera._past._ways["image"]
    way.pool.write(b"garbage", 0)
    assert pair.viewer.try_recv() is None
    pair.await_gone()
    pair.camera.send_output("image", b"next")
    pair.deliver()
    assert take_all(pair.viewer) == [b"next"] and pair.through_dora == 2


def test_a_node_whose_daemon_is_gone_closes_all_the_same(pair, monkeypatch):
    pair.open()
    pair.viewer.next(timeout=0.01)

    def fail(*args: object) -> None:
        raise RuntimeError("the daemon is gone")

    monkeypatch.setattr(pair.viewer.node, "next", fail)
    pair.viewer.close()
    pair.await_gone()


def test_nothing_is_left():
    before = kit.descriptors()
    pair = Pair()
    pair.open()
    pair.viewer.next(timeout=0.01)
    pair.close()
    assert kit.descriptors() == before
