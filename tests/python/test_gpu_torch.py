"""PyTorch on a real GPU: the same addresses, the right values, in order without a CPU that waits.
Each test in processes of its own."""

import pytest

import gpu_kit
from gpu_kit import FRAME_SCENE as SCENE, needs, needs_real, needs_two, run_words as run

pytestmark = [pytest.mark.usefixtures("directory"), needs_real, needs("torch")]


def test_torch_reads_in_place() -> None:
    run("import torch; torch.cuda.init()", SCENE, """
        tensor = torch.from_dlpack(frame)
        assert tensor.data_ptr() == frame.__cuda_array_interface__["data"][0]
        assert tensor.device == torch.device("cuda:0") and tensor.dtype == torch.float32
        assert (tensor.cpu().numpy() == A).all()
        address = tensor.data_ptr()
        with torch.cuda.stream(torch.cuda.Stream()):
            other = torch.from_dlpack(frame)
            assert other.data_ptr() == address and float(other.sum()) == A.sum()
        frame.release()
        del tensor, other
        torch.cuda.synchronize()
        soon(lambda: pool.stats().held == 0)
        """)


def test_torch_writes_in_place_and_by_copy() -> None:
    run("import torch", SCENE, """
        frame.release()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            with pool.loan(stream=stream) as loan:
                tensor = torch.from_dlpack(loan)
                torch.arange(24, out=tensor.view(-1))
                tensor += 5
                del tensor
        assert (pool.read().copy() == A + 5).all() and pool.read().info.copies == 0
        whole = torch.arange(96, dtype=torch.float32, device="cuda").reshape(8, 12)
        for tensor in (whole[::2, 1::2], whole[:6, :4].T, whole[4:, 6:]):
            with torch.cuda.stream(stream):
                tensor = tensor * 2  # work that is still on its way
                pool.write(tensor, stream=stream)
                pool.write(tensor)
            assert (pool.read().copy() == tensor.cpu().numpy()).all()
            host = tb.Pool.register(tensor, device="cpu")
            host.write(tensor)
            assert (host.read().numpy() == tensor.cpu().numpy()).all()
        pool.write(torch.ones(4, 6))
        assert (pool.read().copy() == 1).all()
        """)


def test_g09_torchs_dtypes_arrive_as_they_are() -> None:
    run("import torch", SCENE, """
        for dtype in (torch.bfloat16, torch.float16, torch.uint16, torch.bool, torch.complex64,
                      torch.float8_e4m3fn, torch.int64):
            bits = torch.arange(6, dtype=torch.uint8, device="cuda").reshape(2, 3)
            tensor = bits.bool() if dtype == torch.bool else bits.float().to(dtype)
            try:
                tensor.__dlpack__()
            except BufferError:
                continue  # this PyTorch does not export it
            like = tb.Pool.register(tensor)
            assert like.device == "cuda:0" and like.dtype == str(dtype).split(".")[1]
            like.write(tensor)
            back = torch.from_dlpack(like.read())
            assert back.dtype == dtype and back.shape == (2, 3)
            assert (back.view(torch.uint8) == tensor.view(torch.uint8)).all(), dtype
        """)


def test_g10_two_processes_are_ordered_on_the_gpu() -> None:
    """64 MiB frames, filled and read with no synchronisation on either side."""
    frames = 300
    with gpu_kit.script("import torch", f"frames = {frames}", """
        tb.open_bus("producer")
        pool = tb.Pool.register(tb.Spec(16 << 20, "float32"), name="frames", slots=4,
                                device="cuda:0", policy="every", wait_readers=1)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for i in range(frames):
                with pool.loan(20, stream=stream) as loan:
                    tensor = torch.from_dlpack(loan)
                    tensor.fill_(i)
                    del tensor
        say("written")
        hear()
        """) as producer, gpu_kit.script("import torch", f"frames = {frames}", """
        tb.open_bus("consumer")
        torch.cuda.init()
        ends = torch.empty(frames, 2, device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), tb.Reader(
                "producer/frames", every=True, stream_ordered=True) as reader:
            early = 0
            for i, frame in enumerate(reader):
                early += not frame.poll()
                tensor = torch.from_dlpack(frame)
                ends[i, 0], ends[i, 1] = tensor[0], tensor[-1]
                del tensor
                if i == frames - 1:
                    break
            del frame
            stream.synchronize()
            soon(lambda: reader.stats().held == 0)
            assert reader.stats().missed == 0 and reader.stats().incomplete == 0
        wrong = (ends.cpu() != torch.arange(frames).reshape(-1, 1)).sum()
        say("right" if int(wrong) == 0 else f"{int(wrong)} wrong", early)
        """) as consumer:
        assert consumer.hear().startswith("right")
        assert producer.hear() == "written"
        consumer.end()
        producer.tell()
        producer.end()


@needs_two
def test_torch_reads_a_pool_of_another_gpu() -> None:
    """Mapped where the reader works, if the GPUs reach each other; else copied there by PyTorch."""
    run("import torch; torch.cuda.init()", SCENE, """
        frame.release()
        one = torch.cuda.Stream(1)
        assert torch.cuda.current_device() == 0
        try:
            reader = tb.Reader("camera/front", stream_ordered=True, start="next",
                               device="cuda:1")
        except tb.UnsupportedError as error:
            assert not torch.cuda.can_device_access_peer(1, 0), error
            assert "cuda:1" in str(error) and "cuda:0" in str(error)
            assert (torch.from_dlpack(pool.read()).to("cuda:1").cpu().numpy() == A).all()
            raise SystemExit
        with torch.cuda.stream(torch.cuda.Stream(0)):
            for i in range(50):
                with pool.loan(stream=torch.cuda.current_stream()) as loan:
                    torch.from_dlpack(loan).fill_(i)
                frame = reader.next(20)
                with torch.cuda.stream(one):
                    tensor = torch.from_dlpack(frame)
                    assert tensor.device == torch.device("cuda:1"), tensor.device
                    total = tensor.sum()
                    del tensor
                frame.release()
                one.synchronize()
                assert float(total) == 24 * i, (i, float(total))
        soon(lambda: reader.stats().held == 0)
        """)


@needs_two
def test_torch_writes_from_another_gpu() -> None:
    run("import torch", SCENE, """
        frame.release()
        for i in range(20):
            with torch.cuda.device(1):
                tensor = torch.full((4, 6), float(i), device="cuda:1")
                stream = torch.cuda.current_stream()
                assert pool.write(tensor, stream=stream) if i % 2 else pool.write(tensor)
            assert (pool.read().copy() == i).all(), i
        """)
