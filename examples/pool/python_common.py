"""What python_sender.py and python_receiver.py share."""

import os
import sys

import numpy as np

try:
    import torch
except ImportError:  # NumPy does as well
    torch = None

ELEMENTS = 15000 * 512
FRAMES = int(os.environ.get("message_num", "100"))


def new_tensor():
    """int64[7680000], counting from 0: a torch.Tensor where PyTorch is, else a NumPy array."""
    return torch.arange(ELEMENTS) if torch else np.arange(ELEMENTS, dtype=np.int64)


def as_tensor(value):
    """A frame as torch.Tensor or NumPy array, in place."""
    return torch.from_dlpack(value) if torch else value.numpy()


def preview(who: str, tensor) -> None:
    print(f"{who} preview: {[int(x) for x in tensor[:5]]}")


def progress(items):
    """A tqdm bar where tqdm is and somebody can see it."""
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    return tqdm(items, disable=not sys.stderr.isatty())
