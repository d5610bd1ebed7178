"""Writes into read-only memory by code that cannot be told: one line, which names the pool."""

import pytest

import kit

SCENE = """
import ctypes, faulthandler
tb.open_bus("camera")
pool = tb.Pool.register(tb.Spec((4, 4096), "u1"), name="front")
pool.write(np.zeros((4, 4096), np.uint8))
reader = tb.Reader("camera/front")
frame = reader.next(1)
def poke(address):
    ctypes.memset(address, 1, 1)
"""
FRAME = ("tensorbus: this process wrote into a frame of pool `camera/front`, which is read-only "
         "for all its readers: write into a copy (frame.copy(), array.copy(), tensor.clone())")
PUBLISHED = ("tensorbus: this process wrote into a frame of pool `camera/front` after it was "
             "published: write only inside the `with pool.loan()` block, and into what the block "
             "gave you")


def crash(*sources: str, options: tuple[str, ...] = ()) -> list[str]:
    _, err = kit.run(SCENE, *sources, options=options, status=-11)
    return err.splitlines()


@pytest.mark.parametrize(
    "source",
    [
        "poke(frame.numpy().ctypes.data)",
        "view = frame.numpy(); poke(view.ctypes.data + 4 * 4096 - 1)",
        "view = memoryview(frame); frame.release(); poke(np.asarray(view).ctypes.data)",
        "a = np.from_dlpack(frame); frame.release(); poke(a.ctypes.data)",
        "view = pool.read().numpy(); reader.close(); poke(view.ctypes.data)",
        "t = threading.Thread(target=lambda: poke(frame.numpy().ctypes.data)); t.start(); t.join()",
    ],
)
def test_one_line_for_a_frame(source: str, directory: object) -> None:
    assert crash(source) == [FRAME]


@pytest.mark.parametrize(
    "source",
    [
        "with pool.loan() as a: part = a[1:]\npoke(part.ctypes.data)",
        "with pool.loan() as a: part = a[1:]\npart[0] = 1",
        "with pool.loan() as a: a = a.reshape(-1)\na[5] = 1",
        "with pool.loan() as a: a = ctypes.c_char.from_buffer(a)\na.value = b'x'",
        "loan = pool.loan(); a = np.from_dlpack(loan); loan.publish()\na[:] = 1",
        "loan = pool.loan(); a = memoryview(loan); h = loan.publish()\na[0, 0] = 1",
        "with pool.loan() as a: class_ = type('C', (), {'a': a[0]})\nclass_.a[:] = 1",
    ],
)
def test_one_line_for_a_published_loan(source: str, directory: object) -> None:
    assert crash(source) == [PUBLISHED]


def test_a_write_in_the_block_after_old_views(directory: object) -> None:
    kit.run(SCENE, """
        kept = []
        for value in range(20):
            with pool.loan() as array:
                part = array[1:]
                part[:] = value
            kept.append(part)
            pool.write(np.full((4, 4096), value, np.uint8))
        """)


def test_one_line_after_many_views(directory: object) -> None:
    assert crash("""
        for _ in range(1500):
            pool.write(np.zeros((4, 4096), np.uint8))
            reader.next(1).numpy()
        for _ in range(1500):
            with pool.loan() as array:
                part = array[1:]
        del array, part
        poke(frame.numpy().ctypes.data)
        """) == [FRAME]


def test_other_faults_are_not_ours(directory: object) -> None:
    assert crash("view = frame.numpy(); poke(16)") == []
    assert crash("""
        import mmap
        view = frame.numpy()
        pages = mmap.mmap(-1, 4096, prot=mmap.PROT_READ)
        poke(np.frombuffer(pages, np.uint8).ctypes.data)
        """) == []
    assert crash("view = frame.numpy(); signal.raise_signal(signal.SIGSEGV)") == []
    assert crash("view = frame.numpy(); os.kill(os.getpid(), signal.SIGSEGV); time.sleep(9)") == []


