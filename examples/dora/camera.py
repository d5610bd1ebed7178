"""A 1080p "camera": draws a moving square, in place, at each tick of dora's timer."""

import os

import numpy as np
import tensorbus.dora
from dora import Node

FRAMES = int(os.environ.get("message_num", "0"))  # 0: until it is stopped
HEIGHT, WIDTH = 1080, 1920
SIDE = 200


def main() -> None:
    bus = tensorbus.dora.attach(Node())
    # More slots than the longest queue behind us: what waits in a queue is not overwritten.
    pool = bus.register(np.empty((HEIGHT, WIDTH, 3), np.uint8), name="image", slots=8)
    count = 0
    for event in bus:
        if event["type"] != "INPUT":
            continue
        left = count * 20 % (WIDTH - SIDE)
        with pool.loan() as image:  # a slot that nobody holds
            image[:] = 30
            image[400 : 400 + SIDE, left : left + SIDE] = 200
        bus.send_output("image", pool.last, {"frame": count, "left": left})
        count += 1
        if count == FRAMES:
            break
    print(f"camera: {count} frames, {pool.nbytes / 1e6:.1f} MB each")


if __name__ == "__main__":
    main()
