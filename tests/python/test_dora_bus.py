"""tensorbus.dora inside the dora that is installed: handles instead of arrays over its outputs."""

from __future__ import annotations

import os

import pytest
from dora_support import ROOT, Daemons, Place, tool

pytest.importorskip("dora", reason="dora-rs is not installed")


@pytest.fixture
def place(tmp_path):
    here = Place(tmp_path)
    files = set(os.listdir("/dev/shm"))
    yield here
    here.check_left()
    assert {name for name in set(os.listdir("/dev/shm")) - files if "tensorbus" in name} == set()


def node(name: str, role: str, source: str = "", deploy: str = "", **env: object) -> str:
    """One node of a flow of bus_node.py; `source` is what its input `image` or `ready` takes."""
    lines = [
        f"  - id: {name}",
        "    path: NODES/bus_node.py",
        f"    inputs: {{{source}}}",
        "    outputs: [image, ready]",
        f"    env: {{ROLE: {role}, " + ", ".join(f"{key}: {env[key]}" for key in env) + "}",
    ]
    return "\n".join(lines[:1] + ([f"    deploy: {deploy}"] if deploy else []) + lines[1:]) + "\n"


def pair(role_of_camera: str, role_of_viewer: str, **env: object) -> str:
    """A camera and a viewer that answers it."""
    return (
        "nodes:\n"
        + node("camera", role_of_camera, "ready: viewer/ready", **env)
        + node("viewer", role_of_viewer, "image: camera/image", **env)
    )


def run(place: Place, text: str, code: int | None = 0) -> str:
    return place.run(tool("dora"), "run", place.flow(text), code=code)


SEEN = {
    "keys": ["index", "name"],
    "uniform": True,
    "shape": [48, 64, 3],
    "dtype": "uint8",
    "writeable": False,
    "copies": 0,
    "dropped": 0,
}


def check_frames(records: list[dict], count: int) -> None:
    """Each frame once, whole, read-only, in the sender's memory."""
    frames = [record for record in records if "index" in record]
    assert [frame["index"] for frame in frames] == list(range(count))
    for frame in frames:
        assert frame["value"] == frame["index"]
        assert "direct" in frame["lane"].lower()
        assert {key: frame[key] for key in SEEN} == SEEN


def check_places(place: Place, viewer: str) -> None:
    """The bytes that the viewer saw lie where the camera wrote them: same file, same offset."""
    (camera,) = place.records("camera")
    frames = [record for record in place.records(viewer) if "index" in record]
    assert [frame["place"] for frame in frames] == camera["places"]
    assert all(inode > 0 for inode, _ in camera["places"])


def test_frames_travel_by_handle(place):
    run(place, pair("turns", "watch", FRAMES=20))
    check_frames(place.records("viewer"), 20)
    (camera,) = place.records("camera")
    assert camera["id"].startswith("pool_camera_")
    check_places(place, "viewer")


def test_frames_can_be_taken_direct(place):
    run(place, pair("direct", "direct_watch", FRAMES=20))
    *frames, last = place.records("viewer")
    assert [frame["index"] for frame in frames] == list(range(20))
    assert all(frame["uniform"] and not frame["writeable"] for frame in frames)
    # No message was sent; that the other has ended is dora's to tell, as ever.
    assert "INPUT" not in last["events"] and "STOP" in last["events"] and last["lost"] == {}
    check_places(place, "viewer")


def test_all_consumers_get_all_frames(place):
    answers = ", ".join(f"ready{number}: viewer{number}/ready" for number in (1, 2, 3))
    text = "nodes:\n" + node("camera", "turns", answers, FRAMES=20)
    for number in (1, 2, 3):
        text += node(f"viewer{number}", "watch", "image: camera/image")
    run(place, text)
    for number in (1, 2, 3):
        check_frames(place.records(f"viewer{number}"), 20)
        check_places(place, f"viewer{number}")


def test_overwritten_frames_are_counted_and_never_delivered(place):
    run(place, pair("burst", "slow", FRAMES=9, SLOTS=3, NAP=0.5))
    first, rest = place.records("viewer")
    assert first == {"first": 0}
    # Of three slots one was held until frame 1 came: at least the newest frame is there.
    assert rest["seen"] == sorted(rest["seen"]) and rest["seen"][-1] == 8
    assert rest["dropped"] == 8 - len(rest["seen"]) > 0
    assert rest["total"] == {"image": rest["dropped"]}


def test_enough_slots_lose_nothing(place):
    run(place, pair("burst", "slow", FRAMES=9, SLOTS=12, NAP=0.5))
    assert place.records("viewer")[1] == {"seen": list(range(1, 9)), "dropped": 0, "total": {}}


@pytest.mark.parametrize("way", ["return", "raise", "kill"])
def test_a_held_frame_outlives_its_producer(place, way):
    run(place, pair("end", "hold", END=way), code=None)
    assert place.records("camera") == [{"held": 1}]
    (record,) = place.records("viewer")
    assert record["before"] == record["after"] == 77 and record["same"]
    assert "STOP" in record["end"]
    if way == "kill":
        # What a killed process leaves are the names of its sockets.
        place.run(tool("tensorbus"), "clean")


def test_frames_in_flight_outlive_their_producer(place):
    # It ends right after the last of five frames, none of which the other has looked at.
    run(place, pair("burst", "late", FRAMES=5, SLOTS=8, NAP=0.8))
    assert place.records("viewer") == [{"seen": [0, 1, 2, 3, 4]}]


