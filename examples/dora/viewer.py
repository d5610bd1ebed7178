"""Takes the camera's images and the finder's boxes, and compares the two."""

import tensorbus.dora
from dora import Node


def main() -> None:
    bus = tensorbus.dora.attach(Node())
    seen = {"image": 0, "found": 0}
    for event in bus:
        if event["type"] != "INPUT":
            continue
        image = event["value"].numpy()
        if event["id"] == "found":
            left, top, right, bottom = event["metadata"]["box"]
            inside = image[top:bottom, left:right]
            assert (inside == 200).all(), event["metadata"]
            assert int(image[top, left - 1 if left else right, 0]) == 30
        seen[event["id"]] += 1
    lost = sum(bus.dropped.values())
    print(f"viewer: {seen['image']} images, {seen['found']} boxes, {lost} lost")


if __name__ == "__main__":
    main()
