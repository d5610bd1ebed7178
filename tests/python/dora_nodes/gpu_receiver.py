"""Receiver of a pool on a GPU."""

import os
import sys

sys.path.insert(0, os.environ["TESTS"])
import gpu_device as gpu
import numpy as np
from dora import Node
from dora_tensor_pool import tensor_from_info
from record import Recorder

node = Node()
gpu.begin()
recorder = Recorder("receiver")
like = np.zeros((4, 6), np.float32)
kept = []
for event in node:
    if event["type"] != "INPUT":
        continue
    info = node.read_tensor_pool(event["value"])
    index = event["metadata"]["index"]
    kept.append((info, index))
    if info["device"] == "cuda":
        first = [float(gpu.get(old["ptr"], like)[0, 1]) for old, _ in kept]
    else:
        first = [float(tensor_from_info(info)[0, 1])]
    recorder.write(index=index, device=info["device"], shape=info["shape"], first=first)
    node.send_output("answer", event["value"])
