"""What dora_sender.py and dora_receiver.py share. Written against dora's API alone."""

import ctypes
import os
import sys

import numpy as np

try:
    import torch
except ImportError:  # NumPy does as well
    torch = None

ROWS, COLUMNS = 15000, 512
ELEMENTS = ROWS * COLUMNS
BYTES = ELEMENTS * 8  # int64: 61,440,000

FRAMES = int(os.environ.get("message_num", "100"))
# dora's own example files say `tensor_pool_scenario`, its scripts read `memory_pool_scenario`.
SCENARIO = os.environ.get(
    "memory_pool_scenario", os.environ.get("tensor_pool_scenario", "throughput")
)

POOL_CALLS = "register_tensor_pool", "write_tensor_pool", "read_tensor_pool", "free_tensor_pool"


def check_node(node) -> None:
    """End with one clear line where the node has no tensor pool."""
    if not all(hasattr(node, call) for call in POOL_CALLS):
        sys.exit(
            "this dora was built without its tensor pool; run the flow with\n"
            "    tensorbus run --dora-api FLOW\n"
            "or see examples/dora for Tensorbus inside a dora as it is"
        )


def new_tensor():
    """int64[7680000], counting from 0: a torch.Tensor where PyTorch is, else a NumPy array."""
    return torch.arange(ELEMENTS) if torch else np.arange(ELEMENTS, dtype=np.int64)


def describe(tensor) -> dict:
    """What register_tensor_pool and write_tensor_pool take."""
    if torch:
        from dora_tensor_pool import get_tensor_info

        return get_tensor_info(tensor)
    return {
        "ptr": tensor.ctypes.data,
        "size": tensor.nbytes,
        "dtype": tensor.dtype.name,
        "shape": list(tensor.shape),
        "device": "cpu",
    }


def open_tensor(info: dict):
    """The tensor that read_tensor_pool described, in place."""
    if torch:
        from dora_tensor_pool import tensor_from_info

        return tensor_from_info(info)
    memory = (ctypes.c_uint8 * info["size"]).from_address(info["ptr"])
    memory.info = info  # what holds the frame lives as long as the view
    return np.ctypeslib.as_array(memory).view(np.int64).reshape(info["shape"])


def preview(who: str, tensor) -> None:
    print(f"{who} preview: {[int(x) for x in tensor[:5]]}", flush=True)


def progress(items, total: int):
    """A tqdm bar where tqdm is, on a terminal; else nothing."""
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    return tqdm(items, total=total, disable=not sys.stderr.isatty())
