"""Waits for STOP and records it; dora's API alone."""

from dora import Node
from record import Recorder, plain_event

node = Node()
recorder = Recorder("waits")
node.send_output("here", b"")
while True:
    event = node.next()
    if event is None or event["type"] != "INPUT":  # the first tick of dora's timers comes at once
        break
recorder.write(event=plain_event(event))
recorder.write(after=plain_event(node.next()))
