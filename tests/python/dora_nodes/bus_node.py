"""Nodes for tensorbus inside stock dora, one function for each; ROLE picks one.

Each writes what it saw into $RECORD/<node id>.jsonl; the tests compare that.
"""

import json
import os
import signal
import sys
import time

import numpy as np
import tensorbus
import tensorbus.dora
from dora import Node

SHAPE = (48, 64, 3)


class Record:
    def __init__(self, name: str) -> None:
        self._file = open(os.path.join(os.environ["RECORD"], name + ".jsonl"), "a")

    def __call__(self, **fields) -> None:
        self._file.write(json.dumps(fields) + "\n")
        self._file.flush()


def count() -> int:
    return int(os.environ.get("FRAMES", "10"))


def fill(pool, value: int, places: list | None = None):
    with pool.loan() as image:
        image[:] = value
        if places is not None:
            places.append(place_of(image))
    return pool.last


def place_of(array) -> list[int]:
    """Inode and offset of the memory behind an array: the same for the same bytes anywhere."""
    address = array.ctypes.data
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, offset, _, inode = line.split()[:5]
            begin, end = (int(word, 16) for word in span.split("-"))
            if begin <= address < end:
                return [int(inode), int(offset, 16) + address - begin]
    raise LookupError(address)


def wait(bus, kind: str = "INPUT"):
    """The next event of a type; None at the end."""
    for event in bus:
        if event["type"] == kind:
            return event
    return None


def turns(bus, record) -> None:
    """Send frames one by one, each when all have answered the one before."""
    pool = bus.register(np.empty(SHAPE, np.uint8), name="image")
    viewers = len(bus.node_config()["inputs"])
    for _ in range(viewers):
        wait(bus)
    places: list = []
    for index in range(count()):
        bus.send_output("image", fill(pool, index, places), {"index": index, "name": "turn"})
        for _ in range(viewers):
            wait(bus)
    record(sent=count(), id=pool.id, places=places)


def watch(bus, record) -> None:
    """Look at every frame, and tell how it came."""
    bus.send_output("ready", b"")
    for event in bus:
        if event["type"] != "INPUT":
            record(type=event["type"])
            continue
        frame = event["value"]
        image = frame.numpy()
        metadata = event["metadata"]
        metadata.pop("timestamp")
        record(
            index=metadata.get("index"),
            keys=sorted(metadata),
            uniform=bool((image == image[0, 0, 0]).all()),
            value=int(image[0, 0, 0]),
            shape=list(image.shape),
            dtype=str(image.dtype),
            writeable=image.flags.writeable,
            lane=str(frame.info.lane),
            copies=frame.info.copies,
            place=place_of(image),
            dropped=event["dropped"],
        )
        del image, frame, event
        bus.send_output("ready", b"")


def direct(bus, record) -> None:
    """Write frames that no message tells of, each when the one before is acknowledged."""
    options = {"policy": "every", "wait_readers": 1, "copy_threads": 2}
    pool = bus.register(np.empty(SHAPE, np.uint8), name="image", **options)
    places: list = []
    for index in range(count()):
        pool.wait_acked(fill(pool, index, places), timeout=20)
    record(sent=count(), places=places)


def direct_watch(bus, record) -> None:
    """Wait at the pool; then for the end of the dataflow."""
    reader = bus.reader("camera/image", timeout=20, every=True, ack=True)
    for frame in reader:
        image = frame.numpy()
        record(
            index=int(image[0, 0, 0]),
            uniform=bool((image == image[0, 0, 0]).all()),
            writeable=image.flags.writeable,
            place=place_of(image),
        )
        reader.ack(frame)
        del image
    record(events=[event["type"] for event in bus], lost=bus.dropped)


def slow(bus, record) -> None:
    """Come to the frames when most of them are overwritten."""
    bus.send_output("ready", b"")
    first = wait(bus)
    record(first=int(first["value"].numpy()[0, 0, 0]))
    del first
    time.sleep(float(os.environ["NAP"]))
    seen = []
    dropped = 0
    for event in bus:
        if event["type"] == "INPUT":
            seen.append(int(event["value"].numpy()[0, 0, 0]))
            dropped += event["dropped"]
            assert (event["value"].numpy() == seen[-1]).all()
    record(seen=seen, dropped=dropped, total=bus.dropped)


def mixed(bus, record) -> None:
    """Send arrays as they are, and what dora itself sends, in turns."""
    import pyarrow as pa

    wait(bus)
    large = np.arange(60_000, dtype=np.float32).reshape(200, 300)
    for data in (
        b"bytes",
        np.arange(6, dtype=np.int16).reshape(2, 3),
        pa.array(["text"]),
        large,
        large[::2, ::-3],
        np.float64(2.5) * np.ones(()),
        np.zeros((0, 3), np.uint8),
        np.arange(6, dtype=np.int16)[::-1],
    ):
        bus.send_output(
            "image", data, {"sum": float(np.sum(data)) if hasattr(data, "shape") else 0.0}
        )
        wait(bus)
    record(pools=len(bus._pools))


