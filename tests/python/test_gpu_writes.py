"""Tensors that go into a GPU's pools, by copy and in place, and in which order. See test_gpu.py."""

import pytest

from gpu_kit import needs_gpu, run_scene as run

pytestmark = pytest.mark.usefixtures("directory")


# ---- in ----


@needs_gpu
def test_a_tensor_of_the_gpu_brings_its_device() -> None:
    run("""
        class Named:  # as CuPy's arrays say it
            shape, dtype, device = A.shape, A.dtype, "<CUDA Device 0>"
        class Array(Named, Exporter): pass
        class Plain(Named, Interface): pass
        memory = Memory(A)
        for tensor in (Exporter(memory), Interface(memory), Array(memory), Plain(memory)):
            like = tb.Pool.register(tensor)
            assert like.device == "cuda:0" and like.dtype == "float32" and like.shape == (4, 6)
            like.write(tensor)
            assert (like.read().copy() == A).all()
            host = tb.Pool.register(tensor, device="cpu")
            host.write(tensor)
            assert host.device == "cpu" and (host.read().numpy() == A).all()
        strided = Interface(memory, shape=(4, 3), strides=(24, 8))
        half = tb.Pool.register(strided)
        half.write(strided)
        assert (half.read().copy() == A[:, ::2]).all()
        for changed, word in (({"mask": 1}, "mask"), ({"strides": (25, 4)}, "multiples"),
                              ({"typestr": ">f4"}, "big-endian")):
            try:
                pool.write(Interface(memory, **changed))
                raise SystemExit(f"no error: {word}")
            except tb.Error as error:
                assert word in str(error), error
        """)


@needs_gpu
def test_a_producer_is_asked_for_our_stream() -> None:
    run("""
        class Stream:  # of PyTorch
            def __init__(self, number): self.cuda_stream = number
        class Other:  # of CuPy
            def __init__(self, number): self.ptr = number
        class Protocol:
            def __init__(self, number): self.number = number
            def __cuda_stream__(self): return 0, self.number
        memory = Memory(A)
        tensor = Exporter(memory)
        mine = gpu.stream()
        pool.write(tensor)
        for stream in (mine, Stream(mine), Other(mine), Protocol(mine), 0, 1, 2, Stream(0)):
            pool.write(tensor, stream=stream)
        assert tensor.streams == [1] + [mine] * 4 + [1, 1, 2, 1], tensor.streams
        assert (pool.read().copy() == A).all()
        for bad, kind in (("x", TypeError), (-1, ValueError), (True, TypeError), (1.5, TypeError)):
            try:
                pool.write(tensor, stream=bad)
                raise SystemExit(f"no error: {bad!r}")
            except kind as error:
                assert "stream" in str(error)
        """)


@needs_gpu
@pytest.mark.parametrize("ours", ["None", "gpu.stream()", "1"])
def test_the_interfaces_stream_is_waited_for(ours: str) -> None:
    run(f"ours = {ours}", """
        theirs = gpu.stream()
        memory = Memory(np.zeros_like(A))
        brake = Brake(theirs)
        gpu.put(memory.address, A, theirs)  # on its way
        timer = threading.Timer(0.05, brake.off)
        timer.start()
        pool.write(Interface(memory, stream=theirs), stream=ours)
        assert (pool.read().copy() == A).all()
        timer.join()
        """)


@needs_gpu
def test_a_source_is_kept_until_the_stream_has_passed() -> None:
    run("""
        mine = gpu.stream()
        sources = [Exporter(Memory(A), "one"), A + 1, Exporter(Memory(A + 2), "two")]
        brake = Brake(mine)
        while sources:
            pool.write(sources.pop(0), stream=mine)  # nobody else keeps it
        assert deleted() == []
        brake.off()
        gpu.synchronize(mine)
        pool.write(Exporter(Memory(A + 3), "three"), stream=mine)
        assert sorted(deleted()) == ["one", "two"]
        gpu.synchronize(mine)
        assert (pool.read().copy() == A + 3).all()
        pool.free()
        del pool
        import gc; gc.collect()
        assert sorted(deleted()) == ["one", "three", "two"]
        """)


# ---- loans ----


