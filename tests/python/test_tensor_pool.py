"""The four verbs: register, write, read, free; misuse is a warning, never a crash."""

import gc
import logging
import time

import numpy as np
import pytest

import kit
import tensorbus as tb

FAILED = "Attempt to {} memory pool [{}] failed - reason: pool does not exist. Operation aborted."


@pytest.fixture
def warnings(caplog):
    """What was warned of since the last call."""
    caplog.set_level(logging.WARNING)

    def take():
        taken = [(r.name, r.levelname, r.getMessage()) for r in caplog.records]
        caplog.clear()
        return taken

    return take


def failed(verb, pool):
    return [("tensorbus.pool", "WARNING", FAILED.format(verb, pool))]


def test_a_pools_life(bus, warnings):
    pool = tb.register(np.arange(6).reshape(2, 3))
    assert pool.startswith("pool_camera_")
    with tb.read(pool) as frame:
        assert type(frame) is tb.Frame and frame.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert frame.sequence == 1 and not frame.numpy().flags.writeable
    assert tb.write(pool, np.full((2, 3), 7)) is True
    assert tb.read(pool).numpy().sum() == 42
    assert tb.read(pool).sequence == 2  # nothing is newer: the same again
    assert tb.free(pool) is True
    assert warnings() == []


def test_a_held_frame_does_not_change(bus):
    pool = tb.register(np.array([1]), slots=3)
    held = tb.read(pool)
    for n in range(2, 9):
        tb.write(pool, np.array([n]), timeout=5)
        assert tb.read(pool).numpy()[0] == n
    assert held.numpy()[0] == 1
    tb.free(pool)
    assert held.numpy()[0] == 1


def test_a_live_pool_changes_under_its_holder(bus):
    pool = tb.register(np.array([1]), live=True)
    view = tb.read(pool).numpy()
    tb.write(pool, np.array([2]))
    assert view[0] == 2
    del view
    gc.collect()
    tb.free(pool)


def test_misuse_is_a_warning_and_an_answer(bus, warnings):
    pool = tb.register(np.zeros(4))
    assert tb.free(pool) is True and warnings() == []
    assert tb.free(pool) is False and warnings() == failed("release", pool)
    assert tb.write(pool, np.ones(4)) is False and warnings() == failed("write", pool)
    begun = time.monotonic()
    with pytest.raises(tb.FreedError, match="pool does not exist") as caught:
        tb.read(pool, timeout=20)
    assert isinstance(caught.value, RuntimeError) and time.monotonic() - begun < 5
    assert warnings() == failed("read", pool)
    for nobodys in ("pool_camera_1", "pool_nobody_1"):
        assert tb.free(nobodys) is False and warnings() == failed("release", nobodys)
        with pytest.raises(tb.FreedError):
            tb.read(nobodys)
        warnings()


def test_arguments(bus):
    pool = tb.register(np.zeros((2, 2), np.float32))
    with pytest.raises(tb.MismatchError, match="float32.*float64"):
        tb.write(pool, np.zeros((2, 2)))
    with pytest.raises(tb.MismatchError):
        tb.write(pool, np.zeros((2, 3), np.float32))
    for call in (lambda: tb.register("text"), lambda: tb.register([1]), lambda: tb.write(pool, 5),
                 lambda: tb.read(5), lambda: tb.free(None),
                 lambda: tb.write(pool, pool)):  # fmt: skip
        with pytest.raises(TypeError):
            call()
    with pytest.raises(tb.InvalidError):
        tb.read("no id")
    with pytest.raises(tb.LimitError):
        tb.register(np.zeros(1), slots=257)
    assert tb.write(pool, np.asfortranarray(np.arange(4, dtype=np.float32).reshape(2, 2)))
    assert tb.read(pool).numpy().tolist() == [[0, 1], [2, 3]]
    tb.free(pool)


def test_what_was_given_is_let_go(bus):
    data = bytearray(b"1234")
    pool = tb.register(data)
    data.append(5)  # an error while something looks at it
    del data[4:]
    assert tb.write(pool, data)
    data.append(5)
    with pytest.raises(tb.MismatchError):
        tb.write(pool, data)
    data.append(6)
    tb.free(pool)


def test_a_bus_without_a_name_is_an_error():
    with tb.open_bus(default=False) as bus:
        with pytest.raises(tb.InvalidError, match="name"):
            tb.register(np.zeros(1), bus=bus)


def test_another_process_reads_and_frees(bus, warnings):
    pool = tb.register(np.arange(3))
    out, err = kit.run(f"""
        tb.open_bus("reader")
        view = tb.read("{pool}", 10).numpy()
        say(tb.free("{pool}"), view.tolist())
        say(tb.free("{pool}"))
        """)
    assert out.splitlines() == ["True [0, 1, 2]", "False"]
    assert err.strip().endswith(FAILED.format("release", pool))
    assert tb.write(pool, np.arange(3)) is False and warnings() == failed("write", pool)


def test_its_owners_end_frees_a_pool(bus, warnings):
    with kit.Script("""
        tb.open_bus("owner")
        say(tb.register(np.array([5])))
        hear()
        """) as owner:
        pool = owner.hear()
        view = tb.read(pool, 10).numpy()
        owner.kill()
    kit.await_true(lambda: raises_freed(pool), "the death is noticed")
    assert warnings()[-1:] == failed("read", pool) and view[0] == 5


def raises_freed(pool):
    try:
        tb.read(pool, 0)
    except tb.FreedError:
        return True
    return False


def test_waiting_for_a_slot_can_be_interrupted(bus):
    with kit.Script("""
        tb.open_bus("owner")
        pool = tb.register(np.zeros(3))
        say(pool)
        hear()
        tb.write(pool, np.ones(3))
        say("written")
        hear()
        try:
            tb.write(pool, np.zeros(3), timeout=0.01)
        except tb.AgainError:
            say("full")
        try:
            tb.write(pool, np.zeros(3))
        except KeyboardInterrupt:
            say("interrupted")
        """) as owner:
        pool = owner.hear()
        held = [tb.read(pool)]
        owner.tell()
        assert owner.hear() == "written"
        held.append(tb.read(pool))
        owner.tell()
        assert owner.hear() == "full"
        time.sleep(0.1)
        begun = time.monotonic()
        owner.interrupt()
        assert owner.hear() == "interrupted" and time.monotonic() - begun < 0.15
        assert [frame.numpy()[0] for frame in held] == [0, 1]
        for frame in held:
            frame.release()
        owner.end()
