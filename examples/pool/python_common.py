"""What python_sender.py and python_receiver.py share: settings from the environment, tensors of
PyTorch where it is and of NumPy otherwise, previews and progress."""

import os
import sys
from collections.abc import Iterable, Iterator

import numpy as np

try:
    import torch
except ImportError:  # NumPy does as well
    torch = None

ROWS, COLUMNS = 15000, 512  # int64: 61,440,000 bytes
SCENARIOS = ("throughput", "duplicate_free", "read_after_free", "write_after_free", "auto_cleanup")


def setting(name: str, otherwise: str, possible: Iterable[str] | None, hint: str) -> str:
    """A variable of the environment; another value than the possible ones ends the process."""
    value = os.environ.get(name) or otherwise
    if possible is not None and value not in possible:
        sys.exit(f"{name} is `{value}`: {hint}")
    return value


for _device in ("sender_device", "receiver_device"):
    setting(_device, "cpu", ["cpu"], "only `cpu` works here so far")
setting("cross_machine", "false", ["false", "0"], "other machines cannot be reached yet")
SCENARIO = setting("memory_pool_scenario", "throughput", SCENARIOS, f"use {', '.join(SCENARIOS)}")
_count = setting("message_num", "100", None, "")
FRAMES = int(_count) if _count.isdigit() else 0
if not 1 <= FRAMES <= 1_000_000:
    sys.exit(f"message_num is `{_count}`: use a number from 1 to 1000000")


def new_tensor():
    """int64[15000, 512], counting from 0."""
    numbers = torch.arange(ROWS * COLUMNS) if torch else np.arange(ROWS * COLUMNS, dtype=np.int64)
    return numbers.reshape(ROWS, COLUMNS)


def as_tensor(frame):
    """The elements of a frame, in place and read-only: do not write into them."""
    return torch.from_dlpack(frame) if torch else frame.numpy()


def preview(who: str, tensor) -> None:
    first = ", ".join(str(int(number)) for number in tensor[0, :5])
    print(f"{who} preview: [{first}, ...]")


def progress(steps: Iterable[int]) -> Iterator[int]:
    """Show how far it is after each step: a tqdm bar where tqdm and a terminal are, else a line for
    each quarter."""
    if sys.stdout.isatty():
        try:
            from tqdm import tqdm
        except ImportError:
            pass
        else:
            yield from tqdm(steps, total=FRAMES, file=sys.stdout, unit="frame")
            return
    for done, step in enumerate(steps, 1):
        yield step
        if done * 4 // FRAMES != (done - 1) * 4 // FRAMES:
            print(f"{done} of {FRAMES} frames")
