"""Arguments may be objects of Python, which do what they like when they are asked for their values:
close the bus, free the pool, release the very frame that the call is about. The call then fails."""

from __future__ import annotations

import pathlib
import textwrap

import pytest

import gpu_kit
import kit

# What was freed holds other bytes at once.
ENVIRONMENT = {"MALLOC_PERTURB_": "165", "PYTHONMALLOC": "malloc"}

KIT = f"""
import ctypes, faulthandler, gc
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})

class Odd:  # whatever is asked of it: it acts first
    def __init__(self, value=1):
        self.value = value
    def _answer(self, *_):
        act()
        return self.value
    __index__ = __float__ = __str__ = __bool__ = __array__ = __cuda_stream__ = _answer

class Slot(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int), ("function", ctypes.c_void_p)]

class Spec(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("size", ctypes.c_int), ("item", ctypes.c_int),
                ("flags", ctypes.c_uint), ("slots", ctypes.POINTER(Slot))]

def odd_bytes(data):  # the same with the buffer protocol
    python = ctypes.pythonapi
    memory = ctypes.create_string_buffer(data, len(data))

    @ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
    def get_buffer(exporter, view, flags):
        act()
        return python.PyBuffer_FillInfo(ctypes.c_void_p(view), ctypes.py_object(exporter), memory,
                                        ctypes.c_ssize_t(len(data)), 1, flags)

    slots = (Slot * 2)(Slot(1, ctypes.cast(get_buffer, ctypes.c_void_p)), Slot())
    python.PyType_FromSpec.restype = ctypes.py_object
    made = python.PyType_FromSpec(ctypes.byref(Spec(b"odd.Bytes", 0, 0, 0, slots)))()
    keep.append((memory, get_buffer, slots))
    return made

keep = []

def act():
    if not acted:
        acted.append(1)
        eval(WEAPON, globals())

def attack(text, error):
    faulthandler.enable()
    print(text, file=sys.stderr)
    try:
        eval(text, globals())
    except error as caught:
        assert acted, f"{{text}}: {{caught}} before anything was asked"
    else:
        raise SystemExit(f"{{text}}: no {{error.__name__}}")
"""

SCENE = """
bus = tb.open_bus("camera")
A = np.arange(64, dtype="u1")
pool = tb.Pool.register(A, name="front", capacity_bytes=64, max_leases=8)
handle = pool.write(A)
reader = tb.Reader("camera/front")
frame, loan = pool.read(), pool.loan()
acted = []
"""

POOL = ["pool.loan(Odd(1.0))", "pool.loan(shape=(Odd(8),))", "pool.loan(shape=Odd(8))",
        "pool.loan(stream=Odd((0, 1)))", "pool.write(Odd(A))", "pool.write(A, Odd(1.0))",
        "pool.wait_acked(odd_bytes(bytes(handle)), 0)", "pool.wait_acked(None, Odd(0.0))"]
LOAN = ["loan.__dlpack__(max_version=(Odd(1), 1))", "loan.__dlpack__(dl_device=(Odd(1), 0))",
        "loan.__dlpack__(copy=Odd(False))", "loan.__dlpack__(stream=Odd(-1))",
        "loan.publish(Odd((0, 1)))"]
FRAME = ["frame.__dlpack__(max_version=(Odd(1), 1))", "frame.__dlpack__(dl_device=(1, Odd(0)))",
         "frame.__dlpack__(copy=Odd(True))", "frame.__dlpack__(stream=Odd(-1), copy=True)",
         "frame.copy(Odd('cpu'))", "frame.wait(Odd((0, 1)))", "frame.__array__(copy=Odd(True))"]
READER = ["reader.frame(odd_bytes(bytes(handle)))", "reader.next(Odd(0.0))",
          "reader.newest(Odd(0.0))"]
BUS = ["tb.Reader(odd_bytes(bytes(handle)), bus=bus)",
       "tb.open_frame(odd_bytes(bytes(handle)), bus)",
       "tb.Reader('camera/front', Odd(1.0), bus=bus)",
       "tb.Reader('camera/front', every=Odd(True), bus=bus)",
       "tb.Pool.register(A, slots=Odd(2), bus=bus)", "tb.Pool.register(Odd(A), bus=bus)",
       "tb.register(Odd(A), bus=bus)", "tb.register(A, slots=Odd(2), bus=bus)",
       "tb.read('pool_camera_1', Odd(1.0), bus=bus)", "setattr(bus, 'stream_ordered', Odd(True))"]


def attack(weapon: str, error: str, calls: list[str], scene: str = SCENE, before: str = "",
           env: dict[str, str] | None = None) -> None:
    """Each call on a scene of its own."""
    told = f"WEAPON, SCENE, CALLS = {weapon!r}, {textwrap.dedent(scene)!r}, {calls!r}"
    kit.run(before, KIT, told, f"""
        for call in CALLS:
            exec(SCENE)
            attack(call, {error})
            frame = loan = reader = pool = event = value = None
            gc.collect()
            bus.close()
        """, env=ENVIRONMENT | (env or {}))


@pytest.mark.parametrize("calls", [POOL, LOAN, FRAME, READER, BUS],
                         ids=["pool", "loan", "frame", "reader", "bus"])
def test_the_bus_is_closed_by_an_argument(calls: list[str]) -> None:
    attack("bus.close()", "tb.ClosedError", calls)


@pytest.mark.parametrize("weapon, error, calls", [
    ("loan.cancel(), pool.free()", "tb.FreedError", POOL),
    ("loan.cancel()", "tb.InvalidError", LOAN),
    ("frame.release()", "tb.InvalidError", FRAME),
    ("reader.close()", "tb.ClosedError", READER),
], ids=["pool", "loan", "frame", "reader"])
def test_what_a_call_is_about_is_ended_by_its_argument(weapon: str, error: str,
                                                       calls: list[str]) -> None:
    attack(weapon, error, calls)


