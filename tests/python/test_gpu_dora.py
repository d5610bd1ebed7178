"""dora's API with pools on a GPU, and the CUDA IPC helpers."""

from __future__ import annotations

import pathlib

import pytest
import tensorbus

import gpu_kit
from dora_support import Place, tool
from gpu_kit import needs_gpu

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

API = pathlib.Path(tensorbus.__file__).parent / "dora_api"

FLOW = """
nodes:
  - id: sender
    path: NODES/gpu_sender.py
    inputs: {answer: receiver/answer}
    outputs: [data]
  - id: receiver
    path: NODES/gpu_receiver.py
    inputs: {data: sender/data}
    outputs: [answer]
"""


@pytest.fixture
def place(tmp_path):
    here = Place(tmp_path)
    yield here
    here.check_left()


@needs_gpu
def test_pools_for_receivers_on_a_gpu(place):
    place.run(tool("tensorbus"), "run", "--dora-api", place.flow(FLOW), code=0,
              TESTS=str(gpu_kit.HERE), **gpu_kit.environment())
    info, short, device = place.records("sender")
    assert info == {"info": {"size": 96, "dtype": "float32", "shape": [4, 6], "device": "cuda"}}
    assert short["error"] == "RuntimeError" and "whole tensors only" in short["text"]
    assert device["error"] == "RuntimeError" and "`tpu`" in device["text"]
    # What is held does not change.
    assert place.records("receiver") == [
        {"index": 0, "device": "cuda", "shape": [4, 6], "first": [1.0]},
        {"index": 1, "device": "cuda", "shape": [4, 6], "first": [1.0, 101.0]},
        {"index": 2, "device": "cuda", "shape": [4, 6], "first": [1.0, 101.0, 201.0]},
        {"index": 3, "device": "cpu", "shape": [4, 6], "first": [101.0]},
    ]  # fmt: skip


HELPERS = f"""
sys.path.insert(0, {str(API)!r})
from dora_tensor_pool import cuda, get_tensor_info, tensor_from_info
"""


@needs_gpu
@pytest.mark.usefixtures("directory")
def test_ipc_handles_go_out_and_come_in():
    with gpu_kit.script(HELPERS, """
        gpu.begin()
        Memory(np.zeros(1000, "u1"))  # so that ours does not begin the allocation
        array = np.arange(24, dtype="f4").reshape(4, 6)
        buffer, metadata = cuda.torch_to_ipc_buffer(Interface(Memory(array)))
        assert str(buffer.type) == "int8" and len(buffer) == 64
        assert metadata == {"shape": [4, 6], "strides": [6, 1], "dtype": "float32", "size": 96,
                            "offset": 1024}
        say(bytes(cuda.ipc_buffer_to_ipc_handle(buffer, metadata)).hex())
        for tensor, kind, word in ((array, TypeError, "on cpu"),
                                   (Interface(Memory(array), strides=(4, 16)), ValueError,
                                    "contiguous")):
            try:
                cuda.torch_to_ipc_buffer(tensor)
                raise SystemExit("no error")
            except kind as error:
                assert word in str(error)
        hear()
        """) as producer, gpu_kit.script(HELPERS, """
        gpu.begin()
        handle = cuda.ipc_buffer_to_ipc_handle(bytes.fromhex(hear()))
        like = np.zeros((4, 6), "f4")
        with handle.open() as base:
            assert (gpu.get(base + 1024, like) == np.arange(24).reshape(4, 6)).all()
            address = base
        try:
            cuda.ipc_buffer_to_ipc_handle(b"short")
            raise SystemExit("no error")
        except ValueError as error:
            assert "64 bytes" in str(error)
        """) as consumer:
        consumer.tell(producer.hear())
        consumer.end()
        producer.tell()
        producer.end()


@needs_gpu
@pytest.mark.usefixtures("directory")
def test_a_gpus_info_becomes_a_tensor_of_a_library_for_gpus():
    gpu_kit.run(HELPERS, """
        class Array:  # as CuPy's, for this test
            def __init__(self, source):
                self.source = source
                self.part = self.seen = self.shape = None
            def __getitem__(self, part): self.part = part; return self
            def view(self, dtype): self.seen = dtype; return self
            def reshape(self, shape): self.shape = shape; return self
        import types
        gpu.begin()
        info = get_tensor_info(Interface(Memory(np.arange(24, dtype="f4").reshape(4, 6))))
        sys.modules["torch"] = None  # imports of it fail
        sys.modules["cupy"] = None
        try:
            tensor_from_info(info)
            raise SystemExit("no error")
        except ValueError as error:
            assert "CuPy" in str(error) and 'device="cpu"' in str(error)
        sys.modules["cupy"] = types.SimpleNamespace(asarray=Array)
        array = tensor_from_info(info)
        assert array.source.__cuda_array_interface__["data"][0] == info["ptr"]
        assert array.part == slice(None, 96) and array.seen == "f4" and array.shape == [4, 6]
        try:
            tensor_from_info(info | {"shape": [25]})
            raise SystemExit("no error")
        except ValueError as error:
            assert "exceeds registered size 96" in str(error)
        """)
