"""Fails in its first life and tells of its second; dora's API alone."""

from dora import Node
from record import Recorder

node = Node()
Recorder("reborn" + str(node.restart_count())).write(is_restart=node.is_restart())
raise SystemExit(0 if node.is_restart() else 1)
