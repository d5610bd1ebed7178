"""Sender of the pool tests; dora's API alone."""

import os

import numpy as np
import pyarrow as pa
from dora import Node
from record import Recorder

FRAMES = int(os.environ.get("FRAMES", "1"))
ROLE = os.environ["ROLE"]


def describe(array: np.ndarray, dtype: str | None = None) -> dict:
    return {
        "ptr": array.ctypes.data,
        "size": array.nbytes,
        "dtype": dtype or array.dtype.name,
        "shape": list(array.shape),
        "device": "cpu",
    }


def stream(node, live: bool) -> None:
    """Overwrite the pool for each frame, when the receiver says so."""
    array = np.zeros((100, 100), np.int64)
    pool = node.register_tensor_pool(describe(array), **({"live": True} if live else {}))
    for index in range(FRAMES):
        array[:] = index
        node.write_tensor_pool(pool, describe(array))
        node.send_output("data", pool, {"index": index})
        event = node.next(timeout=20)
        assert event["type"] == "INPUT", event
    for _ in node:
        pass


def calls(node) -> None:
    """Every wrong call, then every right one."""
    recorder = Recorder("sender")
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    good = describe(array, "torch.int32")

    def register(**change):
        info = {key: value for key, value in {**good, **change}.items() if value is not None}
        return lambda: node.register_tensor_pool(info)

    for key in ("ptr", "size", "dtype", "shape", "device"):
        recorder.call(f"no {key}", register(**{key: None}))
    recorder.call("null", register(ptr=0))
    recorder.call("no bytes", register(size=0))
    recorder.call("machine", lambda: node.register_tensor_pool(good, machine="B"))
    recorder.call("device", lambda: node.register_tensor_pool(good, device="cuda:0"))
    recorder.call("name", lambda: node.register_tensor_pool(good, name="x"))
    pool = node.register_tensor_pool(good, "cpu", None, "dora_pool_x")
    recorder.call("name twice", lambda: node.register_tensor_pool(good, name="dora_pool_x"))
    recorder.call("id", lambda: node.read_tensor_pool(pa.array([1])))
    text = pool[0].as_py()
    recorder.write(id=[text[:12], text[12:].isdigit()])

    def values() -> list[int]:
        info = node.read_tensor_pool(pool)
        return np.ctypeslib.as_array(
            (np.ctypeslib.ctypes.c_int32 * 6).from_address(info["ptr"])
        ).tolist()

    info = node.read_tensor_pool(pool)
    recorder.write(read={key: info[key] for key in ("dtype", "shape", "size", "device")})
    node.send_output("data", pool)
    node.next(timeout=10)
    head = np.array([100, 101], np.int32)
    node.write_tensor_pool(pool, describe(head))
    recorder.write(**{"short write": values()})
    node.write_tensor_pool(pool, describe(np.arange(7, dtype=np.int32)))
    recorder.write(**{"too long": values()})
    recorder.write(**{"own free": node.free_tensor_pool(pool)})
    node.send_output("data", pool)
    node.next(timeout=10)


if __name__ == "__main__":
    dora_node = Node()
    calls(dora_node) if ROLE == "calls" else stream(dora_node, ROLE == "live")
