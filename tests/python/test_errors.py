"""Exceptions: one class per status, with C's text."""

import pathlib
import pickle
import re

import pytest

import tensorbus as tb

CLASSES = {
    "AgainError": (1, TimeoutError),
    "ClosedError": (2, EOFError),
    "InvalidError": (-1, ValueError),
    "NoMemoryError": (-2, MemoryError),
    "SystemCallError": (-3, OSError),
    "NotFoundError": (-4, LookupError),
    "ExistsError": (-5, FileExistsError),
    "FreedError": (-6, RuntimeError),
    "StaleError": (-7, LookupError),
    "OwnerDiedError": (-8, ConnectionError),
    "DeadlockError": (-9, RuntimeError),
    "ForkedError": (-10, RuntimeError),
    "ProtocolError": (-11, ConnectionError),
    "DeniedError": (-12, PermissionError),
    "LimitError": (-13, RuntimeError),
    "MismatchError": (-14, ValueError),
    "UnsupportedError": (-15, NotImplementedError),
    "NotAckedError": (-16, TimeoutError),
    "CorruptError": (-17, RuntimeError),
    "BusyError": (-18, RuntimeError),
}


@pytest.mark.parametrize("name", CLASSES)
def test_each_class(name: str) -> None:
    kind = getattr(tb, name)
    assert issubclass(kind, tb.Error) and issubclass(kind, CLASSES[name][1])
    assert kind.__module__ == "tensorbus" and kind.__doc__


def test_every_status_has_a_class() -> None:
    header = pathlib.Path(__file__).parents[2] / "include/tensorbus/status.h"
    numbers = {int(n) for n in re.findall(r"^\s+TB_\w+ = (-?\d+)", header.read_text(), re.M)}
    assert numbers - {0} == {number for number, _ in CLASSES.values()}


def test_what_an_error_says(bus: tb.Bus) -> None:
    with pytest.raises(tb.NotFoundError) as caught:
        tb.Reader("nobody/front", timeout=0)
    error = caught.value
    assert error.status == -4 and error.errno is None and error.where
    assert error.text == str(error) and "nobody" in error.text
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is tb.NotFoundError
    assert (again.text, again.status, again.where) == (error.text, error.status, error.where)


def test_the_number_of_a_failed_call(bus: tb.Bus, directory: pathlib.Path) -> None:
    file = directory / "file"
    file.touch()
    with pytest.raises(tb.Error) as caught:
        tb.open_bus("other", directory=file / "below", default=False)
    assert caught.value.errno == 20 and "Not a directory" in str(caught.value)
    file.unlink()


def test_a_text_is_of_its_own_failure(bus: tb.Bus) -> None:
    """Not of one before: what only reports "nothing new" leaves the library's record alone."""
    pool = tb.Pool.register(tb.Spec(1, "u1"), name="front")
    reader = tb.Reader("camera/front")
    with pytest.raises(tb.MismatchError):
        pool.write(b"xyz")
    with pytest.raises(tb.AgainError, match="^pool `camera/front`: no new frame"):
        reader.next(0)


def test_names_that_are_not_utf8(bus: tb.Bus) -> None:
    with pytest.raises((tb.InvalidError, UnicodeError)):
        tb.Reader("\udcff/front", timeout=0)
    with pytest.raises((tb.InvalidError, UnicodeError)):
        tb.Reader("näme/front", timeout=0)
