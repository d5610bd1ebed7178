"""Arrow arrays of several chunks, what cannot be sent, and what a broken sender may send."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
from arrow_kit import check, receive
from node_kit import node_pair

import tensorbus as tb

pa = pytest.importorskip("pyarrow")

CORPUS = pathlib.Path(__file__).parents[1] / "fuzz" / "corpus" / "arrow"


@pytest.fixture
def pair():
    with node_pair() as nodes:
        yield nodes


class Streams:
    """An object of a library that has no word for making one piece of several chunks."""

    def __init__(self, of):
        self.of = of

    def __arrow_c_stream__(self, requested_schema=None):
        return self.of.__arrow_c_stream__(requested_schema)


class Rechunks(Streams):
    """As polars' Series."""

    def rechunk(self):
        return Streams(pa.chunked_array([self.of.combine_chunks()]))


class Keeps(Streams):
    """Several chunks, whatever is asked."""

    def combine_chunks(self):
        return self


class Fails(Streams):
    def combine_chunks(self):
        raise OverflowError("too long")


def test_several_chunks_become_one(pair):
    chunks = pa.chunked_array([["a", None], [], ["b"]])
    assert receive(pair, chunks).arrow().to_pylist() == ["a", None, "b"]
    assert receive(pair, Rechunks(chunks)).arrow().to_pylist() == ["a", None, "b"]
    numbers = pa.chunked_array([np.arange(5), np.arange(5, 9)])
    assert receive(pair, numbers).value.numpy().tolist() == list(range(9))
    none = receive(pair, pa.chunked_array([], pa.int8())).arrow()
    assert none.type == pa.int8() and len(none) == 0
    table = pa.table({"a": chunks})
    assert pa.record_batch(receive(pair, table).value).to_pydict() == table.to_pydict()


def test_tables_and_chunks_are_one_array_or_none(pair):
    for several in (Streams, Keeps):
        with pytest.raises(TypeError, match="several chunks.*combine_chunks"):
            receive(pair, several(pa.chunked_array([[1], [2]])))
    with pytest.raises(OverflowError, match="too long"):
        receive(pair, Fails(pa.chunked_array([[1], [2]])))
    with pytest.raises(TypeError, match="no chunks"):
        receive(pair, Streams(pa.chunked_array([], pa.int8())))
    assert receive(pair, pa.chunked_array([["a", None]])).arrow().equals(pa.array(["a", None]))
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    assert pa.record_batch(receive(pair, table).value).to_pydict() == table.to_pydict()

    class Broken:
        def __init__(self, stream):
            self.stream = stream

        def __arrow_c_stream__(self, requested_schema=None):
            return self.stream

    def fails():
        yield pa.record_batch({"a": [1]})
        raise RuntimeError("no more today")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), fails())
    with pytest.raises(ValueError, match="no more today"):
        receive(pair, Broken(reader.__arrow_c_stream__()))
    for stream in (5, None, ()):
        with pytest.raises((TypeError, ValueError)):
            receive(pair, Broken(stream))
    used = table.__arrow_c_stream__()
    pa.RecordBatchReader._import_from_c_capsule(used).read_all()
    with pytest.raises((TypeError, ValueError)):
        receive(pair, Broken(used))


def test_objects_that_lie(pair):
    class Liar:
        def __init__(self, answer):
            self.answer = answer

        def __arrow_c_array__(self, requested_schema=None):
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    capsules = pa.array([1]).__arrow_c_array__()
    for answer, error in (
        (5, TypeError), ((), TypeError), ((1, 2), ValueError), (capsules[::-1], ValueError),
        (KeyError("mine"), KeyError),
    ):  # fmt: skip
        with pytest.raises(error):
            receive(pair, Liar(answer))
    used = pa.array([1]).__arrow_c_array__()
    pa.Array._import_from_c_capsule(*used)
    with pytest.raises(tb.InvalidError, match="released"):
        receive(pair, Liar(used))
    assert receive(pair, Liar(capsules)).arrow().equals(pa.array([1]))


def test_what_is_nested_too_deep_is_an_error(pair):
    deep = pa.array([1])
    for _ in range(63):
        deep = pa.StructArray.from_arrays([deep], ["x"])
    check(pair, deep)  # as much as pyarrow takes
    for _ in range(2):
        deep = pa.StructArray.from_arrays([deep], ["x"])
    with pytest.raises(tb.UnsupportedError, match="nested more than 64"):
        receive(pair, deep)


def test_an_unknown_type_is_an_error_that_names_it(pair):
    """As a library of the future may export it."""
    import ctypes

    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    schema, array = pa.array([1]).__arrow_c_array__()
    format_at = ctypes.cast(get(schema, b"arrow_schema"), ctypes.POINTER(ctypes.c_char_p))
    kept, format_at[0] = format_at[0], b"+future"

    class Future:
        def __arrow_c_array__(self, requested_schema=None):
            return schema, array

    with pytest.raises(tb.UnsupportedError, match="`[+]future` cannot be sent"):
        receive(pair, Future())
    format_at[0] = kept


# ---- what a broken sender may send

HOSTILE = """
import pathlib, random, sys
import pyarrow as pa, tensorbus as tb
from tensorbus import _core

dice = random.Random(int(sys.argv[2]))
files = sorted(pathlib.Path(sys.argv[1]).iterdir())
taken = refused = 0
for _ in range(int(sys.argv[3])):
    data = bytearray(dice.choice(files).read_bytes())
    for _ in range(dice.randint(0, 4)):
        if data:
            # Mostly in the header, where sizes and offsets are.
            at = dice.randrange(min(len(data), dice.choice((32, 200, 1 << 30))))
            data[at] = dice.choice((0, 1, 0x7f, 0x80, 0xff, dice.randrange(256)))
    if dice.random() < 0.1:
        del data[dice.randrange(len(data) + 1):]
    value = _core._value_over(bytes(data), "arrow")
    try:
        array = pa.array(value)
    except (tb.CorruptError, tb.UnsupportedError):
        refused += 1
        continue
    except (pa.ArrowException, UnicodeDecodeError, ValueError, TypeError, OverflowError):
        continue  # pyarrow's own opinion of a type
    taken += 1
    if len(array) > 100_000:
        continue  # of nothing: honest, but slow
    for look in (array.to_pylist, lambda: str(array), lambda: array.equals(array), array.unique,
                 lambda: array[::-1].to_pylist()):
        try:
            look()
        except (pa.ArrowException, UnicodeDecodeError, ValueError, TypeError, OverflowError,
                KeyError, AttributeError):
            pass
print(taken, refused)
"""


@pytest.mark.parametrize("seed", range(4))
def test_broken_messages_are_errors(seed):
    """In a process of its own: a crash is its end, not ours."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", HOSTILE, str(CORPUS), str(seed), "1500"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    taken, refused = map(int, done.stdout.split())
    assert taken > 200 and refused > 200


def test_a_mark_that_does_not_fit_means_nothing():
    for mark in ("", "future", "arrow:", "arrow:l", "str", "arrow\n"):
        value = tb._core._value_over(b"12345678", mark)
        assert value.kind == "bytes" and value == b"12345678"
    value = tb._core._value_over(b"12345678", "arrow")
    assert value.kind == "arrow"
    for look in (lambda: len(value), lambda: value.shape, value.arrow, value.__arrow_c_schema__):
        with pytest.raises(tb.CorruptError, match="malformed"):
            look()