def test_the_handler_comes_with_the_first_view(directory: object) -> None:
    out, _ = kit.run(SCENE, """
        def handled():
            mask = [l for l in open("/proc/self/status") if l.startswith("SigCgt")][0].split()[1]
            return int(mask, 16) >> (signal.SIGSEGV - 1) & 1
        say(handled())
        frame.shape, frame.copy
        say(handled())
        memoryview(frame).release()
        say(handled())
        """)
    assert out.split() == ["0", "0", "1"]


def test_faulthandler_before_us_has_its_turn(directory: object) -> None:
    lines = crash("poke(frame.numpy().ctypes.data)", options=("-X", "faulthandler"))
    assert lines[0] == FRAME and lines[1] == "Fatal Python error: Segmentation fault"
    assert sum("Fatal Python error" in line for line in lines) == 1
    assert any("in poke" in line for line in lines)
    other = crash("view = frame.numpy(); poke(16)", options=("-X", "faulthandler"))
    assert other[0] == "Fatal Python error: Segmentation fault"


def test_faulthandler_after_us_has_its_turn(directory: object) -> None:
    lines = crash("""
        memoryview(frame).release()
        faulthandler.enable()
        for _ in range(100):
            memoryview(frame).release()
        poke(frame.numpy().ctypes.data)
        """)
    assert lines[0] == FRAME and lines[1] == "Fatal Python error: Segmentation fault"
    assert sum("Fatal Python error" in line for line in lines) == 1
    sent = crash("""
        memoryview(frame).release()
        faulthandler.enable()
        for _ in range(100):
            memoryview(frame).release()
        signal.raise_signal(signal.SIGSEGV)
        """)
    assert sent[0] == "Fatal Python error: Segmentation fault"


@pytest.mark.parametrize("poke", [
    "poke(view.ctypes.data)",
    "t = threading.Thread(target=lambda: poke(view.ctypes.data)); t.start(); t.join()",
])  # fmt: skip
def test_faulthandler_after_the_last_view_leaves_the_line(poke: str, directory: object) -> None:
    """No look at a view comes between the two: theirs speaks first, and passes on."""
    lines = crash("view = frame.numpy()\nfaulthandler.enable()", poke)
    assert lines[0] == "Fatal Python error: Segmentation fault" and lines[-1] == FRAME
    assert lines.count(FRAME) == 1 and any("in poke" in line for line in lines)
    assert sum("Fatal Python error" in line for line in lines) == 1


def test_faulthandler_after_the_last_view_and_other_faults(directory: object) -> None:
    for poke in ("poke(16)", "signal.raise_signal(signal.SIGSEGV)",
                 "os.kill(os.getpid(), signal.SIGSEGV); time.sleep(9)"):  # fmt: skip
        lines = crash("view = frame.numpy()\nfaulthandler.enable()", poke)
        assert lines[0] == "Fatal Python error: Segmentation fault"
        assert not [line for line in lines if "tensorbus: " in line]


def test_a_handler_of_the_programs_own_is_passed_on_to(directory: object) -> None:
    lines = crash("""
        libc = ctypes.CDLL(None)
        @ctypes.CFUNCTYPE(None, ctypes.c_int)
        def own(number):
            libc.signal(11, None)
            os.write(2, b"own handler\\n")
        libc.signal(11, own)
        poke(frame.numpy().ctypes.data)
        """)
    assert lines == [FRAME, "own handler"]


def test_other_processes_see_no_change(directory: object) -> None:
    with kit.Script(SCENE, """
        say("ready")
        hear()
        say(int(pool.read().numpy().sum()), int(frame.numpy().sum()))
        """) as owner:
        owner.hear()
        _, err = kit.run("""
            import ctypes
            view = tb.Reader("camera/front").next(5).numpy()
            ctypes.memset(view.ctypes.data, 1, 16)
            """, status=-11)
        assert err.splitlines() == [FRAME]
        owner.tell()
        assert owner.hear() == "0 0"
        owner.end()
