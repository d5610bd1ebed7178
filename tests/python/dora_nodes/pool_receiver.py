"""Receiver of the pool tests; dora's API alone."""

import os

import numpy as np
from dora import Node
from dora_tensor_pool import tensor_from_info
from record import Recorder

FRAMES = int(os.environ.get("FRAMES", "1"))


def hoard(node, recorder) -> None:
    """Keep every tensor, and ask for the next one all the same."""
    kept = []
    for _ in range(FRAMES):
        event = node.next(timeout=20)
        kept.append(tensor_from_info(node.read_tensor_pool(event["value"])))
        node.send_output("answer", b"")
    assert all(bool((at == at[0, 0]).all()) for at in kept)
    recorder.write(kept=[int(at[0, 0]) for at in kept])


def live(node, recorder) -> None:
    """Look at one address while the other overwrites it."""
    event = node.next(timeout=20)
    info = node.read_tensor_pool(event["value"])
    tensor = tensor_from_info(info)
    first = int(tensor[0, 0])
    same = True
    for _ in range(FRAMES - 1):
        node.send_output("answer", b"")
        event = node.next(timeout=20)
        same = same and node.read_tensor_pool(event["value"])["ptr"] == info["ptr"]
    recorder.write(first=first, same_pointer=same, later=int(tensor[5, 5]))
    node.send_output("answer", b"")


def calls(node, recorder) -> None:
    event = node.next(timeout=20)
    info = node.read_tensor_pool(event["value"])
    values = np.asarray(tensor_from_info(info)).ravel().tolist()
    recorder.write(values=values, dtype=info["dtype"], shape=info["shape"])
    node.send_output("answer", b"")
    event = node.next(timeout=20)
    recorder.call("freed", lambda: node.read_tensor_pool(event["value"]))
    node.send_output("answer", b"")


if __name__ == "__main__":
    globals()[os.environ["ROLE"]](Node(), Recorder("receiver"))
