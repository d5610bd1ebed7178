"""Every kind of value and metadata that a dora node can send, and some that it cannot.

Used by speaker.py and, through what that node sends, by recorder.py; written for dora's API alone.
"""

import datetime

import numpy as np
import pyarrow as pa


def values() -> dict:
    """Label to value: what `send_output` takes, of every layout that Arrow has in common use."""
    numbers = np.arange(12, dtype=np.int64)
    return {
        "bytes": b"hello",
        "no bytes": b"",
        "zero byte": b"\0",
        "int64": pa.array([1, 2, 3]),
        "uint8": pa.array([1, 2, 255], pa.uint8()),
        "int8": pa.array([-1, 2, 3], pa.int8()),
        "uint16": pa.array([1, 2, 3], pa.uint16()),
        "float32": pa.array(np.arange(4, dtype=np.float32)),
        "float64": pa.array([0.5, float("inf"), -0.0]),
        "float16": pa.array(np.arange(4, dtype=np.float16)),
        "bool": pa.array([True, False, True]),
        "string": pa.array(["a", "bc", ""]),
        "string, not ASCII": pa.array(["\u00e9\u4e2d\U0001f600"]),
        "large string": pa.array(["a", "bc"], pa.large_string()),
        "binary": pa.array([b"ab", b""]),
        "fixed binary": pa.array([b"x" * 48], pa.binary(48)),
        "null": pa.nulls(2),
        "empty": pa.array([]),
        "empty int64": pa.array([], pa.int64()),
        "with nulls": pa.array([1, None, 3]),
        "strings with nulls": pa.array(["a", None]),
        "struct": pa.array([{"a": 1, "b": "x"}, {"a": 2, "b": None}]),
        "list": pa.array([[1, 2], [], None, [3]]),
        "fixed list": pa.FixedSizeListArray.from_arrays(pa.array(range(6)), 3),
        "list of struct": pa.array([[{"box": [1.0, 2.0], "name": "cat"}]]),
        "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
        "timestamp": pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5, 6)]),
        "date": pa.array([datetime.date(2026, 1, 2)]),
        "slice": pa.array([1, 2, 3, 4])[1:3],
        "slice of strings": pa.array(["a", "bc", "def"])[1:],
        "slice of bools": pa.array([True, False, True, True])[1:],
        "slice with nulls": pa.array([None, 1, None, 3])[1:],
        "numpy view": pa.array(numbers[2:7]),
        "record batch": pa.record_batch({"a": [1, 2], "b": ["x", "y"]}),
        "fixed shape tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(
            np.arange(6).reshape(1, 2, 3)
        ),
        "40 kB": pa.array(np.arange(5000, dtype=np.int64)),
        "1 MB": pa.array(np.arange(250_000, dtype=np.float32)),
        "strings, 100 kB": pa.array([f"word {i}" for i in range(10_000)]),
    }


def bad_values() -> dict:
    """Label to what `send_output` refuses."""
    return {
        "bytearray": bytearray(b"hello"),
        "memoryview": memoryview(b"hello"),
        "str": "hello",
        "int": 5,
        "None": None,
        "list": [1, 2],
        "numpy": np.arange(3),
        "chunked": pa.chunked_array([[1], [2]]),
    }


def metadata() -> dict:
    """Label to metadata that arrives, as itself or as text."""
    noon = datetime.datetime(2026, 1, 2, 12, 0, 0, 678_900, tzinfo=datetime.timezone.utc)
    return {
        "none given": None,
        "empty": {},
        "scalars": {"b": True, "i": -5, "f": 2.5, "s": "text", "e": "", "u": "\u00e9"},
        "lists": {"i": [1, 2], "f": [1.5, 2.5], "s": ["a", "b"]},
        "empty list": {"list": []},
        "floats and ints": {"list": [1.5, 2]},
        "tuple": {"list": (1, 2)},
        "int limits": {"low": -(2**63), "high": 2**63 - 1},
        "infinity": {"f": float("inf")},
        "datetime": {"when": noon},
        "naive datetime": {"when": noon.replace(tzinfo=None)},
        "order": {"z": 1, "a": 2, "m": 3},
        "dict": {"d": {"a": 1}},
        "None": {"d": None},
        "bytes": {"d": b"ab"},
        "bools": {"d": [True, False]},
        "numpy scalar": {"d": np.int32(4), "f": np.float32(1.5)},
        "nested": {"d": [[1]]},
        "list of None": {"d": [None]},
        "trace": {"open_telemetry_context": "7632e76"},
        "own timestamp": {"timestamp": 5},
    }


def bad_metadata() -> dict:
    """Label to metadata that is refused."""
    return {
        "int and str": {"d": [1, "a"]},
        "int and float": {"d": [1, 2.5]},
        "too large": {"d": 2**63},
        "key no str": {5: 1},
        "no dict": "text",
    }
