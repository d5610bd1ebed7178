"""`dora` for nodes that run under `tensorbus run --dora-api`.

`from dora import Node` gives a class with the methods, events, metadata and Arrow values that nodes
written for dora expect, served by Tensorbus' runner. Where it differs from dora, docs/dora.md says
so. The real package, if it is installed too, is not touched: this folder stands before it on the
path of such nodes only.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NoReturn

from ._node import Node

__all__ = ["DoraStatus", "Node", "build", "run", "start_runtime"]

__version__ = "1.1.0"  # of the interface that this answers to


class DoraStatus(Enum):
    """What an operator returns from `on_event`. There are no operators here: nodes only."""

    CONTINUE = 0
    STOP = 1
    STOP_ALL = 2


def _elsewhere(what: str, instead: str) -> NoReturn:
    raise RuntimeError(f"{what} is not part of dora's API on Tensorbus: {instead}")


def build(dataflow_path: str, *args: Any, **kwargs: Any) -> NoReturn:
    """Not here: RuntimeError that says what to call."""
    _elsewhere("dora.build", f"run `tensorbus build {dataflow_path}`")


def run(dataflow_path: str, *args: Any, **kwargs: Any) -> NoReturn:
    """Not here: RuntimeError that says what to call."""
    _elsewhere("dora.run", f"run `tensorbus run --dora-api {dataflow_path}`")


def start_runtime() -> NoReturn:
    """Not here: RuntimeError. Operators need dora's runtime."""
    _elsewhere("dora.start_runtime", "write the operator as a node, or run it under dora")


def __getattr__(name: str) -> Any:
    if name.startswith("Ros2"):
        raise AttributeError(
            f"dora.{name}: dora's API on Tensorbus has no ROS 2 bridge; run this node under dora"
        )
    raise AttributeError(f"module 'dora' (Tensorbus) has no attribute {name!r}")
