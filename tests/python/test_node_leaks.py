"""Nothing is lost per message, per view or per error: resident memory stays where it is."""

import contextlib
import gc
import logging

import numpy as np
import pytest
from node_kit import node_pair

import kit
import tensorbus as tb

pa = pytest.importorskip("pyarrow")

ROUNDS = 4000  # 50 bytes lost in each are 200 KB


@pytest.fixture
def pair():
    with node_pair() as nodes:
        yield nodes


def looks(event):
    """Every way to look at a value."""
    value = event.value
    if value is None or isinstance(value, str):
        return
    for look in (lambda: value.numpy(), lambda: memoryview(value), lambda: value.__dlpack__(),
                 lambda: value.__arrow_c_array__(), lambda: value.__arrow_c_schema__(),
                 lambda: np.from_dlpack(value), lambda: value.arrow(), lambda: bytes(value),
                 lambda: value.shape, lambda: repr(value), lambda: value == b"x",
                 lambda: value.copy(), lambda: len(value)):  # fmt: skip
        with contextlib.suppress(Exception):
            look()


class Liar:
    def __arrow_c_array__(self, requested_schema=None):
        return 1, 2


class Broken:
    def __dlpack__(self, **options):
        raise RuntimeError

    def __dlpack_device__(self):
        return 1, 0


ODD = b"caf\xe9".decode("utf-8", "surrogateescape")
VALUES = {
    "odd text": ODD,
    "none": None, "bytes": b"abc", "text": "grüße", "array": np.arange(5),
    "strided": np.arange(9)[::2],
    "large": np.zeros(5000, np.int64), "scalar": np.float32(1), "memoryview": memoryview(b"abc"),
    "column": pa.array([1, 2]), "times": pa.array([1], pa.timestamp("us")),
    "texts": pa.array(["a", None]), "struct": pa.array([{"a": [1], "b": "x"}])[0:1],
    "dictionary": pa.array(["a", "b"]).dictionary_encode(), "table": pa.table({"a": [1]}),
    "chunks": pa.chunked_array([[1], [2]]),
}  # fmt: skip
REFUSED = {
    "int": 5, "list": [1], "liar": Liar(), "broken": Broken(), "object": object(),
    "surrogate": "\ud800",
    "objects": np.array([None]), "deep": np.zeros([1] * 9),
}  # fmt: skip
METADATA = {
    "all": {"a": 1, "b": 0.5, "c": True, "d": "text", "e": [1], "f": [0.5], "g": ["x"], "h": []},
    "odd": {"a": ODD, "b": [ODD, "x"]},
    "numpy": {"a": np.int64(1), "b": np.array([1, 2]), "c": [np.float32(1)]},
}
REFUSED_METADATA = {
    "none": {"a": "fine", "b": None}, "list": {"a": ["fine", b"x"]}, "large": {"a": [1, 2**64]},
    "odd": {"a": [ODD], ODD: 1}, "nul": {"a": ["fine", "a\0"]}, "key": {"a": 1, 5: 1},
    "surrogate": {"a": ["\udc80", "\ud800"]},
    "ours": {"tensorbus.value": "x"}, "long": {"x" * 300: 1}, "no dict": 5,
}  # fmt: skip


def check(action):
    """The action, often; then as much memory as before."""
    for _ in range(ROUNDS // 4):
        action()
    gc.collect()
    before = kit.resident_kib()
    for _ in range(ROUNDS):
        action()
    gc.collect()
    grown = kit.resident_kib() - before
    if grown > 100:  # the allocator's own moods: only what goes on is lost
        for _ in range(2 * ROUNDS):
            action()
        gc.collect()
        assert kit.resident_kib() - before < 2.5 * grown, f"{grown} KiB"


@pytest.mark.parametrize("name", VALUES)
def test_values(pair, name):
    source, sink = pair

    def action():
        source.send_output("out", VALUES[name])
        looks(sink.next(10))

    check(action)


def test_handles(pair):
    source, sink = pair
    pool = tb.Pool.register(tb.Spec(5, "i8"), bus=source.bus)

    def action():
        source.send_output("out", pool.write(np.arange(5)))
        event = sink.next(10)
        looks(event)
        event.hold()
        source.send_output("out", event.frame)
        sink.next(10).frame.hold().release()

    check(action)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_values(pair, name):
    def action():
        with contextlib.suppress(Exception):
            pair[0].send_output("out", REFUSED[name], {"a": 1})
            pytest.fail("it was sent")

    check(action)


@pytest.mark.parametrize("name", METADATA)
def test_metadata(pair, name):
    source, sink = pair

    def action():
        source.send_output("out", None, METADATA[name])
        assert len(sink.next(10).metadata) == len(METADATA[name])

    check(action)


@pytest.mark.parametrize("name", REFUSED_METADATA)
def test_refused_metadata(pair, name):
    def action():
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            pair[0].send_output("out", b"x", REFUSED_METADATA[name])
            pytest.fail("it was sent")

    check(action)


def test_other_errors(pair, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tensorbus"), "disabled", True)  # pytest keeps all lines
    monkeypatch.setattr(logging.getLogger("tensorbus.pool"), "disabled", True)
    source, sink = pair
    broken = tb._core._value_over(b"no Arrow array", "arrow")

    def action():
        for call in (lambda: source.send_output("nowhere", b"x"), lambda: source.close_output("no"),
                     lambda: sink.next(-1), lambda: sink.next(0), broken.arrow, broken.numpy,
                     lambda: len(broken), lambda: source.send_output("out", tb.Handle(bytes(48))),
                     lambda: tb.read("pool_nobody_1", bus=source.bus),
                     lambda: tb.read("x")):  # fmt: skip
            with contextlib.suppress(Exception):
                call()

    check(action)


def test_nodes(directory):
    """Nodes that come and go."""

    def action():
        with node_pair() as (source, sink):
            source.send_output("out", np.arange(50_000), {"a": 1})
            sink.next(10).numpy()

    for _ in range(10):
        action()
    gc.collect()
    before = kit.resident_kib()
    for _ in range(40):
        action()
    gc.collect()
    assert kit.resident_kib() - before < 3000
