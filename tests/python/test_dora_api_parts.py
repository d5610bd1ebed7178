"""The pure parts of dora's API on Tensorbus: metadata, configuration, tensor descriptions."""

from __future__ import annotations

import datetime
import importlib
import os
import pathlib
import subprocess
import sys
import time
import uuid

import numpy as np
import pytest
import tensorbus
from tensorbus import _descriptor, _dora_metadata

pa = pytest.importorskip("pyarrow")

FOLDER = pathlib.Path(tensorbus.__file__).parent / "dora_api"
UTC = datetime.timezone.utc


@pytest.fixture(scope="module")
def api():
    """The packages of the folder, imported beside a real `dora` if there is one."""
    names = ("dora", "dora_tensor_pool")
    before = {name: at for name, at in sys.modules.items() if name.partition(".")[0] in names}
    for name in before:
        del sys.modules[name]
    sys.path.insert(0, str(FOLDER))
    try:
        found = {
            name: importlib.import_module(name)
            for name in (
                "dora",
                "dora._config",
                "dora._sample",
                "dora_tensor_pool",
            )
        }
        assert pathlib.Path(found["dora"].__file__).parent.parent.samefile(FOLDER)
        yield found
    finally:
        sys.path.remove(str(FOLDER))
        for name in [name for name in sys.modules if name.partition(".")[0] in names]:
            del sys.modules[name]
        sys.modules.update(before)


def test_metadata_travels_there_and_back():
    metadata = _dora_metadata
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    sent = {
        "z": True,
        "a": 1,
        "f": 1.5,
        "s": "x",
        "li": [1],
        "lf": [1.5, 2],
        "t": ("a",),
        "w": when,
    }
    got = metadata.decode(metadata.encode(sent), metadata.wall_clock(time.monotonic_ns()))
    assert abs((datetime.datetime.now(UTC) - got.pop("timestamp")).total_seconds()) < 1
    assert got == {
        "a": 1, "f": 1.5, "lf": [1.5, 2.0], "li": [1], "s": "x", "t": ["a"], "w": when, "z": True,
    }  # fmt: skip
    assert list(got) == sorted(got)


def test_a_naive_datetime_is_local_time():
    script = (
        "import datetime, tensorbus._dora_metadata as m;"
        "print(m.encode({'w': datetime.datetime(2026, 1, 2, 12)})['w'])"
    )
    env = os.environ | {"TZ": "Asia/Tokyo"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    noon_in_tokyo = datetime.datetime(2026, 1, 2, 3, tzinfo=UTC).timestamp()
    assert int(done.stdout) == noon_in_tokyo * 1e9, done.stderr


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ({"a": 2**63}, OverflowError),
        ({"a": [1, "b"]}, TypeError),
        ({1: 1}, RuntimeError),
        ([], TypeError),
    ],
)  # fmt: skip
def test_metadata_that_is_refused(metadata, error):
    with pytest.raises(error):
        _dora_metadata.encode(metadata)


def test_other_metadata_becomes_text_with_a_warning(caplog):
    assert _dora_metadata.encode({"d": {"a": 1}, "n": None}) == {
        "d": "{'a': 1}",
        "n": "None",
    }
    assert "unsupported metadata value type for key `d`" in caplog.text


def test_config_is_read_from_the_runner_s_text(api):
    config = api["dora._config"].Config(
        "tick=dora/timer/millis/20;queue=10;policy=drop_oldest;timeout_ns=0;restart=0\n"
        "image=camera/image;queue=3;policy=backpressure;timeout_ns=2500000000;restart=1",
        "boxes=viewer/boxes,log/boxes\nempty=",
    )
    assert config.as_dict() == {
        "inputs": {
            "tick": "dora/timer/millis/20",
            "image": {
                "source": "camera/image",
                "queue_size": 3,
                "queue_policy": "backpressure",
                "input_timeout": 2.5,
            },
        },
        "outputs": ["boxes", "empty"],
    }


