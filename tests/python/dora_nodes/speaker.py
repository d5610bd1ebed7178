"""Sends every case, one at a time, and records what its own calls return; dora's API alone."""

import asyncio

import cases
from dora import Node
from record import Recorder, plain_event


def main() -> None:
    node = Node()
    recorder = Recorder("speaker")
    recorder.write(config=node.node_config(), restart=[node.is_restart(), node.restart_count()])
    nodes = node.dataflow_descriptor()["nodes"]
    recorder.write(nodes=[{key: at[key] for key in ("id", "inputs", "outputs")} for at in nodes])
    recorder.write(dataflow_id=[type(node.dataflow_id()).__name__, len(node.dataflow_id())])
    recorder.write(timestamp=str(node.timestamp().tzinfo))
    recorder.write(first=plain_event(node.next()))  # the recorder is there

    def send(label: str, data, metadata=None) -> None:
        arguments = (data,) if metadata is None else (data, metadata)
        recorder.call(label, lambda: node.send_output("data", *arguments))
        # Answered one by one: how fast the other reads does not matter.
        event = node.next(timeout=10)
        assert event["type"] == "INPUT", event

    for label, value in cases.values().items():
        send(label, value, {"label": label})
    for label, metadata in cases.metadata().items():
        send(label, b"x", metadata)
    for label, value in cases.bad_values().items():
        recorder.call(label, lambda value=value: node.send_output("data", value))
    for label, metadata in cases.bad_metadata().items():
        recorder.call(label, lambda data=metadata: node.send_output("data", b"x", data))
    recorder.call("no such output", lambda: node.send_output("nope", b"x"))
    raw(node, recorder)
    services(node, recorder)
    empty_handed(node, recorder)
    send("last", b"bye")


def raw(node: Node, recorder: Recorder) -> None:
    """`send_output_raw`, with and without its context manager."""
    import numpy as np

    with node.send_output_raw("data", 6, {"label": "raw"}) as buffer:
        array = np.frombuffer(buffer, np.uint8)
        array[:] = 7
        del array
    node.next(timeout=10)
    sample = node.send_output_raw("data", 3)
    view = sample.as_memoryview()
    recorder.write(view=[view.format, view.shape, view.readonly])
    view[:] = b"abc"
    recorder.call("send with a view", sample.send)
    view.release()
    recorder.call("send", sample.send)
    node.next(timeout=10)
    recorder.call("send twice", sample.send)

    def leave_view() -> None:
        with node.send_output_raw("data", 3) as buffer:
            leave_view.array = np.frombuffer(buffer, np.uint8)

    def raises() -> None:
        with node.send_output_raw("data", 3):
            raise ValueError("not sent")

    recorder.call("view left", leave_view)
    recorder.call("raises inside", raises)
    recorder.call("no such output, raw", lambda: node.send_output_raw("nope", 3))
    recorder.call("negative", lambda: node.send_output_raw("data", -1))


def services(node: Node, recorder: Recorder) -> None:
    """Requests and responses are messages with an id in their metadata."""
    request = node.send_service_request("data", b"question", {"label": "request"})
    recorder.write(request=[type(request).__name__, len(request)])
    node.next(timeout=10)
    recorder.call(
        "response", lambda: node.send_service_response("data", b"answer", {"request_id": "abc"})
    )
    node.next(timeout=10)


def empty_handed(node: Node, recorder: Recorder) -> None:
    """Every way to take an event when there is none."""
    recorder.write(timeout=plain_event(node.next(timeout=0.05)))
    recorder.write(poll=plain_event(node.next(timeout=0)))
    recorder.call("negative timeout", lambda: node.next(timeout=-1.0))
    recorder.call("try_recv", node.try_recv)
    recorder.call("drain", node.drain)
    recorder.call("is_empty", node.is_empty)

    async def wait():
        return plain_event(await node.recv_async(timeout=0.05))

    recorder.write(recv_async=asyncio.run(wait()))
    for level in ("error", "warn", "info", "debug", "trace", "nonsense"):
        recorder.call(
            "log " + level, lambda level=level: node.log(level, "words", "target", {"key": "value"})
        )
    recorder.call("log_info", lambda: node.log_info("words"))
    recorder.call("merge", lambda: node.merge_external_events(None))


if __name__ == "__main__":
    main()
