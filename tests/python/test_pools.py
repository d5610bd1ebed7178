"""Pools and loans: what may be registered and written, what is refused, who ends what."""

import gc
import threading

import numpy as np
import pytest

import kit
import tensorbus as tb


def newest(path: str = "camera/front") -> np.ndarray:
    return tb.Reader(path, timeout=1).newest(1).copy()


# ---- registering ----


@pytest.mark.parametrize(
    ("like", "shape", "dtype"),
    [
        (np.empty((2, 3), np.float32), (2, 3), "float32"),
        (tb.Spec((2, 3), "uint8"), (2, 3), "uint8"),
        (tb.Spec(5, np.int16), (5,), "int16"),
        (tb.Spec((), float), (), "float64"),
        (tb.Spec([0, 3], np.dtype("<u4")), (0, 3), "uint32"),
        (tb.Spec((1, 2, 1, 2, 1, 2, 1, 2), "bool"), (1, 2, 1, 2, 1, 2, 1, 2), "bool"),
        (tb.Spec((2,), "bfloat16"), (2,), "bfloat16"),
        (tb.Spec((2,), "complex64"), (2,), "complex64"),
        (b"abc", (3,), "uint8"),
        (memoryview(b"abcd").cast("B", (2, 2)), (2, 2), "uint8"),
        (np.float32(1), (), "float32"),
        (np.empty((4, 6), order="F")[::2], (2, 6), "float64"),
    ],
)
def test_a_pool_is_like_its_example(
    bus: tb.Bus, like: object, shape: tuple[int, ...], dtype: str
) -> None:
    pool = tb.Pool.register(like, name="front")
    assert (pool.name, pool.shape, pool.dtype, pool.slots) == ("front", shape, dtype, 4)
    assert (pool.policy, pool.last, pool.freed, pool.bus) == ("latest", None, False, bus)
    assert pool.stats().frames == 0 and "front" in repr(pool)
    with pytest.raises(tb.AgainError, match="nothing was written"):
        pool.read()


@pytest.mark.parametrize(
    ("like", "options", "error", "text"),
    [
        (tb.Spec((2,), ">f4"), {}, tb.InvalidError, "big-endian"),
        (tb.Spec((2,), "f16"), {}, tb.InvalidError, "cannot be shared|unknown|no dtype"),
        (tb.Spec((2,), "no such"), {}, tb.InvalidError, "no such"),
        (tb.Spec((2,), "datetime64[s]"), {}, tb.InvalidError, "int64"),
        (tb.Spec((2,), object), {}, tb.InvalidError, "object"),
        (tb.Spec((2,), [("x", "i4")]), {}, tb.InvalidError, "void"),
        (tb.Spec((-1,), "u1"), {}, tb.InvalidError, "negative"),
        (tb.Spec((1,) * 9, "u1"), {}, tb.InvalidError, "9 dimensions"),
        (tb.Spec((1,) * 50000, "u1"), {}, tb.InvalidError, "50000 dimensions"),
        (tb.Spec((2**40, 2**40), "u1"), {}, tb.LimitError, "overflow"),
        (tb.Spec((2**40,), "u1"), {}, tb.NoMemoryError, "available"),
        (tb.Spec((2.5,), "u1"), {}, TypeError, "float"),
        ([1, 2], {}, TypeError, "list"),
        (tb.Spec((2,), "u1"), {"slots": 0}, tb.InvalidError, "1 to 256"),
        (tb.Spec((2,), "u1"), {"slots": 257}, tb.InvalidError, "1 to 256"),
        (tb.Spec((2,), "u1"), {"max_leases": 65}, tb.InvalidError, "1 to 64"),
        (tb.Spec((2,), "u1"), {"policy": "some"}, tb.InvalidError, "latest"),
        (tb.Spec((2,), "u1"), {"device": "gpu"}, tb.InvalidError, "gpu"),
        (tb.Spec((2,), "u1"), {"name": "a/b"}, tb.InvalidError, "a/b"),
        (tb.Spec((2,), "u1"), {"name": "a\0b"}, ValueError, "null"),
        (tb.Spec((2,), "u1"), {"ackers": "abc"}, TypeError, "sequence"),
        (tb.Spec((2,), "u1"), {"ackers": [1]}, TypeError, "argument"),
        (tb.Spec((2,), "u1"), {"bus": 3}, TypeError, "Bus"),
        (tb.Spec((2,), "u1"), {"no_such": 3}, TypeError, "no_such"),
        (tb.Spec((8,), "u1"), {"capacity_bytes": 4}, tb.Error, "4"),
    ],
)
def test_what_cannot_be_registered_is_refused(
    bus: tb.Bus, like: object, options: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        tb.Pool.register(like, **options)


def test_a_name_is_taken_once(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(2, "u1"), name="front")
    with pytest.raises(tb.ExistsError, match="front"):
        tb.Pool.register(tb.Spec(2, "u1"), name="front")
    assert pool.free()
    tb.Pool.register(tb.Spec(2, "u1"), name="front")
    names = {tb.Pool.register(tb.Spec(2, "u1")).name for _ in range(3)}
    assert len(names) == 3


# ---- loans ----


def test_a_block_publishes(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec((4, 6), "f4"), name="front")
    with pool.loan() as array:
        assert array.flags.writeable and array.shape == (4, 6) and array.dtype == np.float32
        array[:] = 7
        assert pool.last is None
    assert pool.last is not None and pool.last.sequence == 1
    assert (newest() == 7).all() and (pool.read().numpy() == 7).all()
    assert pool.stats()[:4] == (1, 96, 0, 0)


def test_an_exception_gives_the_slot_back(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), name="front", slots=2)
    for _ in range(10):
        with pytest.raises(ZeroDivisionError):
            with pool.loan(0) as array:
                array[:] = 1 // 0
    assert pool.last is None and pool.stats().frames == 0 and pool.stats().drops == 0
    assert not array.flags.writeable


