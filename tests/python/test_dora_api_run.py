"""Nodes written for dora alone: the same under stock dora and under `tensorbus run --dora-api`."""

from __future__ import annotations

import json

import pytest
from dora_support import ROOT, Place, tool

pytest.importorskip("pyarrow", reason="pyarrow is not installed")


@pytest.fixture
def place(tmp_path):
    here = Place(tmp_path)
    yield here
    here.check_left()


SPEECH = """
nodes:
  - id: speaker
    path: NODES/speaker.py
    inputs: {heard: recorder/heard}
    outputs: [data]
  - id: recorder
    path: NODES/recorder.py
    inputs:
      data: {source: speaker/data, queue_size: 20}
    outputs: [heard]
"""


def here(place: Place, flow: str, code: int | None = 0, **env: str) -> str:
    """Run under our runner."""
    return place.run(tool("tensorbus"), "run", "--dora-api", place.flow(flow), code=code, **env)


def there(place: Place, flow: str, code: int | None = 0) -> str:
    """Run under stock dora."""
    return place.run(tool("dora"), "run", place.flow(flow), code=code)


def test_same_events_values_and_metadata_as_in_dora(place):
    pytest.importorskip("dora", reason="dora-rs is not installed")
    there(place, SPEECH)
    stock = {node: place.records(node) for node in ("speaker", "recorder")}
    here(place, SPEECH)
    ours = {node: place.records(node) for node in ("speaker", "recorder")}
    assert len(stock["recorder"]) > 60 and len(stock["speaker"]) > 90
    for node in ("speaker", "recorder"):
        for index, (want, got) in enumerate(zip(stock[node], ours[node])):
            assert got == want, f"{node}, line {index + 1}"
        assert len(ours[node]) == len(stock[node])


TICKS = """
nodes:
  - id: recorder
    path: NODES/ticks.py
    inputs: {tick: dora/timer/millis/20}
"""


def test_same_ticks_as_in_dora(place):
    pytest.importorskip("dora", reason="dora-rs is not installed")
    there(place, TICKS)
    stock = place.records("ticks")
    here(place, TICKS)
    assert place.records("ticks") == stock
    assert stock[0]["event"]["value"] == {
        "class": "NullArray", "items": "[]", "length": 0, "nulls": 0, "type": "null",
    }  # fmt: skip


def test_same_restarts_as_in_dora(place):
    flow = """
nodes:
  - id: reborn
    path: NODES/reborn.py
    restart_policy: on-failure
    inputs: {tick: dora/timer/secs/3600}  # without inputs dora restarts nothing
"""
    for runner in (there, here):
        if runner is there:
            pytest.importorskip("dora", reason="dora-rs is not installed")
        runner(place, flow)
        for number in (0, 1):
            assert place.records(f"reborn{number}") == [{"is_restart": bool(number)}]
        (place.record / "reborn1.jsonl").unlink()


