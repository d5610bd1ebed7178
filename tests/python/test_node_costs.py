"""What a message costs, counted: the library copies a value once and nobody else does, and it is
looked at where it is."""

import importlib.util
import os
import struct

import pytest
from node_kit import Node
from test_costs import witness  # noqa: F401

LARGE = 6_220_800
MESSAGES = 10
LARGE_OUT_OF, SEGMENTS = 11, 21  # of enum counter in copy_count.c

VALUES = {
    "handle": "pool.write(source)",
    "loan": "filled()",
    "array": "source",
    "strided": "wide[:, ::2]",
    "bytes": "raw",
    "column": "pa.array(source.ravel())",
    "texts": "texts",
    "nested": "nested",
    "slice": "whole[1000:2000]",
}
SOURCE = """
import pyarrow as pa
source = np.full((1080, 1920, 3), 7, np.uint8)
wide = np.full((1080, 2 * 5760), 7, np.uint8)
raw = source.tobytes()
texts = pa.array(["seven " * 10] * 90_000)
nested = pa.array([{"a": list(range(10)), "b": "seven", "c": None}] * 60_000)
whole = pa.array(range(800_000))
node = tb.Node()
pool = tb.Pool.register(tb.Spec((1080, 1920, 3), "u1"), name="frames")
def filled():
    with pool.loan(10) as image:
        image.fill(7)
    return pool.last
def copied():
    file = [f for f in os.listdir(FOLDER) if f.startswith("source.") and f.endswith(".count")][0]
    return int(np.fromfile(os.path.join(FOLDER, file), "<u8")[4])
value = VALUE if WHAT not in ("handle", "loan") else None
before = copied()
for n in range(MESSAGES):
    node.send_output("out", VALUE if value is None else value, {"n": n}, timeout=20)
    node.next()
say(copied() - before)
"""
SINK = """
node = tb.Node()
total = 0
for event in node:
    if event.type == "INPUT":
        if WHAT in ("texts", "nested", "column", "slice"):
            array = event.arrow()
            total += len(array) + (array[-1].as_py() == None)
            del array
        else:
            view = event.numpy()
            assert np.shares_memory(view, np.asarray(event.value))
            total += int(view.ravel()[::100_000].sum())
            del view
        node.send_output("back")
"""


@pytest.mark.skipif(not importlib.util.find_spec("pyarrow"), reason="pyarrow is not installed")
@pytest.mark.parametrize("name", VALUES)
def test_copies(witness, tmp_path, directory, name):  # noqa: F811
    env = {"LD_PRELOAD": str(witness)}

    def program(text):
        for key, word in {"WHAT": repr(name), "VALUE": VALUES[name], "MESSAGES": MESSAGES,
                          "FOLDER": repr(str(tmp_path))}.items():  # fmt: skip
            text = text.replace(key, str(word))
        return text

    os.environ["COPY_COUNT"] = str(tmp_path / "sink")
    try:
        os.environ |= env
        with Node(
            program(SINK), "sink", "in=source/out;policy=backpressure", "back=source/next"
        ) as sink:
            os.environ["COPY_COUNT"] = str(tmp_path / "source")
            with Node(program(SOURCE), "source", "next=sink/back", "out=sink/in") as source:
                copied = int(source.hear())
                source.end()
            assert sink.end() == ("", "")
    finally:
        del os.environ["COPY_COUNT"], os.environ["LD_PRELOAD"]
    (file,) = tmp_path.glob("sink.*.count")
    counters = struct.unpack("<64Q", file.read_bytes())
    assert counters[SEGMENTS] >= 1  # it saw the pools
    assert counters[LARGE_OUT_OF] == 0  # the receiver looks at what is there
    # The library's one copy into the message or the slot goes past the cache and is not seen; every
    # other one would be.
    assert copied < 100_000 * MESSAGES, f"{copied / MESSAGES / LARGE} copies too many"