def test_an_array_cannot_be_written_after_its_block(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec((4, 6), "u1"), name="front")
    with pool.loan() as array:
        array[:] = 7
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 8
    for made in (array[1:], array.T, array.reshape(-1), array.view("i1")):
        assert not made.flags.writeable
    frame = pool.read()
    with pool.loan() as array:
        pass
    del array
    assert (frame.numpy() == 7).all()


def test_what_was_made_in_the_block_makes_the_slot_read_only(bus: tb.Bus) -> None:
    """And the slot is writable again for who borrows it next, views or not."""
    pool = tb.Pool.register(tb.Spec((4, 4096), "u1"), name="front", slots=2)

    kept = []
    addresses = set()
    for value in range(6):
        with pool.loan(0) as array:
            part = array[1:]
            part[:] = value
            array[0] = value
        kept.append(part)
        addresses.add(array.ctypes.data)
        assert kit.permissions_at(array.ctypes.data) == "r--s"
        assert (pool.read().numpy() == value).all()
    assert len(addresses) == 2
    pool.write(np.full((4, 4096), 9, np.uint8), 0)
    pool.write(np.full((4, 4096), 10, np.uint8), 0)
    assert [kit.permissions_at(address) for address in addresses] == ["r--s", "r--s"]
    assert {int(part[0, 0]) for part in kept} == {9, 10}
    del kept, part, array
    for value in range(4):
        with pool.loan(0) as array:
            array[:] = value
    assert [kit.permissions_at(address) for address in addresses] == ["rw-s", "rw-s"]


@pytest.mark.parametrize(
    "body",
    [
        "with pool.loan(0) as array: array[:] = 1",
        "with pool.loan(0): pass",
        "loan = pool.loan(0); loan.numpy()[:] = 1; loan.publish()",
        "loan = pool.loan(0); array = loan.numpy(); array[:] = 1; loan.publish()",
        "with pool.loan(0) as array:\n  for row in array: row[:] = 1\n  del row",
    ],
)
@pytest.mark.parametrize("where", ["function", "module", "class"])
def test_the_usual_block_leaves_the_slot_as_it_is(bus: tb.Bus, body: str, where: str) -> None:
    pool = tb.Pool.register(tb.Spec((4, 4096), "u1"), name="front", slots=2)
    names: dict[str, object] = {"pool": pool}
    indented = body.replace("\n", "\n  ")
    for _ in range(3):
        if where == "function":
            exec(f"def block():\n  {indented}\n  return [n for n in locals()]\nblock()", names)
        elif where == "class":
            exec(f"class Block:\n  {indented}", names)
        else:
            exec(body, names)
        assert [permissions for permissions, _, _ in kit.pool_mappings()] == ["rw-s"]
    assert pool.stats().frames == 3
    names.clear()


