"""Handles: 48 bytes, a value."""

import pickle
import struct

import numpy as np
import pytest

import tensorbus as tb


@pytest.fixture
def handle(bus: tb.Bus) -> tb.Handle:
    pool = tb.Pool.register(np.zeros(6, np.int16), name="front")
    pool.write(np.zeros(6, np.int16))
    return pool.write(np.ones(6, np.int16))


def test_its_bytes_have_the_documented_layout(bus: tb.Bus, handle: tb.Handle) -> None:
    raw = bytes(handle)
    assert len(raw) == 48
    uid, generation, slot, flags, stamp_ns, nbytes = struct.unpack("<16sQIIQQ", raw)
    assert (uid, generation, flags, nbytes) == (handle.pool_uid, 4, 0, 12)
    assert struct.unpack("<Q", uid[:8])[0] == bus.id
    assert (handle.sequence, handle.generation, handle.slot) == (2, 4, slot)
    assert (handle.stamp_ns, handle.nbytes) == (stamp_ns, 12)
    assert "frame 2" in repr(handle) and uid.hex() in repr(handle)


def test_it_is_a_value(handle: tb.Handle) -> None:
    again = tb.Handle(bytes(handle))
    assert again == handle and not again != handle and hash(again) == hash(handle)
    assert again is not handle and len({again, handle}) == 1
    assert tb.Handle(bytes(47) + b"\1") != tb.Handle(bytes(48))
    assert handle != bytes(handle)
    with pytest.raises(TypeError):
        handle < again  # noqa: B015
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(handle, protocol)) == handle
    assert bytes(memoryview(handle)) == bytes(handle)
    with pytest.raises(AttributeError):
        handle.slot = 3  # type: ignore[misc]


def test_what_is_no_handle_is_refused(bus: tb.Bus) -> None:
    with pytest.raises(tb.InvalidError, match="48 bytes, these are 47"):
        tb.Handle(bytes(47))
    with pytest.raises(TypeError, match="str"):
        tb.Handle("x" * 48)  # type: ignore[arg-type]
    with pytest.raises(tb.InvalidError, match="no handle"):
        tb.open_frame(tb.Handle(bytes(48)))
    with pytest.raises(tb.NotFoundError):
        tb.open_frame(struct.pack("<16sQIIQQ", b"\7" * 16, 2, 0, 0, 1, 1))
