"""Fails when its neighbour is there, so that the flow stops; dora's API alone."""

from dora import Node

Node().next(timeout=10)
raise SystemExit("this node fails so that the flow stops")
