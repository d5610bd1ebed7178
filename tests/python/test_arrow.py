"""Arrow arrays: every type comes back equal and without a copy. See test_arrow_refused.py, too."""

import contextlib
import datetime
import decimal
import gc
import random

import numpy as np
import pytest
from arrow_kit import check, receive
from node_kit import node_pair

import tensorbus as tb

pa = pytest.importorskip("pyarrow")


@pytest.fixture
def pair():
    with node_pair() as nodes:
        yield nodes


NUMBERS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
]
TIMES = [pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"),
         pa.time64("ns"),
         pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us", "Europe/Paris"),
         pa.timestamp("ns", "+01:00"), pa.duration("s"), pa.duration("ms"), pa.duration("us"),
         pa.duration("ns")]  # fmt: skip


def examples() -> dict[str, "pa.Array"]:
    """One array of each kind, long enough to be sliced anywhere."""
    n = 41
    text = [None if i % 5 == 3 else "äö"[: i % 3] * i for i in range(n)]
    words = [None if i % 7 == 2 else f"word {i}" for i in range(n)]
    lists = [None if i % 6 == 1 else list(range(i % 4)) for i in range(n)]
    ids = pa.array([i % 2 for i in range(n)], pa.int8())
    found = {
        "null": pa.nulls(n),
        "bool": pa.array([i % 3 == 0 for i in range(n)]),
        "bool with nulls": pa.array([None if i % 5 == 0 else i % 3 == 0 for i in range(n)]),
        "float16": pa.array([np.float16(i) for i in range(n)], pa.float16()),
        "text": pa.array(text),
        "large text": pa.array(text, pa.large_string()),
        "bytes": pa.array([b"\0" * i for i in range(n)], pa.binary()),
        "large bytes": pa.array([b"\0" * i for i in range(n)], pa.large_binary()),
        "fixed bytes": pa.array([None if i == 4 else bytes([i] * 3) for i in range(n)],
                                pa.binary(3)),
        "decimal128": pa.array([decimal.Decimal(i) / 4 for i in range(n)], pa.decimal128(9, 2)),
        "decimal256": pa.array([None if i == 2 else decimal.Decimal(i) for i in range(n)],
                               pa.decimal256(60, 3)),
        "interval": pa.array([(i, 2, 3) for i in range(n)], pa.month_day_nano_interval()),
        "list": pa.array(lists),
        "large list": pa.array(lists, pa.large_list(pa.int16())),
        "list of lists of text": pa.array([[[w, None], []] if w else None for w in words]),
        "fixed list": pa.array([None if i == 3 else [i, -i] for i in range(n)],
                               pa.list_(pa.float32(), 2)),
        "fixed list of nothing": pa.array([[]] * n, pa.list_(pa.int8(), 0)),
        "fixed list of text": pa.array([[w, "x"] for w in words], pa.list_(pa.string(), 2)),
        "struct": pa.array([None if i == 9 else {"a": i, "b": words[i]} for i in range(n)]),
        "struct of nothing": pa.array([{}] * n, pa.struct([])),
        "struct of structs": pa.array([{"a": {"b": lists[i]}, "c": None} for i in range(n)]),
        "map": pa.array([None if i == 3 else [(f"k{i}", i), ("", None)][: i % 3] for i in range(n)],
                        pa.map_(pa.string(), pa.int32())),
        "dictionary": pa.array(words).dictionary_encode(),
        "ordered dictionary": pa.DictionaryArray.from_arrays(
            pa.array([None if i == 1 else i % 4 for i in range(n)], pa.uint8()),
            pa.array(["p", "q", "r", "s"]), ordered=True),
        "dictionary of structs": pa.DictionaryArray.from_arrays(
            pa.array([i % 2 for i in range(n)], pa.int64()), pa.array([{"a": 1}, {"a": None}])),
        "sparse union": pa.UnionArray.from_sparse(ids, [pa.array(range(n)), pa.array(words)]),
        "dense union": pa.UnionArray.from_dense(
            ids, pa.array([i // 2 for i in range(n)], pa.int32()),
            [pa.array(range(n)), pa.array(words)]),
        "union of odd ids": pa.UnionArray.from_sparse(
            pa.array([5 if i % 2 else 127 for i in range(n)], pa.int8()),
            [pa.array(range(n)), pa.array(words)], type_codes=[5, 127]),
        "runs": pa.RunEndEncodedArray.from_arrays(
            pa.array([3, 7, 8, n], pa.int32()), pa.array(["a", None, "b", "c"])),
        "short runs": pa.RunEndEncodedArray.from_arrays(
            pa.array([1, n], pa.int16()), pa.array([1.5, 2.5])),
        "text view": pa.array([w and w * (i % 4) for i, w in enumerate(words)], pa.string_view()),
        "bytes view": pa.array([b"long enough to be elsewhere" * (i % 3) for i in range(n)],
                               pa.binary_view()),
        "list view": pa.array(lists, pa.list_view(pa.int64())),
        "large list view": pa.array(lists, pa.large_list_view(pa.int8())),
        "tensors": pa.FixedShapeTensorArray.from_numpy_ndarray(
            np.arange(n * 6, dtype=np.float32).reshape(n, 2, 3)),
        "batch": pa.RecordBatch.from_pydict({"x": range(n), "y": words}).to_struct_array(),
    }  # fmt: skip
    for kind in NUMBERS:
        found[str(kind)] = pa.array(range(n), kind)
        found[f"{kind} with nulls"] = pa.array([None if i % 9 == 4 else i for i in range(n)], kind)
    for kind in TIMES:
        plain = pa.int32() if kind.bit_width == 32 else pa.int64()
        unit = 86_400_000 if kind == pa.date64() else 1000  # a day; what Python's times can hold
        found[str(kind)] = pa.array([None if i == 7 else i * unit for i in range(n)], plain).cast(
            kind
        )
    return found


EXAMPLES = examples()


def test_every_type_comes_back(pair):
    for array in EXAMPLES.values():
        assert check(pair, array).to_pylist() == array.to_pylist()


SLICES = ((0, 0), (0, 1), (1, 7), (3, 20), (7, 9), (8, 16), (13, 28), (40, 1), (41, 0))


def test_slices_come_back(pair):
    for array in EXAMPLES.values():
        for start, length in SLICES:
            check(pair, array.slice(start, length))
        check(pair, array.slice(5, 30).slice(4, 11))


def test_empty_arrays_come_back(pair):
    for array in EXAMPLES.values():
        try:
            empty = pa.array([], array.type)  # as pyarrow makes one: offsets may be missing, say
        except NotImplementedError:
            empty = array.slice(0, 0)
        check(pair, empty)


def test_what_came_can_be_sent_on(pair):
    for array in EXAMPLES.values():
        first = receive(pair, array[3:20]).hold()
        check(pair, first.arrow())
        assert receive(pair, first.value).arrow().equals(array[3:20])  # as it is
        first.release()


def random_type(dice: random.Random, depth: int) -> "pa.DataType":
    leaf = [
        *NUMBERS,
        pa.bool_(),
        pa.string(),
        pa.large_binary(),
        pa.null(),
        pa.date32(),
        pa.timestamp("us"),
        pa.binary(2),
        pa.string_view(),
    ]
    if depth == 0 or dice.random() < 0.3:
        return dice.choice(leaf)
    inner = random_type(dice, depth - 1)
    return dice.choice([
        lambda: pa.list_(inner), lambda: pa.large_list(inner),
        lambda: pa.list_(inner, dice.randint(0, 3)),
        lambda: pa.list_view(inner), lambda: pa.map_(pa.string(), inner),
        lambda: pa.struct([pa.field("a", inner), pa.field("", random_type(dice, depth - 1))]),
        lambda: pa.struct([pa.field("a", inner, nullable=True, metadata={"k": "v", "": "\0"})]),
    ])()  # fmt: skip


def random_value(dice: random.Random, kind: "pa.DataType"):
    if pa.types.is_null(kind) or dice.random() < 0.15:
        return None
    if pa.types.is_fixed_size_list(kind):
        return [random_value(dice, kind.value_type) for _ in range(kind.list_size)]
    if pa.types.is_map(kind):
        return [(f"k{i}", random_value(dice, kind.item_type)) for i in range(dice.randint(0, 3))]
    if pa.types.is_nested(kind) and not pa.types.is_struct(kind):
        return [random_value(dice, kind.value_type) for _ in range(dice.randint(0, 4))]
    if pa.types.is_struct(kind):
        return {
            kind.field(i).name: random_value(dice, kind.field(i).type)
            for i in range(kind.num_fields)
        }
    if pa.types.is_boolean(kind):
        return dice.random() < 0.5
    if pa.types.is_fixed_size_binary(kind):
        return bytes(dice.randrange(256) for _ in range(kind.byte_width))
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return "ä" * dice.randint(0, 20)
    if pa.types.is_large_binary(kind):
        return b"\0x" * dice.randint(0, 9)
    if pa.types.is_timestamp(kind):
        return datetime.datetime(2020, 1, 1, microsecond=dice.randrange(10**6))
    return dice.randint(0, 100)


def random_array(dice: random.Random) -> "pa.Array":
    while True:
        kind = random_type(dice, 3)
        with contextlib.suppress(pa.ArrowNotImplementedError, pa.ArrowInvalid):
            return pa.array([random_value(dice, kind) for _ in range(dice.randint(0, 60))], kind)


def test_arrays_of_random_types_come_back(pair):
    for seed in range(300):
        dice = random.Random(seed)
        array = random_array(dice)
        for _ in range(3):
            check(pair, array)
            start = dice.randint(0, len(array))
            array = array.slice(start, dice.randint(0, len(array) - start))


def test_extension_types_and_metadata_come_back(pair):
    class Angle(pa.ExtensionType):
        def __init__(self):
            super().__init__(pa.float64(), "tests.angle")

        def __arrow_ext_serialize__(self):
            return b"degrees"

        @classmethod
        def __arrow_ext_deserialize__(cls, storage_type, serialized):
            assert serialized == b"degrees"
            return cls()

    pa.register_extension_type(Angle())
    try:
        array = pa.ExtensionArray.from_storage(Angle(), pa.array([1.0, 2.0]))
        assert type(check(pair, array).type) is Angle
        check(pair, pa.StructArray.from_arrays([array], ["angle"]))
    finally:
        pa.unregister_extension_type("tests.angle")


def test_a_record_batch_arrives_as_a_struct(pair):
    batch = pa.RecordBatch.from_pydict({"x": [1, 2], "y": ["a", None]}, metadata={"made": "here"})
    event = receive(pair, batch)
    again = pa.record_batch(event.value)
    assert again.equals(batch) and again.schema.metadata == {b"made": b"here"}


# ---- how much is copied and sent


def test_large_arrays_are_looked_at_where_they_are(pair):
    array = pa.array(np.arange(100_000))
    event = receive(pair, array)
    got = event.arrow()
    view = event.numpy()
    assert got.buffers()[1].address == view.ctypes.data and got.buffers()[0] is None
    texts = receive(pair, pa.array(["text"] * 50_000))
    first, second = texts.arrow(), pa.array(texts.value)
    assert first.buffers()[2].address == second.buffers()[2].address
    assert all(b.address % 64 == 0 for b in first.buffers() if b is not None)


def test_only_the_used_part_of_a_slice_is_sent(pair):
    whole = pa.array([f"text {i}" for i in range(100_000)])
    assert receive(pair, whole.slice(50_000, 10)).value.nbytes < 1000
    assert receive(pair, pa.array(np.arange(100_000)).slice(5, 10)).value.nbytes == 80
    nested = pa.array([[i] * 10 for i in range(10_000)])
    assert receive(pair, nested.slice(100, 10)).value.nbytes < 1500
    struct = pa.StructArray.from_arrays([whole, pa.array(range(100_000))], ["a", "b"])
    assert receive(pair, struct.slice(99_990)).value.nbytes < 1500


def test_numbers_are_tensors_for_everybody_else(pair):
    """A node that knows nothing of Arrow gets a tensor of one dimension."""
    value = receive(pair, pa.array([1, 2, 3], pa.int16())).value
    assert value.kind == "arrow" and value.dtype == "int16" and value.shape == (3,)
    assert list(value.numpy()) == [1, 2, 3] and value.nbytes == 6
    times = receive(pair, pa.array([1, 2], pa.timestamp("us"))).value
    assert list(times.numpy()) == [1, 2] and pa.array(times).type == pa.timestamp("us")
    assert receive(pair, pa.array([1, None, 3])[2:]).value.nbytes == 8  # no null is left in it


def test_values_of_other_kinds_as_arrow(pair):
    assert receive(pair, b"abc").arrow().equals(pa.array([97, 98, 99], pa.uint8()))
    assert (
        receive(pair, np.arange(3, dtype=np.float32))
        .arrow()
        .equals(pa.array([0, 1, 2], pa.float32()))
    )
    grid = np.arange(12, dtype=np.int32).reshape(2, 3, 2)
    got = receive(pair, grid).arrow()
    assert got.to_pylist() == grid.tolist() and got.type == pa.list_(pa.list_(pa.int32(), 2), 3)
    assert receive(pair, np.zeros((0, 3))).arrow().type == pa.list_(pa.float64(), 3)
    assert receive(pair, np.float64(2.5)).arrow().equals(pa.array([2.5]))


def test_numbers_that_arrow_lacks(pair):
    """Complex ones are lists of two parts, bfloat16 and float8 binary values; no booleans."""
    for dtype, part in ((np.complex64, pa.float32()), (np.complex128, pa.float64())):
        sent = np.array([[1 + 2j, 3], [4j, 5 - 1j]], dtype)
        got = receive(pair, sent).arrow()
        assert got.type == pa.list_(pa.list_(part, 2), 2)
        assert np.array_equal(got.flatten().flatten().to_numpy().view(dtype), sent.ravel())
    assert receive(pair, np.array(1 + 2j)).arrow().to_pylist() == [[1, 2]]
    assert len(receive(pair, np.zeros((0, 3), np.complex64)).arrow()) == 0
    with pytest.raises(tb.UnsupportedError, match="complex numbers with 8 dimensions"):
        receive(pair, np.zeros((1,) * 8, np.complex64)).arrow()
    with pytest.raises(tb.UnsupportedError, match=r"pyarrow.array\(x.numpy\(\).ravel\(\)\)"):
        receive(pair, np.array([True, False])).arrow()
    packed = pa.array(receive(pair, np.array([[True, False]])).numpy().ravel())
    assert packed.to_pylist() == [True, False]
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        sent = np.array([[1, 2.5, -3]], dtype)
        got = receive(pair, sent).arrow()
        assert got.type == pa.list_(pa.binary(sent.itemsize), 3)
        assert b"".join(got[0].as_py()) == sent.tobytes()


def test_an_arrow_value_as_numpy(pair):
    value = receive(pair, pa.array(["a", None])).value
    assert list(value.numpy()) == ["a", None] and list(np.asarray(value)) == ["a", None]
    assert value.dtype is None and value.shape == (2,) and len(value) == 2 and value.kind == "arrow"
    assert value[0].as_py() == "a" and [item.as_py() for item in value] == ["a", None]
    assert "Arrow array" in repr(value)
    for look in (lambda: memoryview(value), lambda: bytes(value), value.__dlpack__):
        with pytest.raises((BufferError, TypeError)):
            look()


# ---- how long it is there


@pytest.mark.parametrize("array", [
    pa.array([1, 2, 3]), pa.array(range(50_000)), pa.array(["a", None]),
    pa.array(["a" * 50] * 5000),
], ids=["small column", "large column", "small", "large"])  # fmt: skip
def test_an_export_keeps_the_event(pair, array):
    event = receive(pair, array)
    got = event.arrow()
    piece = got.slice(1, 1)
    del got
    pair[1].next(0)
    for n in range(8):
        receive(pair, pa.array(np.full(50_000, n)))
    assert piece.equals(array.slice(1, 1))
    assert event.value is not None
    del piece
    gc.collect()
    with pytest.raises(tb.InvalidError, match="turn is over"):
        event.value


def test_a_capsule_that_nobody_takes_keeps_nothing_for_ever(pair):
    event = receive(pair, pa.array(["a"]))
    capsules = event.value.__arrow_c_array__(requested_schema=None)
    schema = event.value.__arrow_c_schema__()
    pair[1].next(0)
    assert event.value is not None
    del capsules, schema
    gc.collect()
    with pytest.raises(tb.InvalidError):
        event.value


def test_the_schema_alone(pair):
    value = receive(pair, pa.array([{"a": "x"}])).value
    assert pa.field(value).type == pa.struct([("a", pa.string())])


def test_what_was_sent_is_given_back(pair):
    text = ["a" * 1000] * 100
    for make in (
        lambda: pa.array(text),
        lambda: pa.table({"a": text}),
        lambda: pa.array(range(9000)),
    ):
        before = pa.total_allocated_bytes()
        for _ in range(3):
            receive(pair, make())
        gc.collect()
        assert pa.total_allocated_bytes() == before


# ---- frames


def test_a_frame_is_an_array_too(pair):
    source, sink = pair
    pool = tb.Pool.register(tb.Spec((2, 3), "int32"), name="frames", bus=source.bus)
    pool.write(np.arange(6, dtype=np.int32).reshape(2, 3))
    source.send_output("out", pool.last)
    event = sink.next(10)
    array = event.arrow()
    assert array.to_pylist() == [[0, 1, 2], [3, 4, 5]] and array.equals(pa.array(event.frame))
    assert array.flatten().buffers()[1].address == event.numpy().ctypes.data
    assert pa.field(event.frame).type == pa.list_(pa.int32(), 3)
    sink.next(0)
    for n in range(8):
        pool.write(np.full((2, 3), n, np.int32), timeout=5)
    assert array.to_pylist() == [[0, 1, 2], [3, 4, 5]]  # it holds the frame
    with pytest.raises(tb.InvalidError):
        event.frame.arrow()
    frame = pool.read()
    released = pa.array(frame)
    frame.release()
    assert released[1].as_py() == [7, 7, 7]
    del array, released
    gc.collect()
    assert pool.stats().held == 0


def test_frames_of_numbers_that_arrow_lacks(pair):
    source, sink = pair
    pool = tb.Pool.register(tb.Spec(3, "bool"), bus=source.bus)
    pool.write(np.zeros(3, bool))
    with pytest.raises(tb.UnsupportedError, match="Arrow's booleans are bits"):
        pool.read().arrow()
    pool = tb.Pool.register(tb.Spec(2, "complex64"), bus=source.bus)
    pool.write(np.array([1 + 2j, 3], np.complex64))
    frame = pool.read()
    array = frame.arrow()
    assert array.to_pylist() == [[1, 2], [3, 0]]
    assert array.flatten().buffers()[1].address == frame.numpy().ctypes.data
