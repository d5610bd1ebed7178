"""What Python nodes and others see of each other: the table of marks in docs/flows.md. The other
node is one through the C interface, by ctypes."""

import numpy as np
import pytest
from node_kit import Node, open_node

import tensorbus as tb

pa = pytest.importorskip("pyarrow")

# A node in C: sends one text with the mark, then tells what it gets.
C_NODE = """
import ctypes as c, pathlib
maps = pathlib.Path("/proc/self/maps").read_text()
lib = c.CDLL(next(l.split()[-1] for l in maps.splitlines() if "libtensorbus.so" in l))

class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device", c.c_int32), ("dtype", c.c_uint32),
                ("ndim", c.c_int32), ("reserved", c.c_int32), ("shape", c.c_int64 * 8),
                ("strides", c.c_void_p)]

class Value(c.Structure):
    _fields_ = [("kind", c.c_int), ("reserved", c.c_uint32), ("data", c.c_char_p),
                ("bytes", c.c_size_t), ("tensor", c.c_void_p), ("handle", c.c_void_p)]

class MetaValue(c.Structure):
    _fields_ = [("type", c.c_int), ("boolean", c.c_int32), ("integer", c.c_int64),
                ("real", c.c_double), ("string", c.c_char_p), ("rest", c.c_size_t * 5)]

lib.tb_event_tensor.restype = c.POINTER(Tensor)
lib.tb_event_metadata.restype = c.c_void_p
lib.tb_node_next.argtypes = [c.c_void_p, c.c_int64, c.c_void_p]
lib.tb_node_send.argtypes = [c.c_void_p, c.c_char_p, Value, c.c_void_p, c.c_int64]
lib.tb_metadata_get.argtypes = [c.c_void_p, c.c_char_p, c.c_void_p]
lib.tb_metadata_set_string.argtypes = [c.c_void_p, c.c_char_p, c.c_char_p]
for name in ("tb_event_kind", "tb_event_get_type", "tb_event_tensor", "tb_event_metadata",
             "tb_event_release", "tb_node_close"):
    getattr(lib, name).argtypes = [c.c_void_p]

node, event, metadata = c.c_void_p(), c.c_void_p(), c.c_void_p()
assert lib.tb_node_open(c.byref(node)) == 0
assert lib.tb_metadata_create(c.byref(metadata)) == 0
assert lib.tb_node_send(node, b"out", Value(1, 0, b"of C", 4), None, 0) == 0
for mark in (b"str", b"future"):
    assert lib.tb_metadata_set_string(metadata, b"tensorbus.value", mark) == 0
    text = Value(1, 0, b"gr\\xc3\\xbc\\xc3\\x9fe", 7)
    assert lib.tb_node_send(node, b"out", text, metadata, 0) == 0
while lib.tb_node_next(node, -1, c.byref(event)) == 0:
    if lib.tb_event_get_type(event) == 1:
        t, mark = lib.tb_event_tensor(event).contents, MetaValue()
        metadata = lib.tb_event_metadata(event)
        found = lib.tb_metadata_get(metadata, b"tensorbus.value", c.byref(mark)) == 0
        is_bytes = t.ndim == 1 and t.dtype == 0x10801 and t.data
        data = c.string_at(t.data, t.shape[0]) if is_bytes else b""
        say(lib.tb_event_kind(event), hex(t.dtype), t.shape[:t.ndim], data[:8],
            mark.string.decode() if found else "-")
    lib.tb_event_release(event)
lib.tb_node_close(node)
"""


def test_the_table_of_marks(directory):
    with Node(C_NODE, "other", "in=here/out;queue=100", "out=here/in") as other:
        with open_node("here", "in=other/out", "out=other/in") as node:
            first = node.next(20)
            assert first.value.kind == "bytes" and first.value == b"of C"
            assert node.next(20).value == "grüße"
            unknown = node.next(20)
            assert unknown.value == "grüße".encode() and unknown.metadata == {}
            pool = tb.Pool.register(tb.Spec(3, "int16"))
            handle = pool.write(np.arange(3, dtype=np.int16))
            for value in (
                None, b"", b"bytes", "text", np.arange(6, dtype=np.float32).reshape(2, 3).T, handle,
                pa.array([1, 2], pa.int16()), pa.array([1, 2], pa.timestamp("us", "UTC")),
                pa.array(["a", None]), pa.array([1, None, 3])[2:],
            ):  # fmt: skip
                node.send_output("out", value)
            node.close_output("out")
            out, err = other.end()
    assert err == "" and out.splitlines() == [
        "0 0x10801 [0] b'' -",
        "1 0x10801 [0] b'' -",
        "1 0x10801 [5] b'bytes' -",
        "1 0x10801 [4] b'text' str",
        "2 0x12002 [3, 2] b'' -",
        "3 0x11000 [3] b'' -",
        "2 0x11000 [2] b'' arrow:s",
        "2 0x14000 [2] b'' arrow:tsu:UTC",
        "1 0x10801 [384] b'TBARROW1' arrow",
        "2 0x14000 [1] b'' arrow:l",
    ]
