"""PyTorch, JAX and CuPy, where they are installed: frames without a copy, tensors written as they
are. Each in a process of its own, since they start threads."""

import importlib.util

import pytest

import kit

SCENE = """
tb.open_bus("camera")
pool = tb.Pool.register(tb.Spec((4, 6), "float32"), name="front")
pool.write(np.arange(24, dtype="f4").reshape(4, 6))
reader = tb.Reader("camera/front")
frame = reader.next(1)
address = frame.numpy().ctypes.data
"""


def needs(module: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"{module} is not installed")


def run(framework: str, *sources: str, status: int = 0) -> tuple[str, str]:
    return kit.run(framework, SCENE, *sources, status=status,
                   env={"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""})


@needs("torch")
def test_torch_reads_in_place(directory: object) -> None:
    out, _ = run("import torch", """
        for take in (torch.from_dlpack, lambda f: torch.utils.dlpack.from_dlpack(f.__dlpack__())):
            tensor = take(frame)
            assert tensor.data_ptr() == address and tensor.shape == (4, 6)
            assert tensor.dtype == torch.float32 and tensor.sum() == 276
        frame.release()
        say(reader.stats().held)
        part = tensor[1]
        del tensor
        say(reader.stats().held, float(part.sum()))
        del part
        say(reader.stats().held)
        """)
    assert out.split() == ["1", "1", "51.0", "0"]


@needs("torch")
def test_torch_writes_in_place(directory: object) -> None:
    out, _ = run("import torch", """
        loan = pool.loan()
        with loan:
            tensor = torch.from_dlpack(loan)
            tensor.fill_(3)
            del tensor
        say(pool.read().numpy().sum(), pool.stats().copies)
        with pool.loan() as array:
            torch.from_numpy(array).copy_(torch.ones(4, 6))
        say(pool.read().numpy().sum(), pool.stats().copies)
        """)
    assert out.split() == ["72.0", "1", "24.0", "1"]


@needs("torch")
def test_torch_tensors_are_written_as_they_are(directory: object) -> None:
    run("import torch", """
        whole = torch.arange(96, dtype=torch.float32).reshape(8, 12)
        for tensor in (whole[::2, 1::2], whole[:6, :4].T, whole[4:, 6:]):
            pool.write(tensor)
            assert (pool.read().numpy() == tensor.numpy()).all()
        for dtype in (torch.bfloat16, torch.float16, torch.int64, torch.uint8,
                      torch.complex64):
            tensor = torch.ones(2, 3).to(dtype)
            other = tb.Pool.register(tensor)
            assert other.dtype == str(dtype).split(".")[1] and other.shape == (2, 3)
            other.write(tensor)
            assert (torch.from_dlpack(other.read()) == tensor).all()
        try:
            pool.write(torch.ones(4, 6, requires_grad=True))
            raise SystemExit("written")
        except (RuntimeError, BufferError) as error:
            assert "grad" in str(error)
        """)


@needs("torch")
def test_a_write_by_torch_is_explained(directory: object) -> None:
    _, err = run("import torch", "torch.from_dlpack(frame).add_(1)", status=-11)
    assert [line for line in err.splitlines() if "tensorbus" in line] == [
        "tensorbus: this process wrote into a frame of pool `camera/front`, which is read-only for "
        "all its readers: write into a copy (frame.copy(), array.copy(), tensor.clone())"]
    _, err = run("import torch", """
        with pool.loan() as array:
            array = torch.from_numpy(array)
            array.fill_(1)
        array.add_(1)
        """, status=-11)
    assert "after it was published" in err


@needs("jax")
def test_jax_reads_in_place(directory: object) -> None:
    run("import jax, jax.numpy as jnp", """
        array = jnp.from_dlpack(frame)
        assert array.unsafe_buffer_pointer() == address and float(array.sum()) == 276
        frame.release()
        assert reader.stats().held == 1
        del array
        import gc
        gc.collect()
        assert reader.stats().held == 0
        for dtype in (jnp.bfloat16, jnp.float8_e4m3fn, jnp.int32, jnp.bool_):
            tensor = jnp.ones((2, 3), dtype)
            other = tb.Pool.register(tensor)
            assert other.dtype == tensor.dtype.name
            other.write(tensor)
            assert (other.read().numpy() == np.asarray(tensor)).all()
        assert jnp.from_dlpack(tb.open_frame(pool.last)).dtype == jnp.float32
        """)


@needs("cupy")
def test_cupy_reads_a_copy(directory: object) -> None:
    run("import cupy", """
        array = cupy.asarray(frame.numpy())
        assert float(array.sum()) == 276
        """)

