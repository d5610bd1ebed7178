"""What python_sender.py and python_receiver.py share: settings from the environment, tensors of
PyTorch where it is and of NumPy otherwise (on GPUs: of PyTorch alone), previews and progress."""

import os
import re
import sys
from collections.abc import Iterable, Iterator

import numpy as np

try:
    import torch
except ImportError:  # NumPy does as well, but for GPUs
    torch = None

ROWS, COLUMNS = 15000, 512  # int64: 61,440,000 bytes
SCENARIOS = ("throughput", "duplicate_free", "read_after_free", "write_after_free", "auto_cleanup")


def setting(name: str, otherwise: str, possible: Iterable[str] | None, hint: str) -> str:
    """A variable of the environment; another value than the possible ones ends the process."""
    value = os.environ.get(name) or otherwise
    if possible is not None and value not in possible:
        sys.exit(f"{name} is `{value}`: {hint}")
    return value


def device_setting(name: str) -> str:
    """`cpu`, or `cuda:N`; `cuda` is `cuda:0`."""
    value = setting(name, "cpu", None, "")
    if value != "cpu" and not re.fullmatch(r"cuda(:[0-9]{1,3})?", value):
        sys.exit(f"{name} is `{value}`: use cpu, cuda or cuda:0, cuda:1, ...")
    return "cuda:0" if value == "cuda" else value


SENDER, RECEIVER = device_setting("sender_device"), device_setting("receiver_device")
setting("cross_machine", "false", ["false", "0"], "other machines cannot be reached yet")
SCENARIO = setting("memory_pool_scenario", "throughput", SCENARIOS, f"use {', '.join(SCENARIOS)}")
_count = setting("message_num", "100", None, "")
FRAMES = int(_count) if _count.isdigit() else 0
if not 1 <= FRAMES <= 1_000_000:
    sys.exit(f"message_num is `{_count}`: use a number from 1 to 1000000")


def need_devices(*devices: str) -> None:
    """Make the first GPU the current one, whose tensors PyTorch hands out. Ends the process with
    an explanation when a device that this node works on is not there."""
    gpus = [int(device.removeprefix("cuda:")) for device in devices if device != "cpu"]
    if not gpus:
        return
    given = f"sender_device `{SENDER}`, receiver_device `{RECEIVER}`"
    if torch is None:
        sys.exit(f"{given}: this flow needs PyTorch (pip install torch); cpu2cpu.yml does not")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found == 0:
        sys.exit(
            f"{given}: this flow needs an NVIDIA GPU, its driver and a PyTorch for CUDA; "
            "python_cpu2cpu.yml needs none of them"
        )
    if max(gpus) >= found and SENDER != RECEIVER and found == 1:
        sys.exit(f"{given}: this flow needs two GPUs; python_cuda_inner.yml needs one")
    if max(gpus) >= found:
        sys.exit(f"{given}: this flow needs that GPU; PyTorch sees {found}, from cuda:0 on")
    torch.cuda.set_device(f"cuda:{gpus[0]}")


def new_tensor():
    """int64[15000, 512], counting from 0, on the sender's device. Main memory that a GPU copies
    from is page-locked: so it does that at the full speed of the bus."""
    if torch is None:
        return np.arange(ROWS * COLUMNS, dtype=np.int64).reshape(ROWS, COLUMNS)
    numbers = torch.arange(ROWS * COLUMNS, device=SENDER)
    if SENDER == "cpu" and RECEIVER != "cpu":
        numbers = numbers.pin_memory()
    return numbers.reshape(ROWS, COLUMNS)


def as_tensor(frame):
    """The elements of a frame, in place, on whatever device they are, and read-only: do not write
    into them."""
    return torch.from_dlpack(frame) if torch else frame.numpy()


def preview(who: str, tensor, device: str) -> None:
    first = ", ".join(str(int(number)) for number in tensor[0, :5])
    print(f"{who} preview: [{first}, ...]" + (f" on {device}" if device != "cpu" else ""))


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
