"""Sender of a pool on a GPU: dora's API, and the driver's own calls."""

import os
import sys

sys.path.insert(0, os.environ["TESTS"])
import gpu_device as gpu
import numpy as np
from dora import Node
from dora_tensor_pool import get_tensor_info
from record import Recorder

node = Node()
gpu.begin()
recorder = Recorder("sender")
array = np.arange(24, dtype=np.float32).reshape(4, 6)
on_gpu = gpu.Interface(gpu.Memory(array + 100))

pool = node.register_tensor_pool(get_tensor_info(array), device="cuda:0")
host = node.register_tensor_pool(get_tensor_info(on_gpu), device="cpu")
recorder.write(info={k: get_tensor_info(on_gpu)[k] for k in ("size", "dtype", "shape", "device")})
for index in range(3):
    if index == 1:
        node.write_tensor_pool(pool, get_tensor_info(on_gpu))
    elif index == 2:
        node.write_tensor_pool(pool, get_tensor_info(array + 200))
    node.send_output("data", pool, {"index": index})
    assert node.next(timeout=20)["type"] == "INPUT"
node.send_output("data", host, {"index": 3})
assert node.next(timeout=20)["type"] == "INPUT"
short = get_tensor_info(array) | {"size": 4}
recorder.call("short", lambda: node.write_tensor_pool(pool, short))
recorder.call("device", lambda: node.register_tensor_pool(get_tensor_info(array), device="tpu"))
for number in (pool, host):
    node.free_tensor_pool(number)
