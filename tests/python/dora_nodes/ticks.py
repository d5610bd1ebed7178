"""Records three ticks of a timer; dora's API alone."""

from dora import Node
from record import Recorder, plain_event

node = Node()
recorder = Recorder("ticks")
for _ in range(3):
    recorder.write(event=plain_event(node.next(timeout=5)))
