"""Frames and their views: read-only memory that stays as it is while something looks at it."""

import gc
import struct

import numpy as np
import pytest

import kit
import tensorbus as tb


@pytest.fixture
def pool(bus: tb.Bus) -> tb.Pool:
    return tb.Pool.register(tb.Spec((4, 6), "int32"), name="front", slots=8)


@pytest.fixture
def reader(pool: tb.Pool) -> tb.Reader:
    return tb.Reader("camera/front", every=True)


def write(pool: tb.Pool, value: int) -> tb.Handle:
    return pool.write(np.full(pool.shape, value, pool.dtype), 0)


def test_numpy_view(pool: tb.Pool, reader: tb.Reader) -> None:
    write(pool, 7)
    frame = reader.next(1)
    view = frame.numpy()
    assert view.shape == (4, 6) and view.dtype == np.int32 and (view == 7).all()
    assert not view.flags.writeable and not view.flags.owndata and view.flags.c_contiguous
    for array in (np.asarray(frame), np.asarray(frame, np.int32), np.from_dlpack(frame)):
        assert array.ctypes.data == view.ctypes.data and not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    with pytest.raises(ValueError):
        view.flags.writeable = True
    with pytest.raises(TypeError, match="read-write"):
        struct.pack_into("i", frame, 0, 1)
    raw = memoryview(frame)
    assert raw.readonly and raw.format == "i" and raw.shape == (4, 6) and raw.nbytes == 96
    assert bytes(frame) == view.tobytes()


def test_copies_are_writable_and_private(pool: tb.Pool, reader: tb.Reader) -> None:
    write(pool, 7)
    frame = reader.next(1)
    for copy in (frame.copy(), np.array(frame), np.asarray(frame, np.int64),
                 np.array(frame, dtype=np.int32)):
        assert copy.flags.writeable and copy.flags.owndata
        copy[:] = 1
    assert (frame.numpy() == 7).all()
    assert reader.stats().held == 1
    assert frame.__array__(np.int32, copy=False).ctypes.data == frame.numpy().ctypes.data
    assert frame.__array__(np.int64, copy=True).dtype == np.int64
    with pytest.raises(ValueError, match="copy=False"):
        frame.__array__(np.int64, copy=False)


def test_what_a_frame_knows(pool: tb.Pool, reader: tb.Reader) -> None:
    handles = [write(pool, value) for value in range(3)]
    frame = reader.newest(1)
    assert (frame.shape, frame.dtype, frame.ndim, frame.nbytes) == ((4, 6), "int32", 2, 96)
    assert (frame.device, frame.sequence, frame.handle) == ("cpu", 3, handles[2])
    info = frame.info
    assert info == (handles[2], 3, 6, handles[2].stamp_ns, 2, "direct", 1, "camera", "front")
    assert (info.missed, info.lane, info.copies, info.producer) == (2, "direct", 1, "camera")
    assert "3 of pool `camera/front`, int32[4, 6]" in repr(frame)
    with pool.loan(0) as array:
        array[:] = 9
    assert reader.next(1).info.copies == 0
    frame.release()
    assert frame.info is info and frame.released and "released" in repr(frame)


def test_a_released_frame_says_so(pool: tb.Pool, reader: tb.Reader) -> None:
    write(pool, 7)
    frame = reader.next(1)
    frame.release()
    frame.release()
    for use in (frame.numpy, frame.copy, frame.hold, frame.__dlpack__, frame.__dlpack_device__,
                frame.__array__, lambda: np.asarray(frame), lambda: memoryview(frame),
                lambda: frame.shape, lambda: frame.info, lambda: frame.handle,
                lambda: reader.ack(frame)):
        with pytest.raises(tb.InvalidError, match="released"):
            use()


def test_a_view_holds_on_its_own(pool: tb.Pool, reader: tb.Reader) -> None:
    write(pool, 7)
    frame = reader.next(1)
    view = frame.numpy()
    part = view[1:, ::2]
    capsule = frame.__dlpack__()
    raw = memoryview(frame)
    frame.release()
    del view
    for value in range(20):
        write(pool, value)
    assert (part == 7).all() and raw[0, 0] == 7 and reader.stats().held == 1
    del part, raw
    assert reader.stats().held == 1
    del capsule
    assert reader.stats().held == 0


