"""Finds what moves, by kernels of PyTorch's on the frame where it lies in the GPU's memory.

Inputs:   `pixels`: handles of uint8[height][width][3] on the GPU, with `index`. They come before
          the GPU has finished them: PyTorch's stream waits, this process does not.
          `image`: handles of the same frames in main memory.
Outputs:  `boxes`: int32[n][5], a row is id, x, y, width, height in pixels; with `index`.
          `image`: the handle that came, passed on after its boxes.
Settings: CAMERA_DEVICE, the GPU (cuda:0).

Only a grid of some 160 cells across leaves the GPU for each frame.
"""

import statistics
import sys
import time

import numpy as np
import tensorbus as tb
import torch
from gpu_common import PATIENCE_S, check_device

COLUMNS = 160  # cells across
CONTRAST = 14.0  # of 255, from the background
CHANGE = 7.0  # of 255, from the frame before
RECENT = 3  # frames: a place that something left longer ago is empty, whatever the background says
LEARNING = 0.05, 0.005  # of the difference for each frame: elsewhere, and where something moves
MIN_CELLS = 6
MAX_BOXES = 32


def spread(cells: torch.Tensor) -> torch.Tensor:
    """The greatest of each cell and its neighbours; float32[rows][columns]."""
    return torch.nn.functional.max_pool2d(cells[None, None], 3, stride=1, padding=1)[0, 0]


class Motion:
    """The kernels, and what is learned of the grid: float32[rows][columns] each, on the device."""

    def __init__(self) -> None:
        self.background: torch.Tensor | None = None
        # The frame before; frames since a cell has changed.
        self.previous = self.still = torch.empty(0)
        self.cell = 1  # pixels a side

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Enqueue the work on a frame, uint8[height][width][3]; the cells in which something moves,
        as uint8[rows][columns] on the device."""
        self.cell = -(-pixels.shape[1] // COLUMNS)
        grey = pixels.float().mean(dim=2)[None, None]
        cells = torch.nn.functional.avg_pool2d(grey, self.cell, ceil_mode=True)[0, 0]
        if self.background is None or self.background.shape != cells.shape:
            self.background, self.previous = cells.clone(), cells
            self.still = torch.full_like(cells, RECENT)
        self.still = torch.where((cells - self.previous).abs() > CHANGE, 0.0, self.still + 1)
        self.previous = cells
        difference = cells - self.background
        moving = (difference.abs() > CONTRAST) & (spread(-self.still) > -RECENT)
        fast, slow = LEARNING
        self.background += difference * torch.where(moving, slow, fast)
        return spread(moving.float()).to(torch.uint8)  # small gaps are closed


def boxes_of(cells: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Connected cells of uint8[rows][columns] as (column, row, columns, rows), the largest
    first."""
    left = {(int(row), int(column)) for row, column in zip(*np.nonzero(cells))}
    found = []
    while left:
        stack, group = [left.pop()], []
        while stack:
            row, column = cell = stack.pop()
            group.append(cell)
            for near in (
                (row - 1, column),
                (row + 1, column),
                (row, column - 1),
                (row, column + 1),
            ):
                if near in left:
                    left.remove(near)
                    stack.append(near)
        if len(group) >= MIN_CELLS:
            rows, columns = zip(*group)
            top, start = min(rows), min(columns)
            found.append((len(group), start, top, max(columns) - start + 1, max(rows) - top + 1))
    return [box for _, *box in sorted(found, reverse=True)[:MAX_BOXES]]


class Tracks:
    """Gives a box the number of the one of the frame before that it overlaps."""

    def __init__(self) -> None:
        self.last: list[tuple[int, int, int, int, int]] = []
        self.count = 0

    def __call__(self, boxes: list[tuple[int, int, int, int]]) -> np.ndarray:
        """int32[n][5]: id, x, y, width, height, in the unit of the boxes."""
        free, numbered = list(self.last), []
        for x, y, width, height in boxes:
            same = next(
                (
                    old
                    for old in free
                    if x < old[1] + old[3]
                    and old[1] < x + width
                    and y < old[2] + old[4]
                    and old[2] < y + height
                ),
                None,
            )
            if same is None:
                self.count += 1
            else:
                free.remove(same)
            numbered.append((same[0] if same else self.count, x, y, width, height))
        self.last = numbered
        return np.array(numbered, np.int32).reshape(-1, 5)


class Node:
    """Pairs the cells of a frame with its image, which come one after the other."""

    def __init__(self, node: tb.Node) -> None:
        self.node, self.motion, self.tracks = node, Motion(), Tracks()
        self.cells: dict[int, torch.Tensor] = {}
        self.images: dict[int, tb.Event] = {}  # held, and so are their frames
        self.frames = self.boxes = 0
        self.took_ms: list[float] = []

    def take(self, event: tb.Event) -> None:
        index = event.metadata["index"]
        if event.id == "pixels":
            pixels = torch.from_dlpack(event.frame)
            self.cells[index] = self.motion(pixels)
            del pixels  # given back when the stream has got so far
        else:
            self.images[index] = event.hold()
        if index in self.cells and index in self.images:
            self.finish(index)

    def finish(self, index: int) -> None:
        begin_ns = time.monotonic_ns()
        cells = self.cells.pop(index).cpu().numpy()  # the one place that waits for the GPU
        self.took_ms.append((time.monotonic_ns() - begin_ns) / 1e6)
        boxes = self.tracks(boxes_of(cells))
        boxes[:, 1:] *= self.motion.cell
        self.node.send_output("boxes", boxes, {"index": index}, PATIENCE_S)
        with self.images.pop(index) as image:
            self.node.send_output("image", image.frame, image.metadata, PATIENCE_S)
        self.frames += 1
        self.boxes += len(boxes)


def main() -> None:
    device = check_device()
    with tb.Node() as node, torch.inference_mode():
        node.bus.stream_ordered = device.type == "cuda"
        work = Node(node)
        for event in node:
            if event.type == "ERROR":
                print(event.text, file=sys.stderr)
            elif event.type == "INPUT":
                work.take(event)
    waited = statistics.median(work.took_ms) if work.took_ms else 0.0
    print(
        f"{work.frames} frames searched on {device}, {work.boxes} boxes, waited p50 {waited:.3f} ms"
    )


if __name__ == "__main__":
    main()
