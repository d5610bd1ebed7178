"""Sends frames of 61,440,000 bytes by handle, each when the receiver has asked for it."""

import os
import time

import numpy as np
import tensorbus.dora
from dora import Node

FRAMES = int(os.environ.get("message_num", "100"))
ELEMENTS = 15000 * 512  # int64


def asked(bus) -> bool:
    """Wait for the receiver's word; False when it has ended or the dataflow stops."""
    for event in bus:
        if event["type"] in ("INPUT", "STOP"):
            return event["type"] == "INPUT"
    return False


def main() -> None:
    bus = tensorbus.dora.attach(Node())
    pool = bus.register(np.empty(ELEMENTS, np.int64), name="data", slots=2)
    source = np.arange(ELEMENTS, dtype=np.int64)
    print(f"Sender preview: {source[:5].tolist()}")
    for index in range(FRAMES):
        if not asked(bus):
            return
        source[0] = index
        sent = time.monotonic_ns()
        # One copy, while the message travels; `with pool.loan() as frame:` makes none.
        bus.send_output("data", source, {"index": index, "t_send": sent}, pool=pool)
    asked(bus)


if __name__ == "__main__":
    main()
