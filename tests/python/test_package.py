"""The package as such: what it exports, its stubs, what importing it costs."""

import importlib.util
import inspect
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import kit
import tensorbus as tb
from tensorbus import _core

ROOT = pathlib.Path(__file__).parents[2]

needs_mypy = pytest.mark.skipif(importlib.util.find_spec("mypy") is None,
                                reason="mypy is not installed")


def test_everything_public_is_exported() -> None:
    public = {name for name in dir(_core) if not name.startswith("_")} | {"Spec", "__version__"}
    assert set(tb.__all__) == public
    assert all(hasattr(tb, name) for name in tb.__all__)


def test_the_version_is_the_projects() -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text()
    assert re.search(rf"^project\(tensorbus VERSION {re.escape(tb.__version__)} ", cmake, re.M)


def test_everything_public_is_documented() -> None:
    for name in set(tb.__all__) - {"__version__"}:
        thing = getattr(tb, name)
        assert inspect.getdoc(thing), name
        if isinstance(thing, type) and not issubclass(thing, (Exception, tuple)):
            for key, member in vars(thing).items():
                if not key.startswith("_") and key != "dtype" and thing is not tb.Spec:
                    assert inspect.getdoc(member), f"{name}.{key}"


def test_types_say_that_they_are_of_the_package() -> None:
    for name in set(tb.__all__) - {"__version__", "Spec"}:
        thing = getattr(tb, name)
        if isinstance(thing, type):
            assert thing.__module__ == "tensorbus" and thing.__qualname__ == name


def test_importing_needs_nothing_else(directory: object) -> None:
    code = ("import sys; before = set(sys.modules); import tensorbus; "
            "print(*sorted(set(sys.modules) - before))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"tensorbus", "tensorbus._core", "tensorbus._spec", "atexit",
                                        "__future__"}


