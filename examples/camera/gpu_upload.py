"""Brings each frame of the camera into a pool in a GPU's memory: one copy over the bus, enqueued on
a stream.

Input:    `image`: handles of uint8[height][width][3] in main memory, with metadata `index`.
Outputs:  `pixels`: handles of the same elements on the GPU, with `index`; sent before the copy is
          done.
          `image`: the handle that came, passed on with its metadata, for the monitor.
Settings: CAMERA_DEVICE, the GPU (cuda:0).
"""

import sys

import tensorbus as tb
from gpu_common import DEVICE, PATIENCE_S, check_device, stream_of

SLOTS = 8  # in the queue, under the kernels, being written


def main() -> None:
    stream = stream_of(check_device())
    pool: tb.Pool | None = None
    frames = 0
    with tb.Node() as node:
        for event in node:
            if event.type == "ERROR":
                print(event.text, file=sys.stderr)
            frame = event.frame if event.type == "INPUT" else None
            if frame is None:
                continue
            # The first one, or the camera's size has changed.
            if pool is None or pool.shape != frame.shape:
                pool = tb.Pool.register(
                    tb.Spec(frame.shape, frame.dtype), device=DEVICE, slots=SLOTS
                )
            # The frame is kept until the stream has copied it; this process waits for nothing.
            pixels = pool.write(frame, PATIENCE_S, stream=stream)
            node.send_output("pixels", pixels, {"index": event.metadata["index"]}, PATIENCE_S)
            node.send_output("image", frame, event.metadata, PATIENCE_S)
            frames += 1
    print(f"{frames} frames brought to {DEVICE}")


if __name__ == "__main__":
    main()
