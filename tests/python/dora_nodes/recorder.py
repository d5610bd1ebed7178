"""Records every event and answers each input; dora's API alone."""

from dora import Node
from record import Recorder, plain_event


def main() -> None:
    node = Node()
    recorder = Recorder("recorder")
    recorder.write(config=node.node_config())
    node.send_output("heard", b"")
    for event in node:
        plain = plain_event(event)
        # An id of a request is made up by the sender.
        if "request_id" in plain.get("metadata", {}) and "label" in plain["metadata"]:
            assert len(plain["metadata"].pop("request_id")) == 38
        recorder.write(event=plain)
        if event["type"] == "INPUT":
            node.send_output("heard", event["value"][:0])
    recorder.write(
        after=[
            plain_event(node.next()),
            plain_event(node.try_recv()),
            plain_event(node.next(timeout=0.05)),
            node.is_empty(),
        ]
    )
    recorder.call("drain", node.drain)


if __name__ == "__main__":
    main()
