"""The pool example's nodes in Python, all five scenarios: the lines that each must print and log,
no other, exit code 0, nothing left; also beside the nodes in C."""

import pathlib
import re

import pytest
from dora_support import ROOT, Place, tool

FLOWS = ROOT / "examples" / "pool"

ID = r"pool_sender_node_[0-9]+"
REASON = r"failed - reason: pool does not exist\. Operation aborted\."
MISUSE = rf"Attempt to %s memory pool \[{ID}\] {REASON}"
CLEANUP = [
    r"Detected 1 unreleased memory pool, releasing\.\.\.",
    r"Successfully released 1 unreleased memory pools!",
]
SCENARIOS = {
    "cpu2cpu": (12, []),
    "duplicate_free": (2, [MISUSE % "release"]),
    "read_after_free": (2, [MISUSE % "read"]),
    "write_after_free": (2, [MISUSE % "write"]),
    "auto_cleanup": (2, CLEANUP),
}


@pytest.fixture
def place(tmp_path: pathlib.Path):
    here = Place(tmp_path)
    yield here
    here.check_left()


def run(
    place: Place,
    name: str,
    paths: dict[str, pathlib.Path],
    code: int = 0,
    env: dict[str, str] | None = None,
    **settings: object,
) -> str:
    text = (FLOWS / f"python_{name}.yml").read_text()
    for node in ("sender", "receiver"):
        path = paths.get(node, FLOWS / f"python_{node}.py")
        text, count = re.subn(rf"path: python_{node}\.py", f"path: {path}", text)
        assert count == 1
    for key, value in settings.items():
        text, count = re.subn(rf"(?m)^(  {key}:).*$", rf"\1 {value}", text)
        assert count == 1, key
    return place.run(tool("tensorbus"), "run", place.flow(text), code=code, **(env or {}))


def check_output(output: str, frames: int, wanted: list[str]) -> None:
    lines = [line.split(" | ", 1)[-1] for line in output.splitlines()]
    said = [line for line in lines if re.search("memory pool|warning|rror|Traceback|assert", line)]
    assert len(said) == len(wanted), output
    assert all(re.search(pattern + "$", line) for pattern, line in zip(wanted, said)), output
    for pattern in (
        r"Sender preview: \[0, 1, 2, 3, 4, \.\.\.\]",
        r"Receiver preview: \[0, 1, 2, 3, 4, \.\.\.\]",
        rf"{frames} of {frames} frames",
        r"Average transfer throughput: [1-9][0-9]*\.[0-9] MB/s",
    ):
        assert sum(bool(re.fullmatch(pattern, line)) for line in lines) == 1, (
            pattern + "\n" + output
        )


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(place, name):
    frames, wanted = SCENARIOS[name]
    check_output(run(place, name, {}, message_num=frames), frames, wanted)


@pytest.mark.parametrize("name", ["cpu2cpu", "read_after_free", "write_after_free"])
@pytest.mark.parametrize("node", ["sender", "receiver"])
def test_beside_a_node_in_c(place, name, node):
    program = pathlib.Path(tool("tensorbus")).parents[1] / "examples" / "pool" / f"{node}_node"
    if not program.exists():
        pytest.skip("the examples in C are not built beside this `tensorbus`")
    frames, wanted = SCENARIOS[name]
    output = run(place, name, {node: program}, message_num=frames)
    check_output(output.replace("tensorbus: warning: ", ""), frames, wanted)


def test_a_sender_that_is_killed_ends_the_receiver(place):
    """Which says so, with a code of its own; the runner cleans up."""
    killed = place.folder / "killed.py"
    killed.write_text(
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(FLOWS)!r})\n"
        "import tensorbus as tb\n"
        "write, count = tb.write, []\n"
        "def killing(*words, **more):\n"
        "    count.append(1)\n"
        "    if len(count) == 4:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return write(*words, **more)\n"
        "tb.write = killing\n"
        "import python_sender\n"
        "python_sender.main()\n"
    )
    output = run(place, "cpu2cpu", {"sender": killed}, code=1, message_num=12)
    assert "ended after 3 of 12 frames" in output and "throughput" not in output


@pytest.mark.parametrize("key, value, said", [
    ("sender_device", "gpu", "use cpu, cuda or cuda:0"), ("receiver_device", "cuda:x", "use cpu"),
    ("message_num", "many", "use a number"),
    ("memory_pool_scenario", "chaos", "use throughput"),
    ("cross_machine", "true", "cannot be reached"),
])  # fmt: skip
def test_settings_that_it_cannot_do(place, key, value, said):
    output = run(place, "cpu2cpu", {}, code=1, **{key: value})
    assert f"{key} is `{value}`" in output and said in output, output
