"""Pools in a GPU's memory: what goes in and out, and in which order. Needs no framework: the tests
play one, over the driver itself (gpu_device.py), in processes of their own. Between processes:
test_gpu_processes.py."""

import os

import pytest

import gpu_kit
import kit
from gpu_kit import needs_fake, needs_gpu, run_scene as run

pytestmark = pytest.mark.usefixtures("directory")


# ---- without a GPU ----


def test_g01_without_a_gpu_the_error_says_what_is_missing() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": ""}
    out, _ = kit.run("""
        tb.open_bus("camera")
        try:
            tb.Pool.register(tb.Spec(4, "u1"), device="cuda:0")
        except tb.Error as error:
            say(type(error).__name__, error)
        pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
        pool.write(b"abcd")
        frame = tb.Reader("camera/front", stream_ordered=True).next(1)
        assert frame.poll() is True and not hasattr(frame, "__cuda_array_interface__")
        frame.wait()
        assert frame.copy("cpu").tobytes() == b"abcd"
        frame.release()
        """, env=environment)
    kind = out.split()[0]
    assert kind in ("UnsupportedError", "NotFoundError") and (
        "driver" in out or "CUDA_VISIBLE_DEVICES" in out or "GPU" in out), out


# ---- elements ----


@needs_gpu
def test_what_is_written_is_read() -> None:
    run("""
        assert pool.device == "cuda:0"
        for array in (A, A[::-1].copy()[:, ::-1], np.asfortranarray(A + 7)):
            pool.write(array)
            frame = pool.read()
            assert frame.device == "cuda:0" and frame.info.lane == "direct"
            assert (frame.copy() == array).all() and (frame.copy("cpu") == array).all()
            frame.copy()[0, 0] = 5  # the caller's own
            assert (np.from_dlpack(frame, device="cpu") == array).all()
        """)


@needs_gpu
def test_every_dtype_arrives_as_it_is() -> None:
    run("""
        names = ("uint8", "int8", "bool", "uint16", "float16", "int64", "float64", "complex64")
        for name in names:
            array = (np.arange(6).reshape(2, 3) % 2).astype(name)
            one = tb.Pool.register(array, device="cuda:0")
            one.write(array)
            copy = one.read().copy()
            assert copy.dtype == array.dtype and (copy == array).all()
            assert one.read().__cuda_array_interface__["typestr"] == array.dtype.str
            one.free()
        bits = np.arange(6, dtype="u2").reshape(2, 3)
        one = tb.Pool.register(tb.Spec((2, 3), "bfloat16"), device="cuda:0")
        memory = Memory(bits)
        one.write(Exporter(memory, code=4))  # DLPack's bfloat16
        frame = one.read()
        assert frame.dtype == "bfloat16"
        taken = take(frame, 1)
        assert (taken.tensor.code, taken.tensor.bits) == (4, 16)
        assert (gpu.get(taken.tensor.data, bits) == bits).all()
        taken.close()
        try:
            frame.__cuda_array_interface__
            raise SystemExit("no error")
        except tb.UnsupportedError as error:
            assert "bfloat16" in str(error) and "DLPack" in str(error)
        """)


@needs_gpu
def test_numpy_is_refused_with_the_way_out() -> None:
    run("""
        pool.write(A)
        frame = pool.read()
        for look in (frame.numpy, lambda: np.asarray(frame), lambda: memoryview(frame)):
            try:
                look()
                raise SystemExit("no error")
            except (tb.UnsupportedError, BufferError) as error:
                assert "cuda:0" in str(error) and "copy" in str(error)
        try:
            frame.copy("cuda:0")
            raise SystemExit("no error")
        except tb.UnsupportedError as error:
            assert "clone()" in str(error)
        with pool.loan() as loan:
            try:
                loan.numpy()
                raise SystemExit("no error")
            except tb.UnsupportedError as error:
                assert "from_dlpack" in str(error)
        """)


# ---- out ----


