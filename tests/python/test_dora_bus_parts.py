"""tensorbus.dora on a node that is made up: what a real dataflow does not do on request."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import kit
import tensorbus
import tensorbus.dora
from tensorbus.dora import UnreachableError

pa = pytest.importorskip("pyarrow")
from dora_fake import FakeNode, attach  # noqa: E402  (needs pyarrow)


@pytest.fixture
def camera():
    with attach(FakeNode(), "camera") as bus:
        yield bus


@pytest.fixture
def viewer(camera):
    with attach(FakeNode(camera.node.table), "viewer") as bus:
        yield bus


def send_frame(bus: tensorbus.dora.Bus, pool: tensorbus.dora.Pool, value: int) -> None:
    with pool.loan() as frame:
        frame[:] = value
    bus.send_output("image", pool.last, {"n": value})


def test_a_frame_from_bus_to_bus(camera, viewer):
    pool = camera.register(np.empty((2, 3), np.int32), name="image")
    send_frame(camera, pool, 5)
    output_id, data, metadata = camera.node.sent[0]
    assert output_id == "image" and data == bytes(pool.last) and metadata["n"] == 5
    viewer.node.events = [camera.node.message()]
    event = viewer.next()
    assert event["value"].numpy().tolist() == [[5, 5, 5], [5, 5, 5]]
    assert event["metadata"] == {"n": 5}
    assert event["pool"] == pool.id and event["dropped"] == 0


def test_what_is_no_dora_node():
    with pytest.raises(TypeError, match="has no extension_store"):
        tensorbus.dora.attach(object())


def test_the_node_s_id(monkeypatch):
    node = FakeNode(nodes=[{"id": "alone", "path": "dynamic", "inputs": {"a": "x/y"},
                            "outputs": ["o"]}, {"id": "other", "path": "other.py"}])  # fmt: skip
    with tensorbus.dora.attach(node, linger=0) as bus:
        assert bus.name == "alone"
    monkeypatch.setenv("DORA_NODE_CONFIG", "dataflow_id: 01\nnode_id: front-left.1\nrun_config: {}")
    with tensorbus.dora.attach(node, linger=0) as bus:
        assert bus.name == "front-left.1"
    monkeypatch.delenv("DORA_NODE_CONFIG")
    node.nodes.append({**node.nodes[0], "id": "twin"})
    with pytest.raises(ValueError, match="pass its id"):
        tensorbus.dora.attach(node)


def test_two_of_one_name_is_an_error(camera):
    with pytest.raises(tensorbus.ExistsError):
        attach(FakeNode(), "camera")


def test_a_full_table_is_a_warning(camera, caplog):
    camera.node.full = True
    pool = camera.register(np.empty(4))
    assert "could not be announced: extension table full for this dataflow" in caplog.text
    assert "Location" not in caplog.text
    send_frame(camera, pool, 1)  # handles work all the same


def test_freed_by_its_owner_is_dropped_for_all(camera):
    pool = camera.register(np.empty(4))
    assert camera.lookup(pool.id)["size"] == 32
    pool.free()
    assert camera.lookup(pool.id) is None
    with pytest.raises(tensorbus.FreedError):
        pool.loan()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("{id} far 00000000 {dir}", "on machine far"),
        ("{id} {host} {boot} /elsewhere", "reached through /elsewhere, this node looks in"),
        ("{id} box {boot} {dir}", "give both containers one"),
    ],
)
def test_why_a_pool_cannot_be_reached(camera, viewer, change, text):
    pool = camera.register(np.empty(4), name="image")
    send_frame(camera, pool, 1)
    host, boot, directory = str(camera._place).split(" ", 2)
    message = camera.node.message(
        tensorbus=change.format(id=pool.id, host=host, boot=boot, dir=directory)
    )
    camera.close()  # now nobody answers for the handle
    viewer.node.events = [message]
    with pytest.raises(UnreachableError, match=text) as caught:
        viewer.next()
    assert pool.id in str(caught.value) and isinstance(caught.value, tensorbus.NotFoundError)


def test_a_producer_that_is_gone_is_a_lost_message(camera, viewer, caplog):
    pool = camera.register(np.empty(4), name="image")
    send_frame(camera, pool, 1)
    message = camera.node.message()
    camera.close()
    viewer.node.events = [message]
    assert viewer.next() is None and viewer.dropped == {"image": 1}
    assert "is lost: its node has ended" in caplog.text


@pytest.mark.parametrize("size", [0, 1, 47, 49])
def test_a_handle_that_is_none(camera, viewer, size):
    event = {
        "type": "INPUT",
        "id": "image",
        "value": pa.array(np.zeros(size, np.uint8)),
        "metadata": {"tensorbus": "pool_camera_1 a b c"},
        "kind": "dora",
    }
    viewer.node.events = [event]
    with pytest.raises(ValueError):
        viewer.next()


def test_closing_twice(camera):
    camera.register(np.empty(4))
    assert len(camera.node.table) == 1
    camera.close()
    camera.close()
    assert camera.node.table == {}


CHILD = """
import os, sys
sys.path.insert(0, {folder!r})
import numpy as np
from test_dora_bus_parts import FakeNode, attach
bus = attach(FakeNode(), "camera")
bus.register(np.empty(4))
pid = os.fork()
if pid == 0:
    bus.close()  # the parent's: a child must not touch it
    os._exit(len(bus.node.table))
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(code, len(bus.node.table), not bus._bus.closed)
"""


def test_closing_in_a_child_does_nothing():
    # In a process of its own: forking stops threads of pyarrow's allocator.
    script = CHILD.format(folder=str(pathlib.Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "1 1 True\n", done.stderr


def test_nothing_is_left_in_the_runtime_directory(directory):
    with attach(FakeNode(), "camera") as bus:
        assert (directory / bus.flow / "camera.sock").is_symlink()
    assert list(directory.iterdir()) == []


def test_attributes_of_the_node_shine_through(camera):
    assert camera.node_config()["outputs"] == ["o"]
    with pytest.raises(AttributeError):
        camera.no_such_thing
    assert pathlib.Path(camera._directory).is_dir()


@pytest.mark.parametrize(("reason", "waits"), [("ALL_INPUTS_CLOSED", True), ("MANUAL", False)])
def test_closing_waits_for_consumers_unless_all_stop(reason, waits):
    nodes = [{"id": "viewer", "inputs": {"image": {"source": "camera/image"}}}]
    node = FakeNode(nodes=nodes)
    bus = tensorbus.dora.attach(node, name="camera", linger=0.3)
    send_frame(bus, bus.register(np.empty(4)), 1)
    node.events = [{"type": "STOP", "id": reason, "kind": "dora"}]
    bus.next()
    begun = time.monotonic()
    bus.close()  # the viewer never comes
    assert (time.monotonic() - begun >= 0.3) == waits


VIEWER = [{"id": "viewer", "inputs": {"image": "camera/image"}}]

#: A viewer of the dataflow in a process of its own, without dora.
COMES = """
bus = tb.open_bus("viewer", flow="01a22c69-2776-7168-86e0-e4a7ea56fb5c")
say("here")
"""
OPENS = """
frame = tb.open_frame(bytes.fromhex(hear()), bus=bus)
say(int(frame.numpy()[0]))
hear()
say(int(frame.numpy()[0]))
"""


def camera_for_viewer(linger: float, **entry: str) -> tuple[tensorbus.dora.Bus, str]:
    """A camera that has sent one frame to its viewer, and the frame's handle."""
    node = FakeNode(nodes=[VIEWER[0] | entry])
    bus = tensorbus.dora.attach(node, name="camera", linger=linger)
    pool = bus.register(np.empty(4))
    send_frame(bus, pool, 7)
    return bus, bytes(pool.last).hex()


