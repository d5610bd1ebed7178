"""Reads each frame where the sender wrote it, checks that element 0 counts, asks for the next."""

import os
import time

import tensorbus.dora
from dora import Node

FRAMES = int(os.environ.get("message_num", "100"))


def main() -> None:
    bus = tensorbus.dora.attach(Node())
    bus.send_output("next_require", b"")
    seconds, size, done = 0.0, 0, 0
    for event in bus:
        if event["type"] != "INPUT":
            continue
        frame = event["value"]  # a tensorbus.Frame
        data = frame.numpy()  # read-only view of the sender's memory
        index = event["metadata"]["index"]
        assert data[0] == index, (data[0], index)
        if index == 0:
            # Not counted: dora takes some 0.2 s for the first message of an output.
            print(f"Receiver preview: {data[:5].tolist()}")
            print(f"Lane: {frame.info.lane}, copies: {frame.info.copies}")
        else:
            seconds += (time.monotonic_ns() - event["metadata"]["t_send"]) / 1e9
            size += data.nbytes
        done += 1
        del data, frame, event  # give the slot back before asking for the next frame
        bus.send_output("next_require", b"")
        if done == FRAMES:
            break
    print(f"Average transfer throughput: {size / seconds / 2**20:.1f} MB/s")


if __name__ == "__main__":
    main()