@needs_gpu
def test_a_loan_is_filled_on_a_stream() -> None:
    run("""
        mine = gpu.stream()
        reader = tb.Reader("camera/front", stream_ordered=True)
        def stays_pending(frame):
            for _ in range(20):
                time.sleep(0.001)
                assert frame.poll() is False
        brake = Brake(mine)
        with pool.loan(stream=mine) as loan:
            assert isinstance(loan, tb.Loan) and loan.device == "cuda:0"
            address, read_only = loan.__cuda_array_interface__["data"]
            assert not read_only and loan.__cuda_array_interface__["stream"] == mine
            gpu.put(address, A, mine)
        frame = reader.next(5)
        assert frame.handle == pool.last
        stays_pending(frame)
        brake.off()
        assert (frame.copy() == A).all() and frame.info.copies == 0
        frame.release()
        loan = pool.loan()
        taken = take(loan, mine)  # the stream that fills it is known from here on
        assert taken.managed.flags == 0
        brake = Brake(mine)
        gpu.put(taken.tensor.data, A + 1, mine)
        taken.close()
        loan.publish()
        frame = reader.next(5)
        stays_pending(frame)
        brake.off()
        assert (frame.copy() == A + 1).all()
        frame.release()
        loan = pool.loan()
        brake = Brake(mine)
        gpu.put(loan.__cuda_array_interface__["data"][0], A + 2, mine)
        loan.publish(stream=mine)
        frame = reader.next(5)
        stays_pending(frame)
        brake.off()
        assert (frame.copy() == A + 2).all()
        """)


@needs_gpu
def test_a_loan_that_is_said_to_be_complete_waits_for_no_stream() -> None:
    run("""
        ordered = tb.Reader("camera/front", stream_ordered=True)
        plain = tb.Reader("camera/front")
        mine = gpu.stream()
        loan = pool.loan()
        gpu.put(loan.__cuda_array_interface__["data"][0], A, mine)
        gpu.synchronize(mine)
        brake, default = Brake(mine), Brake(1)  # for the call to go through one of them
        try:
            loan.publish(stream=-2)
            raise SystemExit("no error")
        except ValueError as error:
            assert "-1 for a slot" in str(error)
        assert loan.publish(stream=-1) == pool.last
        for reader in (ordered, plain):
            frame = reader.next(0)
            assert frame.poll() is True
            frame.release()
        brake.off()
        default.off()
        assert (pool.read().copy() == A).all()
        """)


@needs_gpu
@pytest.mark.parametrize("end", ["loan.cancel()", "del loan", "error"])
def test_a_loan_that_is_given_back_waits_for_its_stream(end: str) -> None:
    run(f"end = {end!r}", """
        mine = gpu.stream()
        loan = pool.loan()
        taken = take(loan, mine)
        brake = Brake(mine)
        gpu.put(taken.tensor.data, A, mine)
        taken.close()
        timer = threading.Timer(0.05, brake.off)
        timer.start()
        if end == "error":
            try:
                with loan:
                    raise KeyError
            except KeyError:
                pass
        else:
            exec(end)
        assert gpu.idle(mine), "the GPU still writes into a slot that others may have"
        timer.join()
        """)


@needs_gpu
def test_a_view_of_a_published_loan_changes_no_mapping() -> None:
    """Main memory becomes read-only then; a GPU's addresses are the driver's."""
    run("""
        def mapping(address):
            for line in open("/proc/self/maps"):
                begin, end = (int(part, 16) for part in line.split()[0].split("-"))
                if begin <= address < end:
                    return line.split()[1]
        loan = pool.loan()
        taken = take(loan, 1)
        before = mapping(taken.tensor.data)
        loan.publish()
        assert mapping(taken.tensor.data) == before
        for i in range(8):
            pool.write(A + i)
            assert (pool.read().copy() == A + i).all()
        taken.close()
        """)


@needs_gpu
def test_main_memory_is_filled_on_a_stream_too() -> None:
    run("""
        host = tb.Pool.register(A, name="host", device="cpu")
        memory, mine = Memory(A), gpu.stream()
        brake = Brake(mine)
        host.write(Exporter(memory), stream=mine)
        reader = tb.Reader("camera/host")
        try:
            reader.next(0)
            raise SystemExit("incomplete")
        except tb.AgainError:
            pass
        brake.off()
        frame = reader.next(5)
        assert (frame.numpy() == A).all()
        frame.release(stream=mine)
        with host.loan() as array:  # a slot that Python looks at: such writes are waited for
            array[:] = 1
            kept = array[0]
        for i in range(8):
            host.write(Interface(Memory(A + i)), stream=mine)
            assert (host.read().numpy() == A + i).all()
        """)