def test_the_last_reference_releases(pool: tb.Pool, reader: tb.Reader) -> None:
    write(pool, 7)
    frame = reader.next(1)
    assert reader.stats().held == 1
    del frame
    assert reader.stats().held == 0
    write(pool, 8)
    view = reader.next(1).numpy()
    assert (view == 8).all() and reader.stats().held == 1
    del view
    assert reader.stats().held == 0


def test_a_with_block_releases(pool: tb.Pool, reader: tb.Reader) -> None:
    write(pool, 7)
    with pytest.raises(KeyError):
        with reader.next(1) as frame:
            assert frame.sequence == 1
            raise KeyError
    assert frame.released and reader.stats().held == 0


def test_a_hold_is_released_on_its_own(pool: tb.Pool, reader: tb.Reader) -> None:
    write(pool, 7)
    frame = reader.next(1)
    other = frame.hold()
    frame.release()
    assert (other.numpy() == 7).all() and reader.stats().held == 1
    other.release()
    assert reader.stats().held == 0


def test_the_loop_ends_the_former_frame(pool: tb.Pool, reader: tb.Reader) -> None:
    for value in range(4):
        write(pool, value)
    write(pool, 4)
    frames, held, views = [], [], []
    loop = iter(tb.Reader("camera/front", every=True, max_leases=4))
    for turn, frame in enumerate(loop):
        frames.append(frame)
        assert all(old.released for old in frames[:-1] if old not in held)
        if turn == 1:
            held.append(frame)
            frame.hold()
        if turn == 2:
            views.append(frame.numpy())
        if turn == 4:
            break
        write(pool, 10 + turn)
    assert [(f.numpy() == 10).all() for f in held] == [True]
    assert frames[0].released and frames[2].released and frames[3].released
    assert (views[0] == 11).all()
    # The loop was left: its last frame lives on.
    del loop
    assert (frames[4].numpy() == 13).all()


def test_a_loop_needs_one_lease(pool: tb.Pool) -> None:
    reader = tb.Reader("camera/front", every=True, max_leases=1)
    write(pool, 0)
    for frame in reader:
        assert (frame.numpy() == frame.sequence - 1).all()
        if frame.sequence == 30:
            break
        write(pool, frame.sequence)
    with pytest.raises(tb.BusyError, match="max_leases"):
        write(pool, 1)
        reader.next(1)


def test_threads_loop_over_one_reader(pool: tb.Pool, reader: tb.Reader) -> None:
    for value in range(4):
        write(pool, value)
    one, two = iter(reader), iter(tb.Reader("camera/front", every=True))
    first = next(one)
    assert next(two).sequence == 4 and not first.released
    other = iter(reader)
    second = next(other)
    assert (first.numpy() == 0).all() and (second.numpy() == 1).all()
    third = next(one)
    assert first.released and not second.released and third.sequence == 3


def test_a_closed_reader_leaves_its_frames(pool: tb.Pool) -> None:
    write(pool, 7)
    reader = tb.Reader("camera/front")
    view = reader.next(1).numpy()
    reader.close()
    reader.close()
    for value in range(20):
        write(pool, value)
    assert (view == 7).all() and pool.stats().readers == 1
    del view
    kit.await_true(lambda: pool.stats().readers == 0, "the reader detached")
    with pytest.raises(tb.ClosedError, match="camera/front"):
        reader.next(0)
    with pytest.raises(tb.ClosedError):
        iter(reader)


def test_a_dropped_reader_leaves_its_frames(pool: tb.Pool) -> None:
    write(pool, 7)
    view = tb.Reader("camera/front").next(1).numpy()
    gc.collect()
    for value in range(20):
        write(pool, value)
    assert (view == 7).all()
    del view
    kit.await_true(lambda: pool.stats().readers == 0, "the reader detached")


def test_nothing_is_copied_on_the_way(pool: tb.Pool) -> None:
    with kit.Script("""
        reader = tb.Reader("camera/front")
        frame = reader.next(10)
        address = frame.numpy().ctypes.data
        say(address)
        hear()
        say(int(frame.numpy()[0, 0]), frame.info.copies)
    """) as script:
        loan = pool.loan(0)
        array = loan.numpy()
        array[:] = 7
        mine = array.ctypes.data
        loan.publish()
        theirs = int(script.hear())
        assert kit.page_of(script.pid, theirs) == kit.page_of("self", mine)
        script.tell()
        assert script.hear() == "7 0"
        script.end()
