"""Host memory of one's own as a pool's slots: register(array, adopt=descriptor)."""

from __future__ import annotations

import gc
import mmap
import os
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import kit
import tensorbus as tb

PAGE = mmap.PAGESIZE
COUNT, SHAPE = 4, (5, 7)  # slots of 140 bytes: no whole pages
BYTES = COUNT * 5 * 7 * 4


class Memory:
    """A memfd and where it is mapped; `array` looks at it from `offset` on."""

    def __init__(self, offset: int = 0, flags: int = os.MFD_ALLOW_SEALING) -> None:
        self.fd = os.memfd_create("frames", os.MFD_CLOEXEC | flags)
        os.ftruncate(self.fd, 2 * PAGE)
        self.map = mmap.mmap(self.fd, 2 * PAGE)
        self.array: np.ndarray = np.frombuffer(self.map, "f4", BYTES // 4, offset).reshape(COUNT, *SHAPE)
        self.array[:] = np.arange(COUNT).reshape(COUNT, 1, 1)

    def fileno(self) -> int:
        return self.fd

    def is_free(self) -> bool:
        """Whether nobody looks at the mapping any more, ourselves included."""
        gc.collect()
        try:
            self.map.close()
        except BufferError:
            return False
        return True


    def forget(self) -> None:
        self.array = np.empty(0)


@pytest.fixture
def make() -> Iterator[Callable[..., Memory]]:
    made: list[Memory] = []

    def one(*arguments: int) -> Memory:
        made.append(Memory(*arguments))
        return made[-1]

    yield one
    for memory in made:
        memory.forget()
        assert memory.is_free(), "somebody looks at it still"
        os.close(memory.fd)


@pytest.fixture
def memory(make: Callable[..., Memory]) -> Memory:
    return make()


# The same in a process of its own.
MAPPED = """
import mmap
fd = os.memfd_create("frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
os.ftruncate(fd, mmap.PAGESIZE)
mapped = mmap.mmap(fd, mmap.PAGESIZE)
frames = np.frombuffer(mapped, "u1", 560).reshape(4, 140)
bus = tb.open_bus("camera")
"""
READER = """
reader = tb.Reader("camera/grey", 10, every=True, ack=True)
for frame in reader:
    array = frame.numpy()
    say(*array.shape, int(array.min()), int(array.max()))
    reader.ack(frame)
    del array
"""


def test_the_slots_are_the_array(bus: tb.Bus, memory: Memory) -> None:
    pool = tb.Pool.register(memory.array, adopt=memory, slots=COUNT, name="grey",
                            policy="every", wait_readers=1)
    assert (pool.slots, pool.shape, pool.device) == (COUNT, SHAPE, "cpu")
    begin = memory.array.ctypes.data
    with kit.Script(READER) as reader:
        for turn in range(6):
            with pool.loan() as array:
                number, rest = divmod(array.ctypes.data - begin, array.nbytes)
                assert rest == 0 and 0 <= number < COUNT
                assert (array == memory.array[number]).all()  # as it was
                memory.array[number] = 10 + turn  # the same memory
            assert reader.hear() == f"5 7 {10 + turn} {10 + turn}"
        pool.wait_acked(timeout=10)
        assert pool.stats().copies == 0
        del array
        memory.forget()
        assert not memory.is_free()
        pool.free()
        kit.await_true(memory.is_free, "the memory comes back")
        assert "FreedError" in reader.end(1)[1]


def test_a_whole_array_is_one_slot_and_a_file_is_a_descriptor(
    bus: tb.Bus, make: Callable[..., Memory]
) -> None:
    memory = make(PAGE)
    with open(memory.fd, "r+b", closefd=False) as file:
        with pytest.raises(tb.Error, match="another part of it is mapped there"):
            tb.Pool.register(memory.array, adopt=file)
        pool = tb.Pool.register(memory.array, adopt=file, adopt_offset=PAGE)
    assert (pool.slots, pool.shape) == (1, (COUNT, *SHAPE))
    pool.write(np.full(pool.shape, 9, "f4"))  # by copy, into it
    assert (memory.array == 9).all()
    pool.free()


def test_memory_that_the_library_maps(bus: tb.Bus, memory: Memory) -> None:
    pool = tb.Pool.register(tb.Spec(SHAPE, "f4"), adopt=memory.fd, adopt_offset=PAGE, slots=2)
    pool.write(np.full(SHAPE, 3, "f4"))
    assert (pool.read().numpy() == 3).all()
    seen = np.frombuffer(memory.map, "f4", 2 * 35, PAGE).reshape(2, *SHAPE)
    assert sorted(seen.max((1, 2))) == [0, 3]
    pool.free()


def test_a_view_that_is_left_keeps_no_slot_from_being_published(directory: pathlib.Path) -> None:
    """Its pages are the user's own, and hold other slots: none becomes read-only."""
    kit.run(MAPPED, """
        pool = tb.Pool.register(frames, adopt=fd, slots=4)
        kept = []
        for turn in range(8):
            with pool.loan() as array:
                kept.append(array[:1])
                array[:] = turn
        frames[:] = 9
        assert (pool.read().numpy() == 9).all()
        """)


def test_a_loan_s_array_keeps_the_memory_when_the_bus_is_closed(directory: pathlib.Path) -> None:
    kit.run(MAPPED, """
        import gc
        pool = tb.Pool.register(frames, adopt=fd)
        del frames
        array = pool.loan().numpy()
        bus.close()
        del pool
        gc.collect()
        time.sleep(0.05)
        tb.open_bus("other").close()  # what came back would be let go by now
        try:
            mapped.close()
            raise SystemExit("closed under a view")
        except BufferError:
            array[:] = 5
            del array
            gc.collect()
            mapped.close()
        """)


def test_what_cannot_be_adopted(
    bus: tb.Bus, memory: Memory, make: Callable[..., Memory]
) -> None:
    def refuse(error: type[Exception], text: str, like: object, adopt: Any,
               **options: Any) -> None:
        with pytest.raises(error, match=text):
            tb.Pool.register(like, adopt=adopt, **options)

    array = memory.array
    refuse(tb.UnsupportedError, "memfd_create", array, True)
    refuse(tb.UnsupportedError, "read-only", np.frombuffer(bytes(8), "u1"), memory)
    refuse(tb.InvalidError, "contiguous", array[:, ::2], memory)
    refuse(tb.InvalidError, "first dimension is 3", array, memory, slots=3)
    refuse(tb.Error, "something else is mapped there", np.zeros(4096, "u1"), memory)
    refuse(tb.MismatchError, "main memory", array, memory, device="cuda:0")
    refuse(tb.InvalidError, "adopt_offset is a place", array, True, adopt_offset=8)
    refuse(OverflowError, "negative|convert", array, memory, adopt_offset=-1)
    refuse(TypeError, "fileno", array, "frames")
    refuse(ValueError, "descriptor", array, -1)
    with tempfile.TemporaryFile() as file:
        file.truncate(PAGE)
        refuse(tb.UnsupportedError, "memfd", tb.Spec(8, "u1"), file)
    plain = make(0, 0)
    refuse(tb.UnsupportedError, "seal", plain.array, plain)
    pool = tb.Pool.register(array, adopt=memory, slots=COUNT)  # nothing is left of all that
    pool.free()


def test_nothing_is_kept_of_a_registration_that_fails(bus: tb.Bus, memory: Memory) -> None:
    tb.Pool.register(tb.Spec(1, "u1"), name="taken")
    with pytest.raises(tb.ExistsError):
        tb.Pool.register(memory.array, adopt=memory, name="taken")
    memory.forget()
    assert memory.is_free()




def test_the_page_s_code_runs(directory: pathlib.Path) -> None:
    page = (pathlib.Path(__file__).parents[2] / "docs" / "adopt.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.S)
               if "adopt=fd" in block]
    (wanted,) = re.findall(r"print\(.*# (.*)", code)
    assert kit.run(code)[0].strip() == wanted