def test_reading_needs_no_import_but_numpys(directory: object) -> None:
    """asyncio, logging and others are imported only by who uses them."""
    out, _ = kit.run("""
        import numpy.exceptions
        before = set(sys.modules)
        tb.open_bus("camera")
        pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
        pool.write(b"abcd")
        with pool.loan() as array:
            array[:] = 3
        for frame in tb.Reader("camera/front"):
            frame.numpy(), frame.info
            break
        say(*sorted(set(sys.modules) - before))
        """)
    assert out.split() == []


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.parametrize(("option", "text"), [
    ("PKG_CONFIG_EXECUTABLE=/nonexistent", "pkg-config was not found"),
    ("CMAKE_C_FLAGS=", "the headers of libyaml (yaml-0.1 of pkg-config) were not found"),
])  # fmt: skip
def test_a_wheel_without_the_command_has_one_that_says_so(
    option: str, text: str, tmp_path: pathlib.Path
) -> None:
    scripts = tmp_path / "scripts"
    done = subprocess.run(
        ["cmake", "-S", str(ROOT), "-B", str(tmp_path / "build"), "-DSKBUILD=2",
         f"-DSKBUILD_SCRIPTS_DIR={scripts}", "-DTB_BUILD_PYTHON=ON", "-DTB_BUILD_CLI=AUTO",
         "-DTB_BUILD_TESTS=OFF", "-DTB_BUILD_EXAMPLES=OFF", f"-DPython_EXECUTABLE={sys.executable}",
         f"-D{option}"],
        capture_output=True, text=True,
        env=os.environ | {"PKG_CONFIG_LIBDIR": str(tmp_path)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "The tensorbus command is not built" in done.stderr
    command = tmp_path / "build" / "python" / "command" / "tensorbus"
    installed = (tmp_path / "build" / "python" / "cmake_install.cmake").read_text()
    assert re.search(rf'"{scripts}" TYPE PROGRAM FILES "{command}"', installed)
    said = subprocess.run(["sh", str(command), "run", "flow.yml"], capture_output=True, text=True)
    assert (said.returncode, said.stdout) == (1, "")
    assert text in said.stderr and "apt install pkg-config libyaml-dev" in said.stderr


@needs_mypy
def test_the_stubs_are_what_is_there(tmp_path: pathlib.Path) -> None:
    allowed = tmp_path / "allowed"
    allowed.write_text("\n".join([
        # Buffers have no method below Python 3.12, and named tuples of C have three more names.
        r".*\.__buffer__", r".*\.__match_args__", r".*\.n_(fields|sequence_fields|unnamed_fields)",
        # What C adds to every class, and what it does not tell about its methods.
        r".*\.(__new__|__init__|__getstate__|__reduce__|__reduce_ex__|__enter__|__exit__)",
        r".*\.(__array__|__arrow_c_array__|__dlpack__|__aiter__|__anext__|__getitem__)",
        r".*Error\.errno",
    ]))
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "tensorbus._core",
         "--mypy-config-file", str(config),
         "--allowlist", str(allowed), "--ignore-unused-allowlist"],
        capture_output=True, text=True, cwd=tmp_path,
        env=_mypy_environment(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


def _mypy_environment(cache: pathlib.Path) -> dict[str, str]:
    environment = os.environ | {"MYPY_CACHE_DIR": str(cache / "cache")}
    folder = pathlib.Path(tb.__file__).parents[1]
    if folder.name != "site-packages":  # which mypy finds, and refuses to be told of
        environment["MYPYPATH"] = str(folder)
    return environment


GOOD = '''
import asyncio
import numpy as np
import tensorbus as tb

def produce() -> tb.Handle | None:
    bus = tb.open_bus("camera")
    pool = tb.Pool.register(np.empty((2, 3), np.uint8), name="front", slots=4, policy="every",
                            bus=bus)
    with pool.loan(timeout=1.5) as image:
        image[:] = 7
    handle: tb.Handle = pool.write(np.zeros((2, 3), np.uint8), 0)
    frame = pool.read()
    total: int = frame.info.sequence + len(bytes(handle)) + pool.stats().frames
    print(total, frame.shape[0], handle.pool_uid, tb.Spec((1, 2), "u1").shape)
    return pool.last

def consume() -> None:
    with tb.Reader("camera/front", timeout=None, every=True, ack=True) as reader:
        for frame in reader:
            with frame.hold() as held:
                print(held.numpy().sum(), np.asarray(held), memoryview(held).nbytes)
            reader.ack(frame)
        try:
            print(tb.open_frame(b"x" * 48).copy())
        except tb.StaleError as error:
            print(error.status, error.text, error.errno)

async def watch() -> None:
    async for frame in tb.Reader("camera/front"):
        print(frame.sequence)

asyncio.run(watch())
'''
BAD = {
    'tb.Pool.register(b"x", policy="some")': "arg-type",
    'tb.Reader("a/b").next("1")': "arg-type",
    'tb.Handle(3)': "arg-type",
    'tb.Pool()': "call-arg|misc",
    'tb.Reader("a/b").sequence': "attr-defined",
    'tb.open_bus(nam="x")': "call-arg",
}


@needs_mypy
def test_a_strict_program_is_understood(tmp_path: pathlib.Path) -> None:
    good = tmp_path / "good.py"
    good.write_text(GOOD)
    bad = tmp_path / "bad.py"
    bad.write_text("import tensorbus as tb\n" + "\n".join(BAD) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(good), str(bad)],
        capture_output=True, text=True, cwd=tmp_path, env=_mypy_environment(tmp_path))
    lines = [line for line in done.stdout.splitlines() if "error:" in line]
    assert not [line for line in lines if "bad.py" not in line], done.stdout
    for number, (source, code) in enumerate(BAD.items(), 2):
        found = [line for line in lines if f"bad.py:{number}:" in line]
        if "Pool()" in source:
            continue  # the type cannot say that it is not called
        assert found and re.search(code, found[0]), (source, done.stdout)
