"""DLPack in and out: both kinds of capsules, flags, requests, who keeps what alive."""

import ctypes
import gc

import numpy as np
import pytest

import tensorbus as tb

get_name = ctypes.pythonapi.PyCapsule_GetName
get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
set_name = ctypes.pythonapi.PyCapsule_SetName
set_name.restype, set_name.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Old(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", DELETER), ("flags", ctypes.c_uint64),
                ("tensor", Tensor)]


def opened(capsule: object) -> Old | Versioned:
    name = get_name(capsule)
    kind = Versioned if name == b"dltensor_versioned" else Old
    return kind.from_address(get_pointer(capsule, name))


@pytest.fixture
def pool(bus: tb.Bus) -> tb.Pool:
    return tb.Pool.register(tb.Spec((4, 6), "int32"), name="front", slots=4)


@pytest.fixture
def frame(pool: tb.Pool) -> tb.Frame:
    pool.write(np.arange(24, dtype="i4").reshape(4, 6))
    return pool.read()


def check_tensor(tensor: Tensor, frame: tb.Frame) -> None:
    assert tensor.data == frame.numpy().ctypes.data and tensor.byte_offset == 0
    assert tensor.data % 4096 == 0
    assert (tensor.device_type, tensor.device_id) == frame.__dlpack_device__() == (1, 0)
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.ndim) == (0, 32, 1, 2)
    assert tensor.shape[:2] == [4, 6] and tensor.strides[:2] == [6, 1]


def test_the_old_capsule(frame: tb.Frame) -> None:
    for options in ({}, {"max_version": None}, {"max_version": (0, 8)}, {"stream": None},
                    {"stream": -1}, {"dl_device": (1, 0)}, {"copy": False}):
        capsule = frame.__dlpack__(**options)
        assert get_name(capsule) == b"dltensor"
        check_tensor(opened(capsule).tensor, frame)


def test_the_versioned_capsule_is_read_only(frame: tb.Frame) -> None:
    for version in ((1, 0), (1, 1), (1, 7), (2, 0)):
        capsule = frame.__dlpack__(max_version=version)
        assert get_name(capsule) == b"dltensor_versioned"
        managed = opened(capsule)
        assert (managed.major, managed.flags) == (1, 1)
        check_tensor(managed.tensor, frame)


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_copy_is_private_and_aligned(frame: tb.Frame, version: tuple[int, int] | None) -> None:
    capsule = frame.__dlpack__(copy=True, max_version=version)
    managed = opened(capsule)
    assert managed.tensor.data % 256 == 0 and managed.tensor.byte_offset == 0
    assert managed.tensor.data != frame.numpy().ctypes.data
    if version is not None:
        assert managed.flags == 2
    words = ctypes.cast(managed.tensor.data, ctypes.POINTER(ctypes.c_int32))
    assert words[:24] == list(range(24))
    words[0] = 99
    assert frame.numpy()[0, 0] == 0


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"dl_device": (2, 0)}, BufferError, "cannot be given"),
        ({"dl_device": (1, 1)}, BufferError, "cannot be given"),
        ({"dl_device": 1}, TypeError, "dl_device"),
        ({"stream": 1}, ValueError, "no stream"),
        ({"stream": "x"}, TypeError, "int"),
        ({"max_version": 1}, TypeError, "max_version"),
        ({"max_version": ("a", "b")}, TypeError, "int|max_version"),
        ({"unknown": 1}, TypeError, "unknown"),
    ],
)
def test_what_cannot_be_given_is_refused(
    frame: tb.Frame, options: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        frame.__dlpack__(**options)
    with pytest.raises(TypeError):
        frame.__dlpack__(None)  # type: ignore[misc]


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_the_capsules_life(pool: tb.Pool, version: tuple[int, int] | None) -> None:
    reader = tb.Reader("camera/front", every=True)
    pool.write(np.zeros((4, 6), "i4"))
    capsule = reader.next(1).__dlpack__(max_version=version)
    assert reader.stats().held == 1
    del capsule  # nobody took it
    assert reader.stats().held == 0
    pool.write(np.zeros((4, 6), "i4"))
    capsule = reader.next(1).__dlpack__(max_version=version)
    name = get_name(capsule)
    managed = opened(capsule)
    used = b"used_" + name
    set_name(capsule, used)  # as a consumer does
    del capsule
    gc.collect()
    assert reader.stats().held == 1
    managed.deleter(ctypes.addressof(managed))
    assert reader.stats().held == 0


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4",
                                   "f8", "c8", "c16"])
def test_numpy_takes_frames(bus: tb.Bus, dtype: str) -> None:
    pool = tb.Pool.register(tb.Spec((2, 3), dtype))
    source = np.arange(6).reshape(2, 3).astype(dtype)
    pool.write(source)
    frame = pool.read()
    array = np.from_dlpack(frame)
    frame.release()
    assert array.dtype == source.dtype and (array == source).all()
    assert not array.flags.writeable
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        copy = np.from_dlpack(pool.read(), copy=True)
        assert (copy == source).all()


