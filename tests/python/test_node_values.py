"""Every kind of value that a node can send, and every way to look at what arrives."""

import array
import ctypes
import gc
import io
import mmap

import numpy as np
import pytest
from node_kit import node_pair

import kit
import tensorbus as tb

LARGE = 50_000  # bytes: above what a message carries itself


@pytest.fixture
def pair():
    with node_pair() as nodes:
        yield nodes


def through(pair, value, metadata=None):
    source, sink = pair
    source.send_output("out", value, metadata)
    event = sink.next(10)
    assert event.type == "INPUT" and event.id == "in" and event.dropped == 0
    return event


# ---- nothing, text, bytes


def test_nothing_is_none(pair):
    event = through(pair, None)
    assert event.value is None and event.frame is None
    assert through(pair, b"").value is not None
    source, sink = pair
    source.send_output("out")
    assert sink.next(10).value is None


@pytest.mark.parametrize("text", ["", "go", "grüße 日本 \U0001f600", "a\0b", "x" * LARGE])
def test_text_arrives_as_text(pair, text):
    event = through(pair, text)
    assert event.value == text and type(event.value) is str


def test_text_that_is_no_unicode_is_refused_and_sent_on(pair):
    with pytest.raises(UnicodeEncodeError):
        through(pair, "\ud800")
    assert through(pair, b"caf\xe9".decode("utf-8", "surrogateescape")).value == "caf\udce9"


@pytest.mark.parametrize("size", [0, 1, 7, 32768, 32769, 1_000_000])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes(pair, size, kind):
    data = bytes(i * 7 % 256 for i in range(size))
    value = through(pair, kind(data)).value
    assert value.kind == "bytes" and value.dtype == "uint8" and value.shape == (size,)
    assert len(value) == size and value.nbytes == size
    assert bytes(value) == data and value == data and not value != data
    assert data == value and value != data + b"x" and value != "text" and value != 5
    assert str(value, "latin-1") == data.decode("latin-1")
    assert np.array_equal(value.numpy(), np.frombuffer(data, np.uint8))


def test_bytes_equal_only_bytes_of_the_same_content(pair):
    value = through(pair, b"abc").value
    assert value == bytearray(b"abc") and value == memoryview(b"abc")
    assert value != b"abd" and value != b"ab" and value != [97, 98, 99]
    with pytest.raises(TypeError):
        hash(value)


def test_what_was_given_is_let_go(pair):
    for data in (bytearray(b"1234"), array.array("i", [1, 2])):
        through(pair, data)
        data.append(5)  # an error while something looks at it
        with pytest.raises(tb.NotFoundError):
            pair[0].send_output("nowhere", data)
        data.append(6)
    data = bytearray(b"1234")
    with memoryview(data) as view:
        through(pair, view)
    data.append(5)


def test_memoryviews_that_are_no_bytes_are_arrays(pair):
    numbers = memoryview(array.array("d", [1, 2, 3]))
    value = through(pair, numbers).value
    assert value.kind == "tensor" and value.dtype == "float64" and list(value) == [1, 2, 3]
    skipping = memoryview(bytes(range(10)))[::3]
    value = through(pair, skipping).value
    assert value.kind == "tensor" and bytes(value) == bytes([0, 3, 6, 9])
    grid = memoryview(bytes(range(6))).cast("B", (2, 3))
    assert through(pair, grid).value.shape == (2, 3)


def test_other_buffers(pair):
    assert list(through(pair, array.array("i", [5, -6])).value) == [5, -6]
    with mmap.mmap(-1, 4096) as memory:
        memory[:4] = b"map!"
        value = through(pair, memory).value
        assert value.shape == (4096,) and bytes(value)[:4] == b"map!"
    assert list(through(pair, (ctypes.c_int16 * 3)(1, 2, 3)).value) == [1, 2, 3]


# ---- arrays


DTYPES = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "bool",
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 3, LARGE])
def test_arrays_of_every_dtype(pair, dtype, size):
    sent = (np.arange(size * 2).reshape(size, 2) % 100).astype(dtype)
    value = through(pair, sent).value
    assert value.kind == "tensor" and value.dtype == dtype and value.shape == (size, 2)
    assert value.ndim == 2 and value.nbytes == sent.nbytes and value.device == "cpu"
    got = value.numpy()
    assert got.dtype == sent.dtype and np.array_equal(got, sent)


