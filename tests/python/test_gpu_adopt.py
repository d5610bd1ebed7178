"""Pools whose slots are a tensor's own memory: register(tensor, adopt=True)."""

import pytest

import gpu_kit
from gpu_kit import needs_gpu

pytestmark = [pytest.mark.usefixtures("directory"), needs_gpu]

BEGIN = """
gpu.begin()
tb.open_bus("camera")
A = np.arange(24, dtype="f4").reshape(4, 6)
memory = Memory(A)
"""


def run(*sources: str, machine: str = "devices=1") -> None:
    gpu_kit.run(BEGIN, *sources, machine=machine)


def test_the_slots_are_the_tensor_s_memory() -> None:
    run("""
        import gc
        pool = tb.Pool.register(Exporter(memory, "whole"), name="front", adopt=True)
        assert pool.slots == 1 and pool.shape == (4, 6) and pool.device == "cuda:0"
        with pool.loan() as loan:  # as it is
            taken = take(loan, 1)
            assert taken.tensor.data == memory.address
            taken.close()
        frame = pool.read()
        assert (frame.copy() == A).all()
        assert pool.stats().copies == 0 and frame.info.copies == 0
        gpu.put(memory.address, A + 1)  # past all rules: it is the same memory
        gpu.synchronize()
        assert (frame.copy() == A + 1).all()
        frame.release()
        gc.collect()
        assert deleted() == []
        pool.free()
        soon(lambda: deleted() == ["whole"])
        """)


def test_items_along_the_first_dimension_are_slots() -> None:
    run("""
        pool = tb.Pool.register(Exporter(memory, "rows"), name="rows", adopt=True, slots=4)
        assert pool.slots == 4 and pool.shape == (6,)
        for i in range(4):
            with pool.loan() as loan:
                taken = take(loan, 1)
                assert taken.tensor.data == memory.address + i * 24
                taken.close()
            frame = pool.read()
            assert (frame.copy() == A[i]).all()
            frame.release()
        pool.write(np.full(6, 9, "f4"))  # by copy, into one of them
        assert (pool.read().copy() == 9).all()
        assert (gpu.get(memory.address, A) == 9).all(axis=1).sum() == 1
        pool.free()
        soon(lambda: deleted() == ["rows"])
        """)


def test_readers_elsewhere_see_the_memory_and_keep_it() -> None:
    with gpu_kit.script(BEGIN, """
            pool = tb.Pool.register(Exporter(memory, "shared"), name="front", adopt=True)
            with pool.loan():
                pass
            say("published")
            hear()
            gpu.put(memory.address, A + 5)
            gpu.synchronize()
            say("changed")
            hear()
            pool.free()
            time.sleep(0.1)
            assert deleted() == [], "a reader is attached, and holds a frame"
            say("freed")
            soon(lambda: deleted() == ["shared"], 20)
            say("back")
            """) as owner, gpu_kit.script("""
            gpu.begin()
            hear()
            reader = tb.Reader("camera/front")
            frame = reader.next(20)
            A = np.arange(24, dtype="f4").reshape(4, 6)
            assert (frame.copy() == A).all()
            say("read")
            hear()
            assert (frame.copy() == A + 5).all()
            say("same")
            hear()
            assert (frame.copy() == A + 5).all()
            frame.release()
            reader.close()
            say("done")
            """) as reader:
        assert owner.hear() == "published"
        reader.tell()
        assert reader.hear() == "read"
        owner.tell()
        assert owner.hear() == "changed"
        reader.tell()
        assert reader.hear() == "same"
        owner.tell()
        assert owner.hear() == "freed"
        reader.tell()
        assert reader.hear() == "done"
        assert owner.hear() == "back"
        reader.end()
        owner.end()


def test_what_cannot_be_adopted_is_refused_and_let_go() -> None:
    run("""
        def refused(kind, text, tensor, **options):
            try:
                tb.Pool.register(tensor, adopt=True, **options)
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError(text)
        refused(tb.UnsupportedError, "takes a tensor on a GPU", A)
        refused(tb.UnsupportedError, "write into a loan", b"bytes")
        refused(TypeError, "is no tensor", tb.Spec(4, "u1"))
        refused(tb.InvalidError, "first dimension is 3", Exporter(memory, "a"), slots=3)
        refused(tb.MismatchError, 'device is "cpu"', Exporter(memory, "b"), device="cpu")
        refused(tb.UnsupportedError, "lock_memory", Exporter(memory, "c"), lock_memory=True)
        strided = Interface(memory, strides=(48, 4), shape=(2, 6))
        refused(tb.InvalidError, "contiguous", strided)
        refused(tb.UnsupportedError, "read-only", Interface(memory, data=(memory.address, True)))
        assert deleted() == ["a", "b", "c"]
        # A frame of our own is read-only, and says so.
        pool = tb.Pool.register(Interface(memory), name="front", adopt=True)
        with pool.loan():
            pass
        refused(tb.UnsupportedError, "read-only", pool.read())
        """)


def test_the_bus_s_end_gives_it_back() -> None:
    run("""
        for n in range(3):
            with tb.open_bus(f"bus{n}") as bus:
                pool = tb.Pool.register(Exporter(memory, f"tensor{n}"), adopt=True, bus=bus)
                with pool.loan():
                    pass
            soon(lambda: deleted()[-1:] == [f"tensor{n}"])
        assert deleted() == ["tensor0", "tensor1", "tensor2"]
        """)


@gpu_kit.needs_fake
def test_a_dma_buf_by_its_descriptor() -> None:
    """Which the fake driver takes any memfd for."""
    run("""
        buffer = os.memfd_create("camera", os.MFD_CLOEXEC)
        os.ftruncate(buffer, 1 << 16)
        pool = tb.Pool.register(tb.Spec((4, 6), "f4"), adopt=buffer, adopt_offset=4096, slots=2,
                                device="cuda:0", name="front")
        os.close(buffer)  # it is the caller's
        assert pool.device == "cuda:0" and pool.slots == 2
        for i in range(4):
            pool.write(A + i)
            assert (pool.read().copy() == A + i).all()
        pool.free()
        """)


def test_a_descriptor_is_not_of_a_gpu_s_tensor() -> None:
    run("""
        fd = os.memfd_create("frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            tb.Pool.register(Exporter(memory, "other"), adopt=fd)
            raise SystemExit("no error")
        except tb.InvalidError as error:
            assert "say adopt=True" in str(error)
        os.close(fd)
        assert deleted() == ["other"]
        """)


def test_a_loan_s_tensor_keeps_the_memory_when_the_bus_is_closed() -> None:
    run("""
        import gc
        pool = tb.Pool.register(Exporter(memory, "kept"), name="front", adopt=True)
        loan = pool.loan()
        taken = take(loan, 1)
        pool.bus.close()
        del pool, loan
        gc.collect()
        time.sleep(0.05)
        tb.open_bus("other").close()
        assert deleted() == [], "a tensor of it is there still"
        taken.close()
        soon(lambda: deleted() == ["kept"])
        """)
