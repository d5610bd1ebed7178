"""JAX on a real GPU: the same addresses, the right values, in order without a CPU that waits. Each
test in processes of its own."""

import pytest

import gpu_kit
from gpu_kit import FRAME_SCENE as SCENE, needs, needs_real

pytestmark = [pytest.mark.usefixtures("directory"), needs_real, needs("jax")]

JAX = """
import jax, jax.numpy as jnp
if jax.default_backend() != "gpu":
    say("no GPU")
    raise SystemExit
def address_of(array):
    return array.unsafe_buffer_pointer()
"""
NO_GPU = "JAX has no GPU here: is its CUDA plugin installed?"


def run(*sources: str) -> list[str]:
    said = gpu_kit.run(JAX, *sources).split()
    if said == ["no", "GPU"]:
        pytest.skip(NO_GPU)
    return said


def test_jax_reads_in_place() -> None:
    run(SCENE, """
        address = frame.__cuda_array_interface__["data"][0]
        array = jnp.from_dlpack(frame)
        assert address_of(array) == address and array.dtype == jnp.float32
        assert (np.asarray(array) == A).all()
        assert float(jnp.sum(array * 2)) == 2 * A.sum() and address_of(array) == address
        frame.release()
        assert frame.released and pool.stats().held == 1  # the array has it
        del array
        soon(lambda: pool.stats().held == 0)
        """)


def test_jax_writes_by_copy() -> None:
    run(SCENE, """
        frame.release()
        for dtype in (jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_, jnp.complex64):
            array = (jnp.arange(24).reshape(4, 6) % 2).astype(dtype)
            like = tb.Pool.register(array)
            assert like.device == "cuda:0", like.device
            assert like.dtype == array.dtype.name, (like.dtype, array.dtype)
            like.write(array)  # behind what JAX has on its way
            back = jnp.from_dlpack(like.read())
            assert back.dtype == dtype and bool((back == array).all()), dtype
            del back
            like.free()
        grown = jnp.zeros((4, 6), jnp.float32)
        for i in range(20):
            grown = grown + 1
            pool.write(grown)
            assert (pool.read().copy() == i + 1).all()
        """)


def test_jax_waits_on_the_gpu_for_a_frame_that_is_under_way() -> None:
    run("""
        twice = jax.jit(lambda x: x * 2)
        twice(jnp.zeros((4, 6), jnp.float32)).block_until_ready()  # compiled
        """, gpu_kit.SCENE, """
        mine = gpu.stream()
        reader = tb.Reader("camera/front", stream_ordered=True)
        for i in range(1, 4):
            brake = Brake(mine)
            pool.write(A + i, stream=mine)
            frame = reader.next(20)
            assert frame.poll() is False
            threading.Timer(0.3, brake.off).start()  # whatever JAX waits for meanwhile
            array = jnp.from_dlpack(frame)
            result = twice(array)
            assert (np.asarray(result) == (A + i) * 2).all(), i
            assert frame.poll() is True
            del array
            frame.release()
        soon(lambda: reader.stats().held == 0)
        """)


def test_jax_reads_what_another_process_writes() -> None:
    frames = 50
    with gpu_kit.script(gpu_kit.SCENE, f"frames = {frames}", """
        every = tb.Pool.register(tb.Spec(65536, "float32"), name="every", device="cuda:0", slots=4,
                                 policy="every", wait_readers=1)
        mine = gpu.stream()
        for i in range(frames):
            every.write(np.full(65536, i, "f4"), 60, stream=mine)
        hear()
        """) as producer, gpu_kit.script(JAX.replace('say("no GPU")', 'say("no GPU"); hear()'),
                                         f"frames = {frames}", """
        tb.open_bus("detector")
        with tb.Reader("camera/every", every=True, stream_ordered=True) as reader:
            for i, frame in enumerate(reader):
                array = jnp.from_dlpack(frame)
                assert float(array[0]) == float(array[-1]) == i, i
                del array
                if i == frames - 1:
                    break
            del frame
            soon(lambda: reader.stats().held == 0)
            assert reader.stats().missed == 0
        say("right")
        """) as consumer:
        said = consumer.hear()
        if said == "no GPU":
            pytest.skip(NO_GPU)
        assert said == "right"
        consumer.end()
        producer.tell()
        producer.end()


@needs("torch")
def test_jax_and_torch_have_equal_pointers() -> None:
    run("import torch", SCENE, """
        array, tensor = jnp.from_dlpack(frame), torch.from_dlpack(frame)
        assert address_of(array) == tensor.data_ptr()
        assert float(array.sum()) == float(tensor.sum()) == A.sum()
        """)