def mixed_viewer(bus, record) -> None:
    """Take them, by every way of taking."""
    import asyncio

    bus.send_output("ready", b"")
    for turn in range(8):
        event = None
        if turn % 4 == 0:
            event = bus.next(timeout=10)
        elif turn % 4 == 1:
            event = asyncio.run(bus.recv_async(timeout=10))
        while event is None:
            events = bus.drain() if turn % 4 == 2 else [bus.try_recv()]
            event = events[0] if events else None
        value = event["value"]
        if isinstance(value, tensorbus.Frame):
            array = value.numpy()
            assert float(array.sum()) == event["metadata"]["sum"], turn
            record(shape=list(array.shape), dtype=str(array.dtype), pool=event["pool"][:12])
            del array
        else:
            record(value=value.to_pylist())
        del value, event
        if turn == 7:  # the camera still waits: nothing comes
            timeout = bus.next(timeout=0.01)
            record(timeout=timeout["type"], poll=bus.try_recv(), drained=bus.drain())
        bus.send_output("ready", b"")
    while bus.next() is not None:
        pass
    record(at_the_end=bus.drain(), poll=bus.try_recv())


def forward(bus, record) -> None:
    """Send each frame on, without a copy."""
    for event in bus:
        if event["type"] == "INPUT":
            bus.send_output("image", event["value"], event["metadata"])
            record(index=event["metadata"]["index"])


def late(bus, record) -> None:
    """Look at nothing until the producer is at its end."""
    bus.send_output("ready", b"")
    time.sleep(float(os.environ["NAP"]))
    record(seen=[int(e["value"].numpy()[0, 0, 0]) for e in bus if e["type"] == "INPUT"])


def burst(bus, record) -> None:
    """Send frames without waiting for anyone, and end at once."""
    slots = int(os.environ.get("SLOTS", "4"))
    pool = bus.register(np.empty(SHAPE, np.uint8), name="image", slots=slots)
    wait(bus)
    for index in range(count()):
        bus.send_output("image", fill(pool, index), {"index": index})
        if index == 0:
            time.sleep(0.1)
    record(sent=count())


def numbers(bus, record) -> None:
    """Send numbers as fast as they go, every tenth as an array of dora's, which goes through it;
    wait for an answer to the first and to every hundredth."""
    import pyarrow as pa

    wait(bus)
    for number in range(count()):
        data = number.to_bytes(4, "little")
        if number % 10 == 9:
            data = pa.array(list(data), pa.uint8())
        bus.send_output("image", data, {"number": number})
        if number % 100 == 0:
            wait(bus)
    record(past=bus.past_dora)


def numbers_watch(bus, record) -> None:
    """Take them, and the ticks of a timer; use dora's own node between."""
    bus.send_output("ready", b"")
    seen, ticks = [], 0
    for event in bus:
        if event["type"] == "INPUT" and event["id"] == "tick":
            ticks += 1
            bus.node.extension_store("test", "ticks", str(ticks).encode())
        elif event["type"] == "INPUT":
            seen.append(int.from_bytes(event["value"].to_numpy().tobytes(), "little"))
            assert event["metadata"]["number"] == seen[-1]
            if seen[-1] % 100 == 0:
                bus.send_output("ready", b"")
        elif event["type"] == "INPUT_CLOSED":  # a timer would go on for ever
            break
    record(seen=seen, ticks=ticks, past=bus.past_dora, lost=bus.dropped)


def hold(bus, record) -> None:
    """Keep the first frame while its producer ends, and long after."""
    bus.send_output("ready", b"")
    kept = wait(bus)["value"]
    image = kept.numpy()
    before = int(image[0, 0, 0])
    bus.send_output("ready", b"")
    events = []
    for event in bus:
        events.append(event["type"])
    time.sleep(0.2)
    record(before=before, after=int(image[0, 0, 0]), same=bool((image == before).all()), end=events)


def end(bus, record) -> None:
    """Send one frame; when it is held, overwrite all other slots, then end in the way of END."""
    pool = bus.register(np.empty(SHAPE, np.uint8), name="image")
    wait(bus)
    bus.send_output("image", fill(pool, 77))
    wait(bus)
    for value in range(20):
        fill(pool, value)
    record(held=pool.stats().held)
    if os.environ["END"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ["END"] == "raise":
        raise SystemExit(3)


def owner(bus, record) -> None:
    """Send frames until somebody drops the pool's key."""
    pool = bus.register(np.empty(SHAPE, np.uint8), name="image")
    wait(bus)
    bus.send_output("image", fill(pool, 1))
    wait(bus)  # the other has dropped the key
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            fill(pool, 2)
        except tensorbus.FreedError:
            record(freed=True)
            break
        time.sleep(0.01)
    else:
        record(freed=False)
    bus.send_output("image", b"freed")


def dropper(bus, record) -> None:
    """Read a pool by its id, drop its key, and keep the frame."""
    bus.send_output("ready", b"")
    event = wait(bus)
    pool_id, frame = event["pool"], event["value"]
    found = bus.lookup(pool_id)
    raw = json.loads(bus.node.extension_load("dora-tensor-pool", pool_id))
    record(
        id=pool_id, fields=sorted(raw), tags=sorted({tag for one in raw.values() for tag in one})
    )
    record(
        dtype=found["dtype"],
        shape=found["shape"],
        size=found["size"],
        path=found["tensorbus"]["path"],
    )
    with bus.reader(pool_id) as reader:
        record(newest=int(next(iter(reader)).numpy()[0, 0, 0]))
    bus.node.extension_drop("dora-tensor-pool", pool_id)
    bus.send_output("ready", b"")
    wait(bus)  # the owner has seen it
    record(still=bool((frame.numpy() == 1).all()), gone=bus.lookup(pool_id))
    try:
        bus.reader(pool_id)
    except tensorbus.NotFoundError as error:
        record(error=str(error))


def main() -> None:
    node = Node()
    with tensorbus.dora.attach(node) as bus:
        record = Record(bus.name)
        globals()[os.environ["ROLE"]](bus, record)


if __name__ == "__main__":
    sys.exit(main())