@needs_gpu
def test_a_frame_is_exported_where_it_is() -> None:
    run("""
        pool.write(A)
        frame = pool.read()
        interface = frame.__cuda_array_interface__
        address, read_only = interface["data"]
        assert read_only and interface["version"] == 3 and interface["shape"] == (4, 6)
        assert interface["stream"] == 1 and interface["strides"] is None
        assert interface["typestr"] == "<f4"
        for number in (None, 1, 2, gpu.stream(), -1):
            taken = take(frame, number)
            t = taken.tensor
            assert (t.device_type, t.device_id, t.byte_offset) == (2, 0, 0) and t.data == address
            assert taken.managed.flags == 1 and [t.shape[i] for i in range(t.ndim)] == [4, 6]
            taken.close()
        assert frame.__dlpack_device__() == (2, 0)
        for bad in (0, -2):
            try:
                frame.__dlpack__(stream=bad)
                raise SystemExit("no error")
            except ValueError as error:
                assert "legacy" in str(error)
        try:
            frame.__dlpack__(copy=True)
            raise SystemExit("no error")
        except BufferError as error:
            assert "clone" in str(error)
        """)


# The producer's stream is held up, so the frame is not complete.
PENDING = """
braked, mine = gpu.stream(), gpu.stream()
reader = tb.Reader("camera/front", stream_ordered=True)
plain = tb.Reader("camera/front")
brake = Brake(braked)
pool.write(A, stream=braked)
frame = reader.next(5)
assert frame.poll() is False
"""


@needs_gpu
@pytest.mark.parametrize("consumer", ["mine", "1", "None", "2"])
def test_the_consumers_stream_waits_for_the_frame(consumer: str) -> None:
    run(PENDING, f"number, bare = {consumer}, {{None: 0}}.get({consumer}, {consumer})", """
        taken = take(frame, number)
        later = Later(taken.tensor.data, A, bare)
        for _ in range(20):
            time.sleep(0.001)
            assert not gpu.idle(bare) and frame.poll() is False
        try:
            plain.next(0)
            raise SystemExit("a CPU reader has an incomplete frame")
        except tb.AgainError:
            pass
        brake.off()
        assert (later.array() == A).all()
        soon(frame.poll)
        with plain.next(5) as other:
            assert (other.copy() == A).all()
        taken.close()
        frame.release()
        soon(lambda: reader.stats().held == 0)
        assert reader.stats().incomplete == 0
        """)


@needs_gpu
def test_minus_one_and_wait_leave_the_order_to_the_consumer() -> None:
    run(PENDING, """
        taken = take(frame, -1)
        assert gpu.idle(mine)
        frame.wait(mine)
        assert not gpu.idle(mine)
        later = Later(taken.tensor.data, A, mine)
        brake.off()
        assert (later.array() == A).all()
        taken.close()
        """)


# As on a GPU whose streams cannot wait for words: the thread waits in their place.
BY_CPU = """
import os, signal, threading
os.environ["TENSORBUS_GPU_ORDER"] = "cpu"
"""


@needs_gpu
def test_a_thread_that_waits_for_the_gpu_lets_others_run() -> None:
    gpu_kit.run(BY_CPU, gpu_kit.SCENE, PENDING, """
        threading.Timer(0.1, brake.off).start()
        taken = take(frame, mine)
        assert frame.poll() is True
        assert (gpu.get(taken.tensor.data, A, mine) == A).all()
        taken.close()
        """)


@needs_gpu
def test_threads_that_wait_for_different_streams_come_back_with_both() -> None:
    gpu_kit.run(BY_CPU, gpu_kit.SCENE, PENDING, """
        del frame
        reader = tb.Reader("camera/front", stream_ordered=True, max_leases=2)
        frame, streams, taken = reader.next(5), [gpu.stream(), gpu.stream()], {}
        def wait(stream):
            taken[stream] = take(frame, stream)
        threads = [threading.Thread(target=wait, args=(stream,)) for stream in streams]
        for thread in threads:
            thread.start()
        soon(lambda: reader.stats().held == 2)
        assert not taken
        brake.off()
        for thread in threads:
            thread.join()
        frame.release()
        brakes = [Brake(stream) for stream in streams]
        for stream in streams:
            taken[stream].close()
        assert reader.stats().held == 2
        for stream, other in zip(streams, brakes, strict=True):
            assert reader.stats().held >= 1, "a stream still reads"
            other.off()
            gpu.synchronize(stream)
        soon(lambda: reader.stats().held == 0)
        """)