@pytest.mark.parametrize("scale", [1, 100], ids=["small", "large"])
@pytest.mark.parametrize("how", [
    lambda a: a.T, lambda a: a[::2], lambda a: a[:, ::-1], lambda a: a[1:3, 1:2], lambda a: a[::-3],
    lambda a: np.broadcast_to(a[0], (5, *a[0].shape)), lambda a: np.asfortranarray(a),
    lambda a: a[..., None, :],
])  # fmt: skip
def test_strides_of_any_kind(pair, scale, how):
    sent = how(np.arange(12 * scale * scale, dtype=np.int32).reshape(4 * scale, 3 * scale))
    got = through(pair, sent).numpy()
    assert got.shape == sent.shape and np.array_equal(got, sent) and got.flags.c_contiguous


def test_scalars_and_eight_dimensions(pair):
    value = through(pair, np.float32(1.5)).value
    assert value.shape == () and value.numpy() == 1.5 and float(value.numpy()) == 1.5
    with pytest.raises(TypeError, match="no length"):
        len(value)
    deep = np.arange(2**8).reshape([2] * 8)
    assert np.array_equal(through(pair, deep).numpy(), deep)
    with pytest.raises(tb.InvalidError, match="9 dimensions"):
        through(pair, np.zeros([1] * 9))


def test_unaligned_and_foreign_byte_order(pair):
    packed = np.frombuffer(b"x" + np.arange(5, dtype=np.int64).tobytes(), np.uint8)[1:].view(
        np.int64
    )
    assert not packed.flags.aligned
    assert list(through(pair, packed).value) == [0, 1, 2, 3, 4]
    with pytest.raises(tb.InvalidError):
        through(pair, np.arange(3, dtype=">i4"))


def test_bfloat16(pair):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    sent = np.array([1, 2.5, -3], dtype=ml_dtypes.bfloat16)
    value = through(pair, sent).value
    assert value.dtype == "bfloat16" and np.array_equal(value.numpy(), sent)


def test_dlpack_only_objects(pair):
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    sent = np.arange(10, dtype=np.float32)
    assert np.array_equal(through(pair, Foreign(sent)).numpy(), sent)


def test_torch(pair):
    torch = pytest.importorskip("torch")
    sent = torch.arange(12).reshape(3, 4).T
    value = through(pair, sent).value
    assert torch.equal(torch.from_dlpack(value), sent)
    assert through(pair, sent.to(torch.bfloat16)).value.dtype == "bfloat16"


@pytest.mark.parametrize("value, what", [
    (5, "int"), (1.5, "float"), ([1, 2], "list"), ({"a": 1}, "dict"), ({1}, "set"),
    (object(), "object"),
    (lambda: None, "function"),
])  # fmt: skip
def test_what_cannot_be_sent_says_what_to_do(pair, value, what):
    with pytest.raises(TypeError, match=rf"class '{what}'.*cannot be sent; "):
        through(pair, value)
    with pytest.raises((TypeError, ValueError)):
        through(pair, np.array([object()]))
    with pytest.raises((TypeError, ValueError)):
        through(pair, np.array(["text"]))
    assert through(pair, b"still works").value == b"still works"


# ---- looking at a value


def test_views_are_read_only_and_share_memory(pair):
    value = through(pair, np.arange(LARGE)).value
    first, second = value.numpy(), np.asarray(value)
    assert np.shares_memory(first, second) and not first.flags.writeable
    assert np.shares_memory(first, np.asarray(value, dtype=np.int64))
    third = np.from_dlpack(value)
    assert third.ctypes.data == first.ctypes.data and not third.flags.writeable
    view = memoryview(value)
    assert view.readonly and view.format == "q" and view.shape == (LARGE,)
    with pytest.raises((ValueError, TypeError)):
        first[0] = 1
    with pytest.raises((TypeError, BufferError)):
        io.BytesIO(b"mine now").readinto(value)
    view.release()


def test_copies_belong_to_the_caller(pair):
    event = through(pair, np.arange(10))
    mine = event.value.copy()
    mine[0] = 77
    assert event.numpy()[0] == 0 and mine.flags.writeable and mine.base is None
    other = np.array(event.value)
    assert other.flags.writeable and not np.shares_memory(other, event.numpy())
    assert np.asarray(event.value, dtype=np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="copy=False"):
        event.value.__array__(np.float32, copy=False)
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        assert np.from_dlpack(event.value, copy=True).flags.writeable


def test_a_value_is_a_sequence(pair):
    value = through(pair, np.arange(6).reshape(2, 3)).value
    assert value[1, 2] == 5 and [list(row) for row in value] == [[0, 1, 2], [3, 4, 5]]
    assert list(through(pair, b"abc").value[1:]) == [98, 99]


