"""What may be written: arrays of every layout, and what is refused."""

import array
import ctypes
import mmap
import sys

import numpy as np
import pytest

import tensorbus as tb

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None


def round_trip(source: object, like: object | None = None) -> np.ndarray:
    pool = tb.Pool.register(source if like is None else like, slots=2)
    pool.write(source)
    copy = pool.read().copy()
    pool.free()
    return copy


base = np.arange(2 * 3 * 4 * 5, dtype=np.int32).reshape(2, 3, 4, 5)


@pytest.mark.parametrize(
    "source",
    [
        base,
        base[::-1, :, ::-2],
        base.transpose(3, 1, 0, 2),
        np.asfortranarray(base),
        base[1:, 2, 1:3, ::3],
        base[:, None, 0],
        base[:0],
        base[..., 0:0],
        base[1, 2, 3, 4],
        np.array(7.5),
        np.float64(7.5),
        np.broadcast_to(np.int16(3), (4, 5)),
        np.broadcast_to(np.arange(5), (4, 5)),
        np.zeros((1, 1, 1)),
        np.array(True),
        np.arange(16, dtype="i1").reshape((2,) * 4),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}{a.strides}",
)
@pytest.mark.parametrize("read_only", [False, True])
def test_layouts(bus: tb.Bus, source: np.ndarray, read_only: bool) -> None:
    if read_only and isinstance(source, np.ndarray):
        source = source.view()
        source.flags.writeable = False
    got = round_trip(source)
    assert got.dtype == source.dtype and got.shape == source.shape
    assert (got == source).all()


@pytest.mark.parametrize("dtype", ["?", "b", "B", "h", "H", "i", "I", "l", "L", "q", "Q", "e", "f",
                                   "d", "F", "D"])
def test_dtypes(bus: tb.Bus, dtype: str) -> None:
    source = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    got = round_trip(source)
    assert got.dtype == source.dtype and (got == source).all()
    assert (round_trip(source[:, ::-2]) == source[:, ::-2]).all()


@pytest.mark.skipif(ml_dtypes is None, reason="ml_dtypes is not installed")
@pytest.mark.parametrize("name", ["bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz",
                                  "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
                                  "float8_e5m2fnuz", "float8_e8m0fnu"])