def sweep() -> None:
    """What a killed viewer has left is swept by the next start in its dataflow."""
    tensorbus.open_bus("sweeper", flow=FakeNode().dataflow_id()).close()


def closing_s(bus: tensorbus.dora.Bus) -> float:
    begun = time.monotonic()
    bus.close()
    return time.monotonic() - begun


def test_closing_waits_for_a_consumer_that_is_here_and_has_yet_to_open():
    with kit.Script(COMES, OPENS) as viewer:
        assert viewer.hear() == "here"
        bus, handle = camera_for_viewer(20)
        timer = kit.later(0.3, lambda: viewer.tell(handle))
        assert 0.25 < closing_s(bus) < 5
        timer.join()
        assert viewer.hear() == "7"
        viewer.tell()
        assert viewer.hear() == "7"  # what it holds outlives the camera
        viewer.end()


def test_closing_waits_for_a_consumer_that_is_just_coming():
    bus, handle = camera_for_viewer(20)
    viewers = []

    def come() -> None:
        viewers.append(kit.Script(COMES, OPENS))
        viewers[0].tell(handle)

    timer = kit.later(0.2, come)
    assert 0.2 < closing_s(bus) < 10
    timer.join()
    with viewers[0] as viewer:
        assert [viewer.hear(), viewer.hear()] == ["here", "7"]
        viewer.tell()
        viewer.end()