def test_the_event_shows_its_parts_by_name(pair):
    event = through(pair, np.arange(3), {"a": 1})
    assert event["type"] == "INPUT" and event["id"] == "in" and event["metadata"] == {"a": 1}
    assert np.array_equal(event["value"].numpy(), [0, 1, 2]) and event["stamp_ns"] > 0
    assert dict(event)["text"] == "" and event["frame"] is None and event["dropped"] == 0
    for name in ("values", 3, None):
        with pytest.raises(KeyError):
            event[name]
    assert "INPUT" in repr(event) and "int64[3]" in repr(event.value)


def test_times_are_of_the_monotonic_clock(pair):
    import time

    before = time.monotonic_ns()
    event = through(pair, None)
    assert before <= event.stamp_ns <= time.monotonic_ns()


# ---- how long it is there


@pytest.mark.parametrize("size", [10, LARGE], ids=["small", "large"])
def test_a_value_ends_with_its_turn(pair, size):
    event = through(pair, np.arange(size), {"kept": "yes"})
    value = event.value
    assert value[0] == 0
    pair[1].next(0)
    for look in (lambda: event.value, value.numpy, value.copy, lambda: bytes(value),
                 lambda: value[0],
                 lambda: memoryview(value), value.__dlpack__, value.__arrow_c_array__,
                 event.numpy, event.hold, lambda: event["value"],
                 value.__dlpack_device__):  # fmt: skip
        with pytest.raises((tb.InvalidError, BufferError), match="turn is over"):
            look()
    assert event.type == "INPUT" and event.id == "in" and event.metadata == {"kept": "yes"}
    assert event.stamp_ns > 0 and event.dropped == 0 and "over" in repr(event)


@pytest.mark.parametrize("size", [10, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("look", [
    lambda v: v.numpy(), np.asarray, np.from_dlpack, memoryview, lambda v: v.numpy()[1:][::2],
])  # fmt: skip
def test_a_view_keeps_the_memory(pair, size, look):
    event = through(pair, np.arange(size))
    view = look(event.value)
    expected = np.array(view)
    pair[1].next(0)
    assert event.value is not None  # it is there as long as the view
    fill(pair)
    assert np.array_equal(np.asarray(view), expected)
    del view
    gc.collect()
    with pytest.raises(tb.InvalidError, match="turn is over"):
        event.value


def fill(pair):
    """Other messages of the same kind, which would lie where the former did."""
    for n in range(8):
        event = through(pair, np.full(LARGE, -n))
        assert event.numpy()[0] == -n


def test_a_value_keeps_its_event(pair):
    value = through(pair, np.arange(10)).value  # nobody else refers to the event
    gc.collect()
    assert list(value[:3]) == [0, 1, 2]
    array = value.numpy()
    del value
    gc.collect()
    pair[1].next(0)
    fill(pair)
    assert list(array[:3]) == [0, 1, 2]


@pytest.mark.parametrize("size", [10, LARGE], ids=["small", "large"])
def test_hold_and_release(pair, size):
    event = through(pair, np.arange(size))
    assert event.hold() is event and event.held
    pair[1].next(0)
    fill(pair)
    assert event.value[3] == 3
    array = event.numpy()
    event.release()
    event.release()
    assert not event.held
    with pytest.raises(tb.InvalidError, match="released"):
        event.value
    fill(pair)
    assert array[3] == 3  # the array holds on
    with through(pair, np.arange(size)) as event:
        pair[1].next(0)
        assert event.value[3] == 3
    with pytest.raises(tb.InvalidError, match="released"):
        event.value


def test_events_that_are_kept_without_hold_take_nothing(pair):
    """More large events than a reader has leases: each gives its own back at the next turn."""
    source, sink = pair
    kept = [through(pair, np.full(LARGE, n), {"n": n}) for n in range(12)]
    assert [event.metadata["n"] for event in kept] == list(range(12))
    assert sink.next(0) is None


def test_forwarding_a_value_copies_it_as_it_is(pair):
    for value in (b"abc", np.arange(LARGE).reshape(2, -1), np.bool_([1, 0])):
        first = through(pair, value).hold()
        second = through(pair, first.value)
        assert first.value.kind == second.value.kind and first.value.shape == second.value.shape
        assert bytes(first.value) == bytes(second.value)
        first.release()
        with pytest.raises(tb.InvalidError, match="released"):
            through(pair, first.value)


def test_a_held_event_that_nobody_has_any_more_is_given_back(pair):
    """Else each message would need memory of its own."""

    def mapped():
        return sum(size for _, _, size in kit.pool_mappings())

    for n in range(60):
        if n == 10:
            before = mapped()
        assert through(pair, np.full(LARGE, n)).hold().numpy()[0] == n
    assert mapped() == before