SCENARIOS = {
    "cpu2cpu": [],
    "duplicate_free": ["Attempt to release memory pool"],
    "read_after_free": ["Attempt to read memory pool", "Read after free raised RuntimeError"],
    "write_after_free": ["Attempt to write memory pool"],
    "auto_cleanup": [
        "Detected 1 unreleased memory pool, releasing...",
        "Successfully released 1 unreleased memory pools!",
    ],
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_pool_example(place, scenario):
    flow = ROOT / "examples" / "pool" / f"dora_{scenario}.yml"
    text = flow.read_text().replace("message_num: 100", "message_num: 12")
    text = text.replace("path: dora_", f"path: {flow.parent}/dora_")
    output = here(place, text)
    assert "Sender preview: [0, 1, 2, 3, 4]" in output
    assert "Receiver preview: [0, 1, 2, 3, 4]" in output
    assert "Average transfer throughput: " in output
    warnings = [line for line in output.splitlines() if "Attempt to" in line]
    for words in SCENARIOS[scenario]:
        assert words in output
    assert len(warnings) == sum("Attempt to" in words for words in SCENARIOS[scenario]), warnings
    assert ("unreleased" in output) == (scenario == "auto_cleanup")


def pool_flow(role: str, **env: object) -> str:
    env_text = ", ".join(f"{key}: {value}" for key, value in {"ROLE": role, **env}.items())
    return f"""
nodes:
  - id: sender
    path: NODES/pool_sender.py
    inputs: {{answer: receiver/answer}}
    outputs: [data]
    env: {{{env_text}}}
  - id: receiver
    path: NODES/pool_receiver.py
    inputs: {{data: sender/data}}
    outputs: [answer]
    env: {{{env_text}}}
"""


def test_answering_while_holding_does_not_hang_and_frames_stay(place):
    here(place, pool_flow("hoard", FRAMES=12))
    (record,) = place.records("receiver")
    # Every tensor was kept, and none has changed.
    assert record == {"kept": list(range(12))}


def test_live_changes_under_its_holder(place):
    here(place, pool_flow("live", FRAMES=5))
    (record,) = place.records("receiver")
    assert record == {"first": 0, "same_pointer": True, "later": 4}


def test_pool_calls(place):
    here(place, pool_flow("calls"), CUDA_VISIBLE_DEVICES="")
    sender = place.records("sender")
    for record in sender:  # what the driver's absence or its lack of a device is called follows
        if record.get("call") == "device":
            record["text"] = record["text"][: record["text"].index("`cuda:0`: ") + 10]
    assert sender == [
        {"call": key, "error": "RuntimeError", "text": text}
        for key, text in [
            ("no ptr", "missing ptr"),
            ("no size", "missing size"),
            ("no dtype", "missing dtype"),
            ("no shape", "missing shape"),
            ("no device", "missing device"),
            ("null", "Invalid source pointer (NULL)"),
            ("no bytes", "Invalid size: 0 bytes"),
            ("machine", "register_tensor_pool: machine='B': pools on other machines are not built "
             "yet; without `machine` every node of this machine can read the pool"),
            ("device", "register_tensor_pool: failed to set up the GPU pool of a `cpu` tensor for "
             "receiver `cuda:0`: "),
            ("name", "invalid tensor pool name `x`: must be non-empty, start with `dora_pool_` "
             "(the dora-owned /dev/shm namespace), without '/' or '..', and at most 128 chars"),
            ("name twice", "failed to create pool shared memory `dora_pool_x` (name collision with "
             "another node or leftover segment)"),
            ("id", "tensor_pool_id must be a string or binary array, got int64"),
        ]
    ] + [
        {"id": ["pool_sender_", True]},
        {"read": {"dtype": "torch.int32", "shape": [2, 3], "size": 24, "device": "cpu"}},
        {"short write": [100, 101, 2, 3, 4, 5]},
        {"too long": [100, 101, 2, 3, 4, 5]},
        {"own free": None},
    ]  # fmt: skip
    first, second = place.records("receiver")
    assert first == {"values": [0, 1, 2, 3, 4, 5], "dtype": "torch.int32", "shape": [2, 3]}
    assert second["error"] == "RuntimeError" and "does not exist" in second["text"]


def test_extension_channel(place):
    """The same story, told by the same nodes under stock dora."""
    pytest.importorskip("dora", reason="dora-rs is not installed")
    flow = """
nodes:
  - id: a
    path: NODES/extension_a.py
    inputs: {word: b/word}
    outputs: [word]
  - id: b
    path: NODES/extension_b.py
    inputs: {word: a/word}
    outputs: [word]
"""
    there(place, flow)
    stock = {node: place.records(node) for node in "ab"}
    here(place, flow)
    ours = {node: place.records(node) for node in "ab"}
    assert ours == stock
    assert json.dumps(stock["a"]).count("error") >= 2


def test_stop_reaches_a_node(place):
    here(
        place,
        """
nodes:
  - id: waits
    path: NODES/waits.py
    inputs: {tick: dora/timer/secs/3600}
    outputs: [here]
  - id: fails
    path: NODES/fails.py
    inputs: {here: waits/here}
""",
        code=1,
    )
    assert place.records("waits") == [
        {"event": {"id": "MANUAL", "kind": "dora", "type": "STOP"}},
        {"after": None},
    ]