@pytest.mark.parametrize("opened", [True, False], ids=["opened", "never opened"])
@pytest.mark.parametrize("end", ["end", "kill"])
def test_closing_does_not_wait_for_consumers_that_are_gone(end, opened):
    with kit.Script(COMES, OPENS if opened else "hear()") as viewer:
        assert viewer.hear() == "here"
        bus, handle = camera_for_viewer(20)
        if opened:
            viewer.tell(handle)
            assert viewer.hear() == "7"
        if end == "end":
            viewer.tell()
            viewer.end()
        else:
            viewer.kill()
        assert closing_s(bus) < 1
    sweep()


def test_closing_waits_while_only_others_read_its_pool():
    with kit.Script(COMES, "hear()") as viewer, kit.Script(COMES.replace('"viewer"', '"tool"'),
                                                           OPENS) as tool:  # fmt: skip
        assert viewer.hear() == "here" and tool.hear() == "here"
        bus, handle = camera_for_viewer(0.5)
        tool.tell(handle)
        assert tool.hear() == "7"
        assert closing_s(bus) >= 0.5  # the viewer has not opened it
        tool.tell()
        tool.end()
        viewer.tell()
        viewer.end()


def test_closing_waits_for_a_consumer_that_dora_starts_anew():
    with kit.Script(COMES, "hear()") as viewer:
        assert viewer.hear() == "here"
        bus, _ = camera_for_viewer(0.5, restart_policy="on-failure")
        viewer.kill()
        assert closing_s(bus) >= 0.5
    sweep()


def test_ctrl_c_ends_the_wait_and_the_bus_is_closed(directory):
    bus, _ = camera_for_viewer(20)
    timer = kit.later(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        bus.close()
    timer.join()
    assert time.monotonic() - begun < 2
    assert bus._bus.closed and bus.node.table == {} and list(directory.iterdir()) == []


def test_large_arrays_are_sent_before_they_are_copied(camera, viewer):
    """The handle leaves while the frame is being written; small ones leave behind it."""
    frames = []
    send = camera.node.send_output

    def count_and_send(*args):
        frames.append(camera._pools[pool.id].stats().frames)
        send(*args)

    camera.node.send_output = count_and_send
    small, large = np.arange(4), np.arange(1 << 18)
    pool = camera.register(large, name="large")
    camera.send_output("image", large, pool=pool)
    assert frames == [0] and pool.stats().frames == 1
    viewer.node.events = [camera.node.message()]
    event = viewer.next()
    assert event["pool"] == pool.id and np.array_equal(event["value"].numpy(), large)
    assert pool.readers() == [] or pool.readers() == ["viewer"]
    pool = camera.register(small, name="small")
    camera.send_output("image", small, pool=pool)
    assert frames == [0, 1]
    with pytest.raises(tensorbus.MismatchError):
        camera.send_output("image", large, pool=pool)
    assert len(frames) == 2


def test_what_dora_does_not_send_is_no_frame(camera):
    def refuse(*args: object) -> None:
        raise RuntimeError("no such output")

    pool = camera.register(np.empty(1 << 18), name="large")
    camera.node.send_output = refuse
    for _ in range(6):
        with pytest.raises(RuntimeError, match="no such output"):
            camera.send_output("image", np.empty(1 << 18), pool=pool)
    assert pool.stats().frames == 0


DIES = """
import sys
sys.path.insert(0, {folder!r})
from test_dora_bus_parts import FakeNode, attach
bus = attach(FakeNode(), "camera")
pool = bus.register(np.empty(4))
loan = pool.loan()
say(bytes(loan.promise()).hex())
hear()
"""


def test_a_promise_whose_sender_dies_is_a_lost_message(caplog):
    with kit.Script(DIES.format(folder=str(pathlib.Path(__file__).parent))) as camera:
        handle = bytes.fromhex(camera.hear())
        with attach(FakeNode(), "viewer") as viewer:
            node = viewer.node
            place = {tensorbus.dora.KEY: f"pool_camera_1 {viewer._place}"}
            node.send_output("image", handle, place)
            node.events = [node.message()]
            timer = kit.later(0.2, camera.kill)
            assert viewer.next() is None
            timer.join()
            assert viewer.dropped == {"image": 1}
        assert "a frame that was promised is lost: " in caplog.text
    sweep()
