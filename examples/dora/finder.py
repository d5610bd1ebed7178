"""Finds the square in each image and sends its box, and the image again: no byte is copied."""

import numpy as np
import tensorbus.dora
from dora import Node


def main() -> None:
    bus = tensorbus.dora.attach(Node())
    for event in bus:
        if event["type"] != "INPUT":
            continue
        frame = event["value"]
        image = frame.numpy()
        columns = np.flatnonzero(image[500, :, 0] > 100)
        rows = np.flatnonzero(image[:, columns[0], 0] > 100)
        box = [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]
        # The frame is the camera's; its handle goes on to the next node.
        bus.send_output("found", frame, {"frame": event["metadata"]["frame"], "box": box})


if __name__ == "__main__":
    main()
