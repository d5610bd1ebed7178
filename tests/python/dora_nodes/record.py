"""Events and exceptions as plain JSON that does not depend on the run; written for dora alone."""

import datetime
import json
import os

import pyarrow as pa


class Recorder:
    """Writes one JSON object per line into the file that RECORD names, extended by the node."""

    def __init__(self, name: str) -> None:
        self._file = open(os.path.join(os.environ["RECORD"], name + ".jsonl"), "w")

    def write(self, **fields) -> None:
        """Write one line; values that JSON lacks are written as repr."""
        self._file.write(json.dumps(fields, sort_keys=True, default=repr) + "\n")
        self._file.flush()

    def call(self, label: str, function) -> None:
        """Write what a call returns or raises; of an error the first line."""
        try:
            result = function()
        except Exception as error:
            self.write(call=label, error=type(error).__name__, text=str(error).split("\n")[0])
            return
        self.write(call=label, result=result)


def plain_event(event) -> dict | None:
    """An event without what differs from run to run: the timestamp is checked, then left out."""
    if event is None:
        return None
    out = {key: event[key] for key in sorted(event) if key not in ("value", "metadata", "error")}
    assert type(event) is dict
    if "error" in event:
        out["error"] = event["error"].split("\n")[0]
    if "value" in event:
        value = event["value"]
        assert isinstance(value, pa.Array), type(value)
        value.validate(full=True)
        numbers = len(value) > 1000
        out["value"] = {
            "type": str(value.type),
            "class": type(value).__name__,
            "length": len(value),
            "nulls": value.null_count,
            "items": repr(value[:: len(value) // 7].to_pylist() if numbers else value.to_pylist()),
        }
    if "metadata" in event:
        metadata = dict(event["metadata"])
        stamp = metadata.get("timestamp")
        if isinstance(stamp, datetime.datetime):
            now = datetime.datetime.now(datetime.timezone.utc)
            assert stamp.tzinfo is datetime.timezone.utc, stamp.tzinfo
            assert abs((now - stamp).total_seconds()) < 60, (now, stamp)
            del metadata["timestamp"]
            out["keys"] = list(metadata)  # in their order
            assert next(iter(event["metadata"])) == "timestamp"
        out["metadata"] = {key: repr(value) for key, value in metadata.items()}
    return out
