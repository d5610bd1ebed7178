"""The interpreter's end with everything still open: goodbye to others, no crash, no word."""

import contextlib
import pathlib
import subprocess
import sys

import pytest

import kit
import tensorbus as tb

SCENE = """
bus = tb.open_bus("camera")
pool = tb.Pool.register(tb.Spec(4, "u1"), name="front", policy="every")
reader = tb.Reader("camera/front")
pool.write(b"abcd")
"""


@pytest.mark.parametrize(
    "source",
    [
        "",
        "frame = reader.next(1)",
        "view = reader.next(1).numpy()",
        "view = reader.next(1).numpy()[1:]; loan = pool.loan(); array = loan.numpy()",
        "raw = memoryview(reader.next(1))",
        "capsule = reader.next(1).__dlpack__()",
        "array = np.from_dlpack(reader.next(1))",
        "loop = iter(reader); frame = next(loop)",
        "cycle = [reader.next(1)]; cycle.append(cycle)",
        "import builtins; builtins.kept = (pool, reader, reader.next(1), reader.next)",
        "tb.open_frame(pool.last); kept = tb.open_frame(pool.last).numpy()",
        "threading.Thread(target=reader.next, daemon=True).start(); time.sleep(0.02)",
        "pool.free()",
        "bus.close()",
        "view = reader.next(1).numpy(); bus.close()",
        "view = reader.next(1).numpy(); pool.free(); reader.close(); del reader",
        "sys.exit(0)",
        "handler = lambda: view.sum(); import atexit; view = reader.next(1).numpy(); "
        "atexit.register(handler)",
        """
        class Last:
            def __init__(self): self.view = reader.next(1).numpy()
            def __del__(self): os.write(1, self.view.tobytes())
        last = Last()
        """,
    ],
)
def test_what_is_open_at_the_end(source: str, directory: object) -> None:
    out, err = kit.run(SCENE, source)
    assert (out, err) == ("abcd" if "Last" in source else "", "")


def test_others_hear_a_goodbye(directory: object) -> None:
    """Not a death; and they get what was published before."""
    tb.open_bus("reader")
    with kit.Script("""
        def main():
            tb.open_bus("camera")
            pool = tb.Pool.register(tb.Spec(1, "u1"), name="front", policy="every",
                                    wait_readers=1)
            view = tb.Reader("camera/front")
            for value in range(4):
                with pool.loan(10) as array:
                    array[:] = value
            return array, pool.read().numpy()
        kept = main()
        """) as script:
        reader = tb.Reader("camera/front", every=True)
        script.end()
        assert [int(frame.numpy()[0]) for frame in reader] == [0, 1, 2, 3]


def test_an_exception_ends_the_program(directory: object) -> None:
    tb.open_bus("reader")
    with kit.Script(SCENE, "hear()\nfor frame in reader:\n  raise RuntimeError('own')") as script:
        reader = tb.Reader("camera/front")
        script.tell()
        _, err = script.end(1)
        assert err.strip().endswith("RuntimeError: own")
        assert [frame.sequence for frame in reader] == [1]


def test_log_lines_after_the_end_go_to_standard_error(directory: object) -> None:
    """As the library writes them: logging may be gone."""
    code = """
import atexit
def late():  # registered before the package was imported: runs after its own
    tb.open_bus("late")
    pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
    reader = tb.Reader("late/front")
    reader.free_pool()
    try:
        reader.free_pool()
    except tb.FreedError:
        tb._core._close_all()
atexit.register(late)
import tensorbus as tb
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stderr == "tensorbus: warning: pool `late/front` was freed before\n"


def test_importing_twice_and_in_a_thread(directory: object) -> None:
    out, err = kit.run("""
        for name in [name for name in sys.modules if name.startswith("tensorbus")]:
            del sys.modules[name]
        import tensorbus as again
        assert again is not tb
        again.open_bus("one").close()
        tb.open_bus("two")
        say("fine")
        """)
    assert (out, err) == ("fine\n", "")


@pytest.mark.parametrize("act", ["end", "hear", "leave"])
def test_what_a_script_leaves_that_ended_in_the_middle_is_swept(
    act: str, directory: pathlib.Path
) -> None:
    """As one ends that is over its time: the `directory` fixture finds nothing afterwards."""
    with contextlib.suppress(AssertionError), kit.Script(SCENE, """
        say("open")
        hear()
        os._exit(1)
        """) as script:
        assert script.hear() == "open"
        assert list(directory.glob("default/*.sock")), "there is something to sweep"
        script.tell()
        if act == "leave":
            script.process.wait(kit.LIMIT_S)
        else:
            getattr(script, act)()
            pytest.fail("it ended well")