def test_a_loan_by_hand(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
    loan = pool.loan()
    assert loan.handle is None and loan.shape == (4,) and loan.dtype == "uint8"
    assert loan.numpy() is loan.numpy()
    memoryview(loan)[0] = 5
    handle = loan.publish()
    assert handle == loan.handle == pool.last and newest()[0] == 5
    assert "published" in repr(loan)
    for use in (loan.publish, loan.numpy, lambda: memoryview(loan), loan.__dlpack__):
        with pytest.raises(tb.InvalidError, match="published"):
            use()
    loan.cancel()
    with pool.loan() as array:
        array[:] = 9
        pool.loan().cancel()
    loan = pool.loan()
    loan.cancel()
    with pytest.raises(tb.InvalidError, match="given back"):
        loan.publish()
    with loan if False else pool.loan() as array:
        array[:] = 8
    assert newest()[0] == 8


def test_a_published_loan_leaves_its_block_quietly(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
    loan = pool.loan()
    with loan as array:
        array[:] = 3
        loan.publish()
    assert pool.stats().frames == 1


def test_a_dropped_loan_is_given_back(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), name="front", slots=2)
    for _ in range(5):
        pool.loan(0)
        pool.loan(0).numpy()
    array = pool.loan(0).numpy()
    array[:] = 1
    del array
    pool.loan(0)
    assert pool.stats().drops == 0 and pool.stats().frames == 0


def test_who_holds_all_slots_is_told(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), name="front", slots=2)
    loans = [pool.loan(0), pool.loan(0)]
    with pytest.raises(tb.AgainError, match="2 on loan"):
        pool.loan(0)
    with pytest.raises(tb.DeadlockError, match="this thread"):
        pool.loan()
    with pytest.raises(tb.DeadlockError):
        pool.write(bytes(4))
    for loan in loans:
        loan.publish()
    reader = tb.Reader("camera/front")
    frames = [reader.next(0)]
    pool.write(bytes(4))
    frames.append(reader.next(0))
    view = frames.pop(0).numpy()
    with pytest.raises(tb.DeadlockError):
        pool.loan()
    del view
    pool.loan(0)


def test_a_wait_ends_when_another_thread_lets_go(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), name="front", slots=2)
    loans = [pool.loan(0), pool.loan(0)]
    got: list[tb.Handle] = []
    thread = threading.Thread(target=lambda: got.append(pool.write(bytes(4), 20)))
    thread.start()
    kit.await_true(lambda: pool.stats().waits == 1, "the thread waits")
    loans.pop().cancel()
    thread.join()
    assert got[0].sequence == 1


# ---- writing ----


def test_a_write_that_does_not_fit_writes_nothing(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec((2, 3), "f4"), name="front", slots=2)
    pool.write(np.ones((2, 3), np.float32))
    for wrong in (np.ones((2, 3)), np.ones((3, 2), np.float32), np.ones(6, np.float32), b"x" * 24):
        with pytest.raises(tb.MismatchError, match=r"front.*float32\[2, 3\]"):
            pool.write(wrong, 0)
    assert pool.stats().frames == 1 and pool.stats().drops == 0
    assert (newest() == 1).all()


def test_shapes_may_vary_within_a_capacity(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec((2, 3), "i4"), name="front", capacity_bytes=100)
    reader = tb.Reader("camera/front", every=True)
    for shape in ((2, 3), (5, 5), (), (0, 4), (25,)):
        array = np.arange(np.prod(shape, dtype=int), dtype="i4").reshape(shape)
        pool.write(array)
        frame = reader.next(1)
        assert frame.shape == shape and (frame.numpy() == array).all()
        with pool.loan(shape=shape) as slot:
            slot[...] = array
        frame = reader.next(1)
        assert frame.shape == shape and (frame.numpy() == array).all()
    with pytest.raises(tb.MismatchError, match="104"):
        pool.write(np.zeros(26, "i4"))
    with pytest.raises(tb.MismatchError, match="104"):
        pool.loan(shape=(26,))
    with pytest.raises(tb.InvalidError):
        pool.loan(shape=(-1,))
    fixed = tb.Pool.register(tb.Spec((2, 3), "i4"))
    with pytest.raises(tb.MismatchError, match="capacity_bytes"):
        fixed.loan(shape=(3, 2))
    assert pool.stats().drops == 0 and fixed.stats().drops == 0


def test_a_pool_can_forbid_copies(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), require_zero_copy=True)
    with pytest.raises(tb.UnsupportedError, match="require_zero_copy"):
        pool.write(bytes(4))
    with pool.loan() as array:
        array[:] = 1
    assert pool.stats().copies == 0


def test_threads_write_at_once(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(1000, "i8"), name="front", slots=8)
    reader = tb.Reader("camera/front")

    def work(value: int) -> None:
        for turn in range(200):
            if turn % 2:
                pool.write(np.full(1000, value))
            else:
                with pool.loan() as array:
                    array[:] = value

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    seen = 0
    while seen == 0 or any(thread.is_alive() for thread in threads):
        try:
            frame = reader.newest(0.01)
        except TimeoutError:
            continue
        array = frame.numpy()
        assert (array == array[0]).all() and (pool.read().numpy() >= 0).all()
        seen += 1
    assert pool.stats().frames == 800 and seen > 0
    assert pool.last is not None and pool.last.sequence == 800