def test_arrays_and_other_messages(place):
    run(place, pair("mixed", "mixed_viewer"))
    int16 = {"shape": [2, 3], "dtype": "int16", "pool": "pool_camera_"}
    float32 = {"shape": [200, 300], "dtype": "float32", "pool": "pool_camera_"}
    *values, idle, end = place.records("viewer")
    assert values == [
        {"value": list(b"bytes")},
        int16,
        {"value": ["text"]},
        float32,
        float32 | {"shape": [100, 100]},
        float32 | {"shape": [], "dtype": "float64"},
        float32 | {"shape": [0, 3], "dtype": "uint8"},
        int16 | {"shape": [6]},
    ]
    assert idle == {"timeout": "ERROR", "poll": None, "drained": []}
    assert end == {"at_the_end": [], "poll": None}
    # One for each dtype, whatever the shapes.
    assert place.records("camera") == [{"pools": 4}]


def test_no_message_is_lost_or_overtaken_beside_a_timer(place):
    image = "image: {source: camera/image, queue_size: 200}"
    flow = (
        "nodes:\n"
        + node("camera", "numbers", "ready: viewer/ready", FRAMES=3000)
        + node("viewer", "numbers_watch", f"{image}, tick: dora/timer/millis/3")
    )
    run(place, flow.replace("ROLE", "TENSORBUS_DORA_SHORTCUT: '1', ROLE"))
    (viewer,) = place.records("viewer")
    assert viewer["seen"] == sorted(set(viewer["seen"])) and viewer["lost"] == {}
    # dora itself may lose one when the machine is busy; what takes the shortcut is never lost.
    missing = set(range(3000)) - set(viewer["seen"])
    assert {number for number in missing if number % 10 != 9} == set()
    assert viewer["ticks"] > 10
    (camera,) = place.records("camera")
    assert 2600 < camera["past"]["image"] <= 2700 and viewer["past"]["ready"] > 20


def test_a_frame_can_be_sent_on(place):
    text = (
        "nodes:\n"
        + node("camera", "turns", "ready: viewer/ready", FRAMES=8)
        + node("between", "forward", "image: camera/image")
        + node("viewer", "watch", "image: between/image")
    )
    run(place, text)
    check_frames(place.records("viewer"), 8)
    check_places(place, "viewer")


def test_a_dropped_key_frees_the_pool(place):
    run(place, pair("owner", "dropper"))
    assert place.records("camera") == [{"freed": True}]
    announced, found, newest, after, refused = place.records("viewer")
    assert announced["id"].startswith("pool_camera_")
    # The layout of dora's own descriptors, and ours in one field beside them.
    assert announced["fields"] == [
        "buffer_id", "dtype", "ipc_present", "is_pinned", "pinned_type", "ptr", "shape",
        "shared_memory_name", "size", "tensorbus",
    ]  # fmt: skip
    assert announced["tags"] == ["Bool", "Integer", "ListInt", "String"]
    assert found == {
        "dtype": "uint8", "shape": [48, 64, 3], "size": 9216, "path": "camera/image",
    }  # fmt: skip
    assert newest == {"newest": 1}
    assert after == {"still": True, "gone": None}
    assert "freed" in refused["error"] and announced["id"] in refused["error"]


def two_daemons(place: Place, **env: object) -> str:
    deploy = f"{{machine: %s, working_dir: {place.folder}}}"
    return (
        "nodes:\n"
        + node("camera", "turns", "ready: viewer/ready", deploy % "A", FRAMES=10)
        + node("viewer", "watch", "image: camera/image", deploy % "B", **env)
    )


def test_two_daemons_on_one_machine_share_memory(place):
    with Daemons(place, ["A", "B"]) as daemons:
        flow = place.flow(two_daemons(place))
        place.run(tool("dora"), "start", flow, "--attach", "--coordinator-port", daemons.port)
    check_frames(place.records("viewer"), 10)
    check_places(place, "viewer")


def test_an_unreachable_pool_says_why(place):
    other = place.folder / "elsewhere"
    other.mkdir(mode=0o700)
    with Daemons(place, ["A", "B"], B={"TENSORBUS_DIR": str(other)}) as daemons:
        flow = place.flow(two_daemons(place))
        output = place.run(
            tool("dora"), "start", flow, "--attach", "--coordinator-port", daemons.port, code=None
        )
    assert "UnreachableError" in output
    assert f"reached through {place.bus}, this node looks in {other}" in output


def example(place: Place, name: str, frames: int = 5) -> str:
    """An example's flow, with fewer frames, from where its nodes are."""
    folder = ROOT / "examples" / "dora"
    text = (folder / name).read_text().replace("message_num: 100", f"message_num: {frames}")
    return text.replace("path: ", f"path: {folder}/").replace(f"{folder}/$PWD", str(ROOT))


def test_example_cpu2cpu(place):
    output = run(place, example(place, "cpu2cpu.yml"))
    assert "Sender preview: [0, 1, 2, 3, 4]" in output
    assert "Receiver preview: [0, 1, 2, 3, 4]" in output
    assert "Lane: direct, copies: 1" in output
    assert "Average transfer throughput: " in output


def test_example_camera(place):
    output = run(place, "env: {message_num: 30}\n" + example(place, "camera.yml"))
    assert "camera: 30 frames, 6.2 MB each" in output
    # Each node looks at what it can; a busy machine loses some, and none is wrong.
    (line,) = [line for line in output.splitlines() if "viewer: viewer: " in line]
    images, boxes, lost = [int(word) for word in line.replace(",", "").split() if word.isdigit()]
    assert images > 0 and boxes > 0, line


def test_example_two_machines(place):
    with Daemons(place, ["A", "B"]) as daemons:
        flow = place.flow(example(place, "two_machines.yml"))
        output = place.run(
            tool("dora"), "start", flow, "--attach", "--coordinator-port", daemons.port
        )
    assert "Lane: direct, copies: 1" in output