@pytest.mark.parametrize("weapon, error", [
    ("event.release()", "tb.InvalidError"),
    ("sink.close()", "tb.InvalidError"),
    ("sink.next(0)", "tb.InvalidError"),
])
def test_an_event_is_over_when_its_value_is_asked_for(weapon: str, error: str) -> None:
    scene = """
        from node_kit import node_pair
        if "both" in globals():
            both.__exit__(None, None, None)
        both = node_pair()
        source, sink = both.__enter__()
        bus = source.bus
        acted = []
        source.send_output("out", np.arange(1 << 16, dtype="f4"))
        event = sink.next(5)
        value = event.value
        """
    attack(weapon, error, ["value.__dlpack__(max_version=(Odd(1), 1))",
                           "value.__dlpack__(copy=Odd(True))", "value.__array__(copy=Odd(True))"],
           scene)


def test_the_end_of_what_promised_has_returned_closes_the_bus() -> None:
    kit.run(KIT, "WEAPON = 'bus.close()'", SCENE, """
        class Last:
            def __del__(self):
                act()
        attack("pool.write(A, promised=lambda handle: Last())", tb.ClosedError)
        """, env=ENVIRONMENT)


@pytest.mark.parametrize("weapon, error", [
    ("bus.close()", "tb.ClosedError"), ("loan.cancel()", "tb.InvalidError"),
    ("loan.publish()", "tb.InvalidError")])
def test_a_class_bodys_variables_are_looked_at(weapon: str, error: str) -> None:
    """publish() looks for the array among the caller's variables, which may be any mapping."""
    kit.run(KIT, f"WEAPON = {weapon!r}", SCENE, f"""
        class Space:
            def __init__(self):
                self.names = {{}}
            def __getitem__(self, name):
                return self.names[name]
            def __setitem__(self, name, value):
                self.names[name] = value
            def values(self):
                act()
                return list(self.names.values())
        def meta(*_):
            pass
        meta.__prepare__ = lambda *_: Space()
        def body():
            class Body(metaclass=meta):
                with loan as array:
                    array[:] = 1
        attack("body()", {error})
        """, env=ENVIRONMENT)


# ---- on a GPU ----

GPU = f"""
{gpu_kit.PROLOGUE}
gpu.begin()
"""
GPU_SCENE = """
bus = tb.open_bus("camera")
A = np.arange(64, dtype="f4")
pool = tb.Pool.register(A, name="front", device="cuda:0", max_leases=8)
handle = pool.write(A)
reader = tb.Reader("camera/front")
frame, loan = pool.read(), pool.loan()
acted = []
"""

# NumPy is asked for its dtypes.
NUMPY = """
class Numpy:
    def __getattr__(self, name):
        act()
        return getattr(np, name)
sys.modules["numpy"] = Numpy()
"""


@gpu_kit.needs_gpu
@pytest.mark.parametrize("weapon, error", [
    ("bus.close()", "tb.ClosedError"), ("frame.release()", "tb.InvalidError")])
def test_a_gpus_frame_ends_while_numpy_is_asked(weapon: str, error: str) -> None:
    attack(weapon, error, ["frame.__cuda_array_interface__"], GPU_SCENE + NUMPY, GPU,
           gpu_kit.environment())
    attack(weapon, error, ["frame.__dlpack__(stream=Odd(1))", "frame.wait(Odd((0, 1)))",
                           "frame.__dlpack__(dl_device=(Odd(1), 0))", "frame.copy(Odd('cpu'))"],
           GPU_SCENE, GPU, gpu_kit.environment())


@gpu_kit.needs_gpu
def test_a_gpus_frame_is_released_while_room_for_its_copy_is_made() -> None:
    """The copy had begun: it is made."""
    kit.run(GPU, KIT, "WEAPON = 'frame.release()'", GPU_SCENE, NUMPY, """
        copy = frame.copy()
        assert acted and frame.released and (copy == A).all()
        """, env=ENVIRONMENT | gpu_kit.environment())
    attack("bus.close()", "tb.ClosedError", ["frame.copy()"], GPU_SCENE + NUMPY, GPU,
           gpu_kit.environment())


@gpu_kit.needs_gpu
@pytest.mark.parametrize("weapon, error", [
    ("bus.close()", "tb.ClosedError"), ("loan.cancel()", "tb.InvalidError")])
def test_a_gpus_loan_ends_while_it_is_asked(weapon: str, error: str) -> None:
    attack(weapon, error, ["loan.__cuda_array_interface__"], GPU_SCENE + NUMPY, GPU,
           gpu_kit.environment())
    attack(weapon, error, ["loan.__dlpack__(stream=Odd(1))", "loan.publish(Odd((0, 1)))"],
           GPU_SCENE, GPU, gpu_kit.environment())


@gpu_kit.needs_gpu
@pytest.mark.parametrize("weapon, error", [
    ("bus.close()", "tb.ClosedError"), ("loan.cancel(), pool.free()", "tb.FreedError")])
def test_a_source_that_was_kept_for_a_stream_ends_the_pool(weapon: str, error: str) -> None:
    kit.run(GPU, KIT, f"WEAPON = {weapon!r}", GPU_SCENE, f"""
        class Last(Interface):
            def __del__(self):
                act()
        mine, memory = gpu.stream(), Memory(A)
        pool.write(Last(memory), stream=mine)  # keeps it until the stream has passed the copy
        gpu.synchronize(mine)
        assert not acted
        attack("pool.write(Exporter(memory), stream=mine)", {error})
        """, env=ENVIRONMENT | gpu_kit.environment())