@needs_gpu
def test_a_signal_ends_the_wait_for_the_gpu() -> None:
    gpu_kit.run(BY_CPU, gpu_kit.SCENE, PENDING, """
        class Stop(Exception):
            pass
        def stop(*_):
            raise Stop
        signal.signal(signal.SIGALRM, stop)
        for call in (lambda: frame.wait(mine), lambda: take(frame, mine)):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            try:
                call()
                raise SystemExit("not interrupted")
            except Stop:
                pass
            assert frame.poll() is False
        brake.off()
        taken = take(frame, mine)
        assert (gpu.get(taken.tensor.data, A, mine) == A).all()
        taken.close()
        frame.release()
        soon(lambda: reader.stats().held == 0)
        """)


@needs_gpu
def test_a_frame_that_another_thread_releases_during_the_wait() -> None:
    gpu_kit.run(BY_CPU, gpu_kit.SCENE, PENDING, """
        def release():
            frame.release()
            assert reader.stats().held == 1, "its waiting thread has it"
            brake.off()
        threading.Timer(0.1, release).start()
        try:
            frame.wait(mine)
            raise SystemExit("no error")
        except tb.Error as error:
            assert "released by another thread" in str(error)
        soon(lambda: reader.stats().held == 0)
        """)


@needs_gpu
def test_the_array_interface_is_ordered_by_the_default_stream() -> None:
    run(PENDING, """
        address = frame.__cuda_array_interface__["data"][0]
        later = Later(address, A, 0)
        assert not gpu.idle(0)
        brake.off()
        assert (later.array() == A).all()
        """)


# ---- holding ----


@needs_gpu
def test_a_view_keeps_the_frame_and_comes_back_with_its_stream() -> None:
    run("""
        pool.write(A)
        mine = gpu.stream()
        reader = tb.Reader("camera/front")
        frame = reader.next(5)
        taken = take(frame, mine)
        frame.release()
        assert reader.stats().held == 1
        brake = Brake(mine)
        later = Later(taken.tensor.data, A, mine)  # the work that reads the frame
        taken.close()
        for i in range(20):
            pool.write(A + i)  # into the other slots
        assert reader.stats().held == 1 and pool.stats().held == 1
        brake.off()
        assert (later.array() == A).all()
        soon(lambda: reader.stats().held == 0)
        """)


@needs_gpu
def test_views_on_two_streams_come_back_with_both() -> None:
    run("""
        pool.write(A)
        one, two = gpu.stream(), gpu.stream()
        reader = tb.Reader("camera/front", max_leases=2)
        frame = reader.next(5)
        first, second = take(frame, one), take(frame, two)
        assert reader.stats().held == 2
        try:
            take(frame, gpu.stream())
            raise SystemExit("no error")
        except tb.BusyError:
            pass
        again = take(frame, one)  # in the order of the first
        frame.release()
        brakes = Brake(one), Brake(two)
        for taken in (first, second, again):
            taken.close()
        assert reader.stats().held == 2
        brakes[0].off()
        gpu.synchronize(one)
        time.sleep(0.02)
        assert reader.stats().held >= 1, "the second stream still reads"
        brakes[1].off()
        soon(lambda: reader.stats().held == 0)
        """)


@needs_gpu
def test_what_a_closed_bus_or_a_parent_had_is_refused() -> None:
    run("""
        pool.write(A)
        frame, loan = pool.read(), pool.loan()
        taken, capsule = take(frame, 2), frame.__dlpack__(stream=1)
        calls = (frame.poll, frame.wait, frame.copy, lambda: loan.publish(stream=1),
                 lambda: pool.write(A, stream=1), lambda: frame.__cuda_array_interface__,
                 lambda: loan.__cuda_array_interface__, lambda: frame.__dlpack__(stream=1))
        def refused(kind):
            for call in calls:
                try:
                    call()
                    raise SystemExit("no error")
                except kind:
                    pass
        child = os.fork()
        if child == 0:
            refused(tb.ForkedError)
            try:
                frame.release(stream=1)
            except tb.ForkedError:
                pass
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        tb.open_bus("other").close()
        pool.bus.close()
        refused(tb.ClosedError)
        frame.release(stream=1)
        taken.close()
        del capsule
        """)