# ---- the end ----


def test_free_gives_the_memory_back(bus: tb.Bus) -> None:
    for _ in range(3):
        pool = tb.Pool.register(tb.Spec((1 << 20,), "u1"), name="front")
        assert len(kit.pool_mappings()) == 1
        assert pool.free() is True
        assert kit.pool_mappings() == []
    assert pool.stats().freed and pool.freed and pool.stats().slots == 4


def test_free_waits_for_loans_and_their_arrays(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(1 << 20, "u1"), name="front")
    loan = pool.loan()
    array = loan.numpy()
    array[:] = 3
    pool.free()
    assert array[5] == 3
    array[5] = 4
    with pytest.raises(tb.FreedError):
        loan.publish()
    assert array[5] == 4
    del loan
    assert len(kit.pool_mappings()) == 1
    del array
    assert kit.pool_mappings() == []


def test_held_frames_outlive_their_pool(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
    reader = tb.Reader("camera/front")
    pool.write(b"abcd")
    view = reader.next(0).numpy()
    pool.write(b"efgh")
    pool.free()
    assert view.tobytes() == b"abcd"
    with pytest.raises(tb.FreedError, match="camera/front"):
        reader.next(0)
    assert view.tobytes() == b"abcd"


def test_dropping_a_pool_ends_nothing(bus: tb.Bus) -> None:
    def produce() -> tb.Handle:
        pool = tb.Pool.register(tb.Spec(4, "u1"), name="front", policy="every")
        return pool.write(b"abcd")

    handle = produce()
    gc.collect()
    assert tb.open_frame(handle).numpy().tobytes() == b"abcd"
    assert tb.Reader("camera/front").next(0).numpy().tobytes() == b"abcd"


def test_a_with_block_frees(bus: tb.Bus) -> None:
    with tb.Pool.register(tb.Spec(4, "u1"), name="front") as pool:
        pool.write(bytes(4))
    assert pool.freed
    with tb.Pool.register(tb.Spec(4, "u1"), name="front") as pool:
        pool.free()


def test_acknowledgements(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), name="front", ackers=["camera"])
    with pytest.raises(tb.InvalidError, match="nothing was written"):
        pool.wait_acked()
    handle = pool.write(bytes(4))
    with pytest.raises(tb.NotAckedError, match="`camera` is not attached"):
        pool.wait_acked(handle, 30)
    reader = tb.Reader("camera/front", ack=True)
    plain = tb.Reader("camera/front")
    frame = reader.next(0)
    with pytest.raises(tb.NotAckedError, match="has not acknowledged"):
        pool.wait_acked(timeout=0.01)
    thread = threading.Thread(target=lambda: (kit.await_true(lambda: True, ""), reader.ack(frame)))
    thread.start()
    assert pool.wait_acked(bytes(handle), 20) is None
    thread.join()
    with pytest.raises(tb.InvalidError, match="without|not opened with `ack`"):
        plain.ack(plain.next(0))
    with pytest.raises(TypeError, match="Frame"):
        reader.ack(handle)


def test_seventy_thousand_pools_would_not_leak(bus: tb.Bus) -> None:
    def turn(attach: bool) -> None:
        with tb.Pool.register(tb.Spec(64, "u1"), name="front", slots=2) as pool:
            pool.write(bytes(64))
            if attach:
                with tb.Reader("camera/front") as reader:
                    reader.next(0)

    for number in range(100):
        turn(number % 10 == 0)
    kit.await_true(lambda: len(kit.pool_mappings()) == 0, "no mapping")
    before = (kit.descriptors().keys(), kit.threads(), kit.resident_kib())
    for number in range(1000):
        turn(number % 10 == 0)
    kit.await_true(lambda: (kit.descriptors().keys(), kit.threads()) == before[:2], "as before")
    assert kit.resident_kib() - before[2] < 512


def test_who_reads_is_told_by_name(bus: tb.Bus) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
    assert pool.readers() == []
    with kit.Script("""
        tb.open_bus("viewer")
        first, second = tb.Reader("camera/front"), tb.Reader("camera/front")
        say("reads"); hear()
        first.close()
        say("reads"); hear()
        """) as viewer, tb.Reader("camera/front"):
        viewer.hear()
        assert sorted(pool.readers()) == ["camera", "viewer", "viewer"]
        viewer.tell()
        viewer.hear()
        kit.await_true(lambda: sorted(pool.readers()) == ["camera", "viewer"], "two readers")
        viewer.tell()
        viewer.end()
        kit.await_true(lambda: pool.readers() == ["camera"], "one reader")
    pool.free()
    assert pool.readers() == []