@pytest.mark.parametrize(("shape", "strides"), [((), []), ((0, 3), [3, 1]), ((3, 0, 2), [2, 2, 1]),
                                                  ((1, 2, 1), [2, 1, 1])])
def test_odd_shapes(bus: tb.Bus, shape: tuple[int, ...], strides: list[int]) -> None:
    pool = tb.Pool.register(tb.Spec(shape, "f4"))
    pool.write(np.ones(shape, "f4"))
    frame = pool.read()
    tensor = opened(capsule := frame.__dlpack__()).tensor
    assert tensor.ndim == len(shape) and tensor.strides[: len(shape)] == strides
    assert tensor.shape[: len(shape)] == list(shape)
    assert np.from_dlpack(frame).shape == shape
    del capsule


@pytest.mark.parametrize(("dtype", "code", "bits"),
                         [("bfloat16", 4, 16), ("float8_e4m3fn", 10, 8), ("float8_e5m2", 12, 8)])
def test_dtypes_that_numpy_lacks(bus: tb.Bus, dtype: str, code: int, bits: int) -> None:
    pool = tb.Pool.register(tb.Spec((2, 3), dtype))
    pool.loan(0).publish()
    capsule = pool.read().__dlpack__(max_version=(1, 1))
    tensor = opened(capsule).tensor
    assert (tensor.code, tensor.bits, tensor.lanes) == (code, bits, 1)


def test_a_loan_is_writable(pool: tb.Pool) -> None:
    loan = pool.loan(0)
    capsule = loan.__dlpack__(max_version=(1, 0))
    managed = opened(capsule)
    assert managed.flags == 0 and loan.__dlpack_device__() == (1, 0)
    ctypes.cast(managed.tensor.data, ctypes.POINTER(ctypes.c_int32))[0] = 5
    array = np.from_dlpack(loan)
    assert array.flags.writeable
    array[1:] = 6
    with pytest.raises(BufferError):
        loan.__dlpack__(copy=True)
    del array, capsule
    loan.publish()
    assert pool.read().numpy()[0, 0] == 5 and (pool.read().numpy()[1:] == 6).all()


class Producer:
    """A tensor of another framework."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0), offset: int = 0,
                 newest: bool = True, major: int = 1, strides: bool = True) -> None:
        self.array, self.newest, self.major, self.deleted = array, newest, major, 0
        self.tensor = Tensor(array.ctypes.data - offset, *device, array.ndim, 0,
                             array.itemsize * 8, 1, None, None, offset)
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.strides = (ctypes.c_int64 * array.ndim)(*(s // array.itemsize for s in array.strides))
        self.tensor.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        if strides:
            self.tensor.strides = ctypes.cast(self.strides, ctypes.POINTER(ctypes.c_int64))
        self.asked: list[dict[str, object]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.tensor.device_type, self.tensor.device_id)

    def __dlpack__(self, **options: object) -> object:
        self.asked.append(options)
        if "max_version" in options and not self.newest:
            raise TypeError("unexpected keyword")
        return capsule_of(self)


DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, DESTRUCTOR]
raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))
kept: list[object] = []


def capsule_of(producer: Producer) -> object:
    def delete(address: int) -> None:
        producer.deleted += 1

    deleter = DELETER(delete)
    if producer.newest:
        managed: Old | Versioned = Versioned(producer.major, 0, None, deleter, 0, producer.tensor)
        name = b"dltensor_versioned"
    else:
        managed = Old(producer.tensor, None, deleter)
        name = b"dltensor"

    def destroy(capsule: int) -> None:
        managed.deleter(raw_pointer(capsule, name))

    destructor = DESTRUCTOR(destroy)
    kept.extend((deleter, managed, destructor, name))
    return new_capsule(ctypes.addressof(managed), name, destructor)


@pytest.mark.parametrize("newest", [False, True])
def test_tensors_of_other_frameworks_come_in(pool: tb.Pool, newest: bool) -> None:
    array = np.arange(48, dtype="i4").reshape(4, 12)[:, ::-2]
    producer = Producer(array, newest=newest, offset=8)
    pool.write(producer)
    assert (pool.read().numpy() == array).all()
    assert producer.deleted == 1
    assert len(producer.asked) == (1 if newest else 2)
    packed = np.arange(24, dtype="i4").reshape(4, 6)
    pool.write(Producer(packed, newest=newest, strides=False))
    assert (pool.read().numpy() == packed).all()
    with pytest.raises(tb.MismatchError):
        pool.write(producer := Producer(packed[1:], newest=newest))
    assert producer.deleted == 1


def test_tensors_that_cannot_come_in(pool: tb.Pool) -> None:
    array = np.zeros((4, 6), "i4")
    for device in ((2, 0), (8, 0), (10, 0)):
        producer = Producer(array, device=device)
        with pytest.raises(tb.UnsupportedError, match="device|GPUs"):
            pool.write(producer)
        assert producer.deleted == 1
    producer = Producer(array, major=2)
    with pytest.raises(tb.UnsupportedError, match="version 2.0"):
        pool.write(producer)
    assert producer.deleted == 1
    pool.write(Producer(array, device=(3, 0)))  # pinned memory is the CPU's too
    assert pool.stats().frames == 1