@needs_gpu
def test_views_outlive_the_reader() -> None:
    run("""
        pool.write(A)
        one, two = gpu.stream(), gpu.stream()
        reader = tb.Reader("camera/front")
        frame = reader.next(5)
        first, second = take(frame, one), take(frame, two)
        frame.release()
        first.close()
        reader.close()
        del reader, frame
        import gc; gc.collect()
        assert pool.stats().readers == 1
        assert (gpu.get(second.tensor.data, A, two) == A).all()
        second.close()
        soon(lambda: pool.stats().readers == 0)
        """)


@needs_gpu
def test_release_names_the_stream() -> None:
    run("""
        pool.write(A)
        mine = gpu.stream()
        reader = tb.Reader("camera/front")
        for ordered in (False, True):
            frame = reader.newest(5) if not ordered else reader.frame(pool.last)
            brake = Brake(mine)
            frame.release(stream=mine) if ordered else frame.release()
            assert frame.released and reader.stats().held == int(ordered)
            frame.release(stream=mine)
            brake.off()
            soon(lambda: reader.stats().held == 0)
        """)


@needs_gpu
def test_who_has_the_address_keeps_the_frame_by_its_object() -> None:
    run("""
        reader = tb.Reader("camera/front")
        kept = []
        for i in range(3):
            pool.write(A + i)
        for frame in reader:
            kept.append((frame, frame.__cuda_array_interface__["data"][0]))
            if len(kept) == 2:
                break
        del frame
        assert reader.stats().held == 2
        values = [gpu.get(address, A) for _, address in kept]
        assert [int(v[0, 0]) for v in values] == [f.sequence - 1 for f, _ in kept]
        kept.clear()
        soon(lambda: reader.stats().held == 0)
        """)


# ---- several devices ----


@needs_fake
def test_g04_cuda_without_a_number_is_the_current_device() -> None:
    run("""
        assert tb.Pool.register(A, device="cuda").device == "cuda:0"
        gpu.begin(1)
        here = tb.Pool.register(A, device="cuda")
        assert here.device == "cuda:1"
        memory = Memory(A)  # on the second device
        for tensor in (Interface(memory), Exporter(memory, device=1)):
            like = tb.Pool.register(tensor)
            assert like.device == "cuda:1"
            like.write(tensor)
            pool.write(tensor)  # and from there to the first one
            assert (like.read().copy() == A).all() and (pool.read().copy() == A).all()
        try:
            tb.Pool.register(A, device="cuda:7")
            raise SystemExit("no error")
        except tb.NotFoundError as error:
            assert "7" in str(error)
        """, machine="devices=2;peer=0-1")


@needs_fake
def test_nothing_is_left_with_the_driver(tmp_path: os.PathLike[str]) -> None:
    leaks = os.path.join(tmp_path, "leaks")
    out, _ = kit.run(gpu_kit.PROLOGUE, """
        bus = tb.open_bus("camera")
        A = np.arange(24, dtype="f4")
        for i in range(3):
            with tb.Pool.register(A, name="front", device="cuda:0") as pool:
                pool.write(A)
                pool.write(A + 1, stream=1)
                reader = tb.Reader("camera/front", stream_ordered=True)
                frame = reader.next(5)
                taken = take(frame, 2)
                frame.release()
                taken.close()
                with pool.loan() as loan:
                    del loan
                soon(lambda: reader.stats().held == 0)
                reader.close()
            del pool, reader, frame, taken
        bus.close()
        """, env=gpu_kit.environment() | {"FAKE_CUDA_LEAKS": leaks})
    assert not os.path.exists(leaks) or open(leaks).read() == ""