def test_dataflow_id_is_a_uuid_that_begins_with_the_flow(api, monkeypatch):
    monkeypatch.setenv("TENSORBUS_FLOW", "1a9a64c2")
    assert str(uuid.UUID(api["dora._config"].flow_uuid())).startswith("1a9a64c2-")
    monkeypatch.setenv("TENSORBUS_FLOW", "default")
    assert uuid.UUID(api["dora._config"].flow_uuid()).int & 0xFFFFFFFF == 0


def test_sample_is_sent_once_and_not_while_looked_at(api):
    sent = []
    sample = api["dora._sample"].SampleHandler(bytearray(4), sent.append)
    view = sample.as_memoryview()
    view[:] = b"abcd"
    with pytest.raises(RuntimeError, match="still open"):
        sample.send()
    view.release()
    sample.send()
    assert sent == [b"abcd"]
    with pytest.raises(RuntimeError, match="already been sent"):
        sample.send()
    empty = api["dora._sample"].SampleHandler(bytearray(), sent.append)
    empty.send()
    assert sent[1] == b""


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint16", "float32", "float16", "bool"])
def test_tensor_info_there_and_back(api, dtype):
    pool = api["dora_tensor_pool"]
    array = np.arange(6).reshape(2, 3).astype(dtype)
    info = pool.get_tensor_info(array)
    assert info["size"] == array.nbytes and info["shape"] == [2, 3] and info["device"] == "cpu"
    back = np.asarray(pool.tensor_from_info(info))
    assert back.dtype == array.dtype and (back == array).all()
    assert back.ctypes.data == array.ctypes.data


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ptr": 0}, "null pointer"),
        ({"dtype": "quaternion"}, "Unsupported dtype: quaternion"),
        ({"shape": [-1]}, "negative dimension"),
        ({"shape": [7]}, "exceeds registered size 48 bytes"),
    ],
)
def test_tensor_info_that_cannot_be(api, change, text):
    pool = api["dora_tensor_pool"]
    array = np.arange(6)
    with pytest.raises(ValueError, match=text):
        pool.tensor_from_info({**pool.get_tensor_info(array), **change})


def test_tensors_that_are_no_block_of_memory(api):
    pool = api["dora_tensor_pool"]
    with pytest.raises(ValueError, match="not contiguous"):
        pool.get_tensor_info(np.arange(6).reshape(2, 3).T)
    with pytest.raises(TypeError, match="got list"):
        pool.get_tensor_info([1])


def test_what_is_not_there_says_what_to_do(api):
    dora = api["dora"]
    with pytest.raises(RuntimeError, match="tensorbus run --dora-api flow.yml"):
        dora.run("flow.yml")
    with pytest.raises(RuntimeError, match="tensorbus build flow.yml"):
        dora.build("flow.yml")
    with pytest.raises(AttributeError, match="ROS 2"):
        dora.Ros2Context
    with pytest.raises(RuntimeError, match="tensorbus run --dora-api FLOW"):
        dora.Node()
    assert dora.DoraStatus.STOP.value == 1


def test_descriptor_has_dora_s_layout():
    value = _descriptor.encode(
        "pool_a_1", dtype="torch.int64", shape=(2, 3), size=48, ours={"a": 1}
    )
    assert b'"size": {"Integer": 48}' in value and b'"shape": {"ListInt": [2, 3]}' in value
    found = _descriptor.decode(value)
    assert found["dtype"] == "torch.int64" and found["tensorbus"] == {"a": 1}
    # Of another library: the same without our field.
    assert _descriptor.decode(b'{"size": {"Integer": 3}}') == {"size": 3, "tensorbus": {}}


@pytest.mark.parametrize("value", [b"", b"[]", b"\xff", b'{"a": 1}', b'{"a": {}}', b'"x"'])
def test_what_is_no_descriptor(value):
    assert _descriptor.decode(value) is None
