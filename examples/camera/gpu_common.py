"""What gpu_upload.py and gpu_motion.py share: the device, and what is said when it is not there."""

import os
import sys

DEVICE = os.environ.get("CAMERA_DEVICE") or "cuda:0"
PATIENCE_S = 30.0  # for a consumer that takes nothing; one that is gone is never waited for
CPU_FLOW = "flow.yml looks for what moves with the CPU"
WAY_OUT = f"; {CPU_FLOW}, CAMERA_DEVICE=cpu runs this flow with PyTorch on it"

try:
    import torch
except ImportError:
    sys.exit(f"this flow needs PyTorch (pip install torch); {CPU_FLOW}")


def check_device() -> "torch.device":
    """The device of CAMERA_DEVICE; ends the process with an explanation when it is not there."""
    try:
        device = torch.device(DEVICE)
    except RuntimeError:
        sys.exit(f"CAMERA_DEVICE is `{DEVICE}`: use cuda:0, cuda:1, ... or cpu")
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        sys.exit(f"CAMERA_DEVICE is `{DEVICE}`: use cuda:0, cuda:1, ... or cpu")
    if not torch.cuda.is_available():
        sys.exit(f"this flow needs an NVIDIA GPU, its driver and a PyTorch for CUDA{WAY_OUT}")
    found = torch.cuda.device_count()
    if (device.index or 0) >= found:
        sys.exit(
            f"CAMERA_DEVICE is `{DEVICE}`: this flow needs that GPU; PyTorch sees {found}{WAY_OUT}"
        )
    torch.cuda.set_device(device)
    return device


def stream_of(device: "torch.device") -> "torch.cuda.Stream | None":
    """The stream that PyTorch works on; None in main memory."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None
