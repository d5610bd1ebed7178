"""A source of frames that needs no FFmpeg: takes the camera's place (camera.c says what it sends).

Video:    $VIDEO: a file or a camera (/dev/video0), by OpenCV (pip install opencv-python-headless);
          without VIDEO a scene that is drawn: three discs that move over a pattern.
Settings: SCENE_FRAMES (150) and SCENE_SIZE (1280x720) of the drawn scene; CAMERA_RATE=max for as
          fast as the others can follow, else at the video's own pace.
"""

import os
import re
import sys
import time
from collections.abc import Iterator

import numpy as np
import tensorbus as tb

VIDEO = os.environ.get("VIDEO", "")
SLOTS, MAX_LEASES = 8, 3
PATIENCE_S = 0.1  # before it is seen whether the flow is to stop


class Scene:
    """Drawn frames, always the same ones."""

    codec, fps = "drawn", 30.0

    def __init__(self) -> None:
        size, frames = (
            os.environ.get("SCENE_SIZE", "1280x720"),
            os.environ.get("SCENE_FRAMES", "150"),
        )
        if not re.fullmatch(r"[1-9][0-9]{1,3}x[1-9][0-9]{1,3}", size):
            sys.exit(f"SCENE_SIZE is `{size}`: use WIDTHxHEIGHT, such as 1280x720")
        if not re.fullmatch(r"[1-9][0-9]{0,6}", frames):
            sys.exit(f"SCENE_FRAMES is `{frames}`: use a number from 1 to 9999999")
        self.width, self.height = map(int, size.split("x"))
        self.frames, self.name = int(frames), f"a scene of {size}"
        rows, columns = np.mgrid[: self.height, : self.width]
        self.rows, self.columns = rows[:, :1], columns[:1]
        pattern = 70 + 20 * ((rows // 40 + columns // 40) % 2)
        self.ground = np.stack([pattern, pattern + 10, pattern + 25], axis=2).astype(np.uint8)

    def draw(self, index: int, image: np.ndarray) -> None:
        """Write frame `index` into uint8[height][width][3]."""
        image[:] = self.ground
        for number, colour in enumerate(((230, 80, 60), (250, 220, 90), (120, 240, 160))):
            radius = self.height // 12
            across = (index * (5 + 2 * number) + number * self.width // 3) % self.width
            down = self.height * (number + 1) // 4
            distance = (self.rows - down) ** 2 + (self.columns - across) ** 2
            image[distance < radius * radius] = colour

    def read(self) -> Iterator[int]:
        yield from range(self.frames)


class Film:
    """Frames of a file or camera, as OpenCV decodes them."""

    def __init__(self) -> None:
        try:
            import cv2
        except ImportError:
            sys.exit(
                "VIDEO needs OpenCV here (pip install opencv-python-headless); without VIDEO a "
                "scene is drawn"
            )
        self.cv2, self.capture = cv2, cv2.VideoCapture(VIDEO)
        if not self.capture.isOpened():
            sys.exit(f"VIDEO is `{VIDEO}`: OpenCV cannot open it")
        self.width = int(self.capture.get(cv2.CAP_PROP_FRAME_WIDTH))
        self.height = int(self.capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        self.fps = float(self.capture.get(cv2.CAP_PROP_FPS)) or 30.0
        self.frames = max(0, int(self.capture.get(cv2.CAP_PROP_FRAME_COUNT)))
        self.name, self.codec = os.path.basename(VIDEO), "OpenCV"

    def draw(self, index: int, image: np.ndarray) -> None:
        self.cv2.cvtColor(self.picture, self.cv2.COLOR_BGR2RGB, dst=image)

    def read(self) -> Iterator[int]:
        index = 0
        while (found := self.capture.read())[0]:
            self.picture = found[1]
            yield index
            index += 1


def stopped(node: tb.Node, until: float = 0.0) -> bool:
    """Wait for STOP, at most until a time."""
    while True:
        left = max(0.0, until - time.monotonic())
        event = node.next(left)
        if event is not None and event.type == "STOP":
            return True
        if left == 0:
            return False


def send(node: tb.Node, handle: tb.Handle, metadata: dict) -> bool:
    while True:
        try:
            node.send_output("image", handle, metadata, PATIENCE_S)
            return True
        except tb.AgainError:
            if stopped(node):
                return False


def main() -> None:
    source = Film() if VIDEO else Scene()
    paced = os.environ.get("CAMERA_RATE") != "max"
    sent = 0
    with tb.Node() as node:
        pool = tb.Pool.register(
            tb.Spec((source.height, source.width, 3), "uint8"),
            name="frames",
            slots=SLOTS,
            max_leases=MAX_LEASES,
            require_zero_copy=True,
        )
        start = time.monotonic()
        for index in source.read():
            with pool.loan() as image:  # the one place where pixels are written
                source.draw(index, image)
            metadata = {"index": index, "pts": index / source.fps}
            if index == 0:
                metadata |= {
                    "video": source.name,
                    "codec": source.codec,
                    "fps": source.fps,
                    "frames": source.frames,
                }
            if stopped(node, start + index / source.fps if paced else 0.0) or not send(
                node, pool.last, metadata
            ):
                break
            sent += 1
    print(f"{sent} frames of {source.name}")


if __name__ == "__main__":
    main()
