"""CuPy on a real GPU: the same addresses, the right values, in order without a CPU that waits. Each
test in processes of its own."""

import pytest

from gpu_kit import FRAME_SCENE as SCENE, needs, needs_real, run_words as run

pytestmark = [pytest.mark.usefixtures("directory"), needs_real, needs("cupy")]


def test_cupy_reads_and_writes_in_place() -> None:
    run("import cupy", SCENE, """
        address = frame.__cuda_array_interface__["data"][0]
        for take_it in (cupy.asarray, cupy.from_dlpack):
            try:
                array = take_it(frame)
            except BufferError as error:
                say("refused", take_it.__name__, error)  # one that knows of read-only memory
                continue
            assert array.data.ptr == address and array.dtype == "f4"
            assert (cupy.asnumpy(array) == A).all()
        array = cupy.asarray(frame)
        assert array.data.ptr == address
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            with pool.loan(stream=stream) as loan:
                cupy.from_dlpack(loan)[...] = cupy.arange(24, dtype="f4").reshape(4, 6) + 3
            assert (pool.read().copy() == A + 3).all()
            source = cupy.arange(24, dtype="f4").reshape(4, 6) * 2
            pool.write(source, stream=stream)
            assert (pool.read().copy() == A * 2).all()
            pool.write(cupy.asfortranarray(source + 1))
            assert (pool.read().copy() == A * 2 + 1).all()
        like = tb.Pool.register(source)
        assert like.device == "cuda:0" and like.dtype == "float32"
        """)


@needs("torch")
def test_cupy_and_torch_have_equal_pointers() -> None:
    run("import torch, cupy", SCENE, """
        tensor = torch.from_dlpack(frame)
        array = cupy.asarray(frame)
        assert tensor.data_ptr() == array.data.ptr
        assert float(tensor.sum()) == float(array.sum()) == A.sum()
        """)