def test_dtypes_that_numpy_lacks(bus: tb.Bus, name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    source = np.array([[0.5, 1, 2], [4, 1, 2]]).astype(dtype)
    for value in (source, source.T, source[::-1, ::2], source[0, 1]):
        got = round_trip(value)
        assert got.dtype == dtype and got.shape == value.shape
        assert (got.astype(float) == value.astype(float)).all()
    pool = tb.Pool.register(tb.Spec((2, 3), name), slots=2)
    assert pool.dtype == name
    with pool.loan() as slot:
        assert slot.dtype == dtype and slot.flags.writeable
        slot[:] = source
    frame = pool.read()
    view = frame.numpy()
    assert view.dtype == dtype and not view.flags.writeable
    for array_ in (np.asarray(frame), np.array(frame)):
        assert array_.dtype == dtype and (array_.astype(float) == source.astype(float)).all()
    with pytest.raises(BufferError, match=name):
        memoryview(frame)
    frame.release()
    assert (view.astype(float) == source.astype(float)).all()


def test_dtypes_that_numpy_lacks_without_ml_dtypes(bus: tb.Bus, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # type: ignore[arg-type]
    pool = tb.Pool.register(tb.Spec(4, "bfloat16"))
    with pytest.raises(tb.UnsupportedError, match="install ml_dtypes"):
        pool.loan().numpy()
    pool.loan(0).publish()
    frame = pool.read()
    with pytest.raises(tb.UnsupportedError, match="bfloat16"):
        frame.numpy()
    with pytest.raises(tb.UnsupportedError):
        np.asarray(frame)
    assert frame.__dlpack_device__() == (1, 0) and frame.dtype == "bfloat16"


def test_buffers_of_all_kinds(bus: tb.Bus) -> None:
    words = array.array("h", [1, -2, 3])
    assert round_trip(words).tolist() == [1, -2, 3]
    for thing in (b"abc", bytearray(b"abc"), memoryview(b"abc"), memoryview(b"xaxbxc")[1::2]):
        got = round_trip(thing)
        assert got.tobytes() == b"abc" and got.dtype == np.uint8
    matrix = (ctypes.c_float * 3 * 2)((1, 2, 3), (4, 5, 6))
    assert round_trip(matrix).tolist() == [[1, 2, 3], [4, 5, 6]]
    pages = mmap.mmap(-1, 4096)
    pages[:3] = b"abc"
    assert round_trip(pages).tobytes()[:3] == b"abc"
    pages.close()
    assert round_trip(memoryview(b"abcd").cast("c")).dtype == np.uint8


def test_elements_that_do_not_lie_at_multiples_of_their_size(bus: tb.Bus) -> None:
    record = np.zeros(4, np.dtype([("a", "u1"), ("b", "<i4")]))
    record["b"] = [1, 2, 3, 4]
    assert record["b"].strides == (5,)
    assert round_trip(record["b"]).tolist() == [1, 2, 3, 4]
    record = np.zeros(4, np.dtype([("b", "<i4"), ("a", "u1")]))
    record["b"] = [1, 2, 3, 4]
    assert round_trip(record["b"]).tolist() == [1, 2, 3, 4]
    assert round_trip(record["b"][::-1]).tolist() == [4, 3, 2, 1]
    odd = np.frombuffer(b"x" + np.arange(4, dtype="<f8").tobytes(), "<f8", offset=1)
    assert not odd.flags.aligned
    assert round_trip(odd, tb.Spec(4, "f8")).tolist() == [0, 1, 2, 3]


def test_what_can_only_become_an_array(bus: tb.Bus) -> None:
    class Series:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return np.arange(3.0)

    class Interface:
        __array_interface__ = {
            "shape": (3,), "typestr": "<i2", "version": 3, "strides": (4,),
            "data": np.arange(6, dtype="i2").__array_interface__["data"],
        }
        keep = np.arange(6, dtype="i2")

    Interface.__array_interface__["data"] = Interface.keep.__array_interface__["data"]
    assert round_trip(Series()).tolist() == [0, 1, 2]
    assert round_trip(Interface()).tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        (np.arange(3, dtype=">i4"), tb.InvalidError, "big-endian"),
        (np.arange(3, dtype=">f8"), tb.InvalidError, "newbyteorder"),
        (np.array(["a"]), tb.InvalidError, "cannot be shared"),
        (np.array([b"a"]), tb.InvalidError, "cannot be shared"),
        (np.array([None]), tb.InvalidError, "cannot be shared"),
        (np.zeros(2, "M8[s]"), tb.InvalidError, "int64"),
        (np.zeros(2, "i4,f4"), tb.InvalidError, "cannot be shared"),
        (np.zeros((1,) * 9), tb.InvalidError, "9 dimensions"),
        ([1, 2], TypeError, "list"),
        (3.5, TypeError, "float"),
        ("text", TypeError, "str"),
        (None, TypeError, "NoneType"),
    ],
    ids=repr,
)
def test_what_is_refused(bus: tb.Bus, source: object, error: type[Exception], text: str) -> None:
    pool = tb.Pool.register(tb.Spec(3, "i4"))
    with pytest.raises(error, match=text):
        pool.write(source, 0)
    assert pool.stats().frames == 0


def test_a_source_that_raises(bus: tb.Bus) -> None:
    class Broken:
        @property
        def __array_interface__(self) -> object:
            raise RuntimeError("broken")

        def __dlpack__(self, **options: object) -> object:
            raise OSError("worse")

    class NoCapsule:
        def __dlpack__(self) -> object:
            return 7

    class Freeing:
        """Frees the pool while it is looked at."""

        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            pool.free()
            return np.zeros(3, "i4")

    pool = tb.Pool.register(tb.Spec(3, "i4"))
    with pytest.raises(OSError, match="worse"):
        pool.write(Broken(), 0)
    with pytest.raises(TypeError, match="capsule"):
        pool.write(NoCapsule(), 0)
    with pytest.raises(tb.FreedError):
        pool.write(Freeing(), 0)
