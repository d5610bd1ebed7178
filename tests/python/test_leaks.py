"""Nothing is left by what is done again and again: no object, no memory, no lease."""

import sys
from collections.abc import Callable

import numpy as np
import pytest

import kit
import tensorbus as tb


class Scene:
    def __init__(self) -> None:
        self.bus = tb.open_bus("camera")
        self.pool = tb.Pool.register(tb.Spec((4, 6), "u1"), name="front", slots=6)
        self.half = tb.Pool.register(tb.Spec((4, 6), "bfloat16"), name="half", slots=6)
        self.reader = tb.Reader("camera/front", max_leases=8)
        self.source = np.zeros((4, 6), np.uint8)
        self.handle = self.pool.write(self.source)

    def publish(self) -> None:
        self.handle = self.pool.write(self.source, 0)


def refused(call: Callable[[], object], *errors: type[BaseException]) -> None:
    try:
        call()
    except errors or (tb.Error,):
        return
    raise AssertionError("not refused")


def loop(scene: Scene) -> None:
    scene.publish()
    for frame in scene.reader:
        frame.hold().release()
        break


def block(scene: Scene) -> None:
    with scene.pool.loan(0) as array:
        array[1:] = 1


def kept(scene: Scene) -> None:
    with scene.pool.loan(0) as array:
        part = array[1:]
    del array, part


def broken_block(scene: Scene) -> None:
    try:
        with scene.pool.loan(0):
            raise KeyError
    except KeyError:
        pass


def capsules(scene: Scene) -> None:
    frame = scene.pool.read()
    for version in (None, (1, 1)):
        for copy in (None, True):
            frame.__dlpack__(max_version=version, copy=copy)
    np.from_dlpack(frame)


DEEDS: dict[str, Callable[[Scene], object]] = {
    "write": lambda s: s.publish(),
    "write strided": lambda s: s.pool.write(s.source[::-1, ::-1]),
    "write dlpack": lambda s: s.pool.write(s.pool.read()),
    "read": lambda s: s.pool.read().numpy(),
    "views": lambda s: (f := s.pool.read(), memoryview(f), np.asarray(f), f.copy(), bytes(f)),
    "known": lambda s: (f := s.pool.read(), f.info, f.shape, f.dtype, f.handle, repr(f), f.device),
    "loop": loop,
    "block": block,
    "kept": kept,
    "broken block": broken_block,
    "loan": lambda s: (lo := s.pool.loan(0), lo.numpy(), repr(lo), lo.publish()),
    "dropped loan": lambda s: s.pool.loan(0).numpy(),
    "capsules": capsules,
    "bfloat16": lambda s: (s.half.loan(0).publish(), s.half.read().dtype),
    "open_frame": lambda s: tb.open_frame(bytes(s.handle)),
    "by handle": lambda s: s.reader.frame(s.handle),
    "handle": lambda s: (h := tb.Handle(bytes(s.handle)), hash(h), h == s.handle, repr(h)),
    "stats": lambda s: (s.pool.stats(), s.reader.stats(), s.pool.last, repr(s.pool)),
    "register": lambda s: tb.Pool.register(tb.Spec((2, 3), "f4"), ackers=["x"]).free(),
    "reader": lambda s: tb.Reader("camera/front").close(),
    "bus": lambda s: tb.open_bus("other", default=False).close(),
    "errors": lambda s: (
        refused(lambda: s.pool.write(b"x")),
        refused(lambda: s.pool.write([1]), TypeError),
        refused(lambda: s.pool.write(np.zeros(3, ">i4"))),
        refused(lambda: s.pool.write(np.array(["a"]))),
        refused(lambda: tb.Handle(b"x")),
        refused(lambda: s.reader.next(-1), ValueError),
        refused(lambda: tb.Pool.register(tb.Spec(2, "none"))),
        refused(lambda: tb.Pool.register(tb.Spec(2, "u1"), ackers=[1]), TypeError),
        refused(lambda: tb.Pool.register(tb.Spec(2, "u1"), name="front")),
        refused(lambda: tb.Reader("camera/none", timeout=0)),
        refused(lambda: memoryview(s.half.loan(0)), BufferError),
    ),
    "no frame": lambda s: (s.reader.newest(1) if s.pool.write(s.source) else None,
                           refused(lambda: s.reader.next(0))),
}


@pytest.mark.parametrize("name", DEEDS)
def test_done_again_and_again(directory: object, name: str) -> None:
    scene = Scene()
    deed = DEEDS[name]
    turns = 60 if name in ("bus", "reader", "register") else 400

    def repeat() -> int:
        for _ in range(turns):
            deed(scene)
        return sys.getallocatedblocks()

    repeat()
    # The least of several: what others allocate now and then does not grow with the turns.
    growth = min(-(before := repeat()) + repeat() for _ in range(3))
    assert growth < turns // 4, before
    assert scene.reader.stats().held == 0
    size = kit.resident_kib()
    repeat()
    assert kit.resident_kib() - size < 300
