"""What the runner tells a node about itself and its flow, in dora's words."""

from __future__ import annotations

import os
from typing import Any

_QUEUE_DEFAULT = "10"


class Config:
    """Inputs and outputs of this node; see src/node/env.h for the text it is read from."""

    def __init__(self, inputs: str, outputs: str) -> None:
        self.inputs: dict[str, str | dict[str, Any]] = {}
        for line in filter(None, inputs.split("\n")):
            name, _, rest = line.partition("=")
            source, *options = rest.split(";")
            self.inputs[name] = _source(source, dict(option.split("=", 1) for option in options))
        self.outputs = [line.partition("=")[0] for line in outputs.split("\n") if line]

    def as_dict(self) -> dict[str, Any]:
        """As `Node.node_config()` returns it; a new one each time."""
        inputs = {
            name: dict(source) if isinstance(source, dict) else source
            for name, source in self.inputs.items()
        }
        return {"inputs": inputs, "outputs": list(self.outputs)}


def _source(source: str, options: dict[str, str]) -> str | dict[str, Any]:
    """Short form, or long form with what is not the default."""
    long: dict[str, Any] = {"source": source}
    if options.get("queue", _QUEUE_DEFAULT) != _QUEUE_DEFAULT:
        long["queue_size"] = int(options["queue"])
    if options.get("policy", "drop_oldest") != "drop_oldest":
        long["queue_policy"] = options["policy"]
    if options.get("timeout_ns", "0") != "0":
        long["input_timeout"] = int(options["timeout_ns"]) / 1e9
    return long if len(long) > 1 else source


def read() -> Config:
    """This node's configuration, from the environment."""
    return Config(os.environ.get("TENSORBUS_INPUTS", ""), os.environ.get("TENSORBUS_OUTPUTS", ""))


def flow_uuid() -> str:
    """The runner's flow id (eight hex digits) as a UUID that begins with it."""
    flow = os.environ.get("TENSORBUS_FLOW", "")
    digits = flow if len(flow) == 8 and all(c in "0123456789abcdef" for c in flow) else "0" * 8
    return f"{digits}-0000-8000-8000-000000000000"


def descriptor() -> dict[str, Any]:
    """The flow's nodes: the whole file where the runner names it and PyYAML is there to read it,
    else this node and its neighbours as far as they are known."""
    path = os.environ.get("TENSORBUS_FLOW_FILE")
    if path:
        try:
            import yaml

            with open(path) as file:
                found: dict[str, Any] = yaml.safe_load(file)
                return found
        except ImportError:
            pass
    config = read().as_dict()
    return {"nodes": [{"id": os.environ.get("TENSORBUS_NODE", ""), **config}]}
