"""The pool example's flows with GPUs and nodes in Python: with a real GPU by PyTorch, else with
GPUs that the fake driver plays and what stands for PyTorch there (fake_torch). What is said where
something is missing."""

import importlib.util
import os
import pathlib
import re

import pytest
from dora_support import Place
from test_pool_examples import SCENARIOS, check_output, place, run  # noqa: F401 (place: a fixture)

import gpu_kit
from gpu_kit import needs_fake, needs_gpu, needs_two

HAS_TORCH = importlib.util.find_spec("torch") is not None
FRAMES = 5
pytestmark = [needs_gpu, pytest.mark.skipif(gpu_kit.REAL and not HAS_TORCH, reason="no PyTorch")]


def run_flow(
    place: Place, name: str, machine: str, torch: bool = True, code: int = 0, **settings: object
) -> str:
    env = gpu_kit.environment(machine)
    if not gpu_kit.REAL:
        env |= {"TESTS": str(gpu_kit.HERE), "FAKE_CUDA_LEAKS": str(place.folder / "leaks")}
        paths = [str(gpu_kit.HERE / "fake_torch")] if torch else []
        paths += [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
        env["PYTHONPATH"] = os.pathsep.join(paths)
    return run(place, name, {}, code=code, env=env, **settings)


def check(
    place: Place, name: str, machine: str, sides: tuple[str, str], **settings: object
) -> None:
    output = run_flow(place, name, machine, message_num=FRAMES, **settings)
    for who, side in zip(("Sender", "Receiver"), sides):
        where = f" on {side}" if side != "cpu" else ""
        line = rf"{who} preview: \[0, 1, 2, 3, 4, \.\.\.\]"
        output, count = re.subn(rf"({line}){where}$", r"\1", output, flags=re.M)
        assert count == 1, (who, side, output)
    check_output(output, FRAMES, [])


@pytest.mark.parametrize("name, sides", [
    ("cpu2cuda", ("cpu", "cuda:0")), ("cuda2cpu", ("cuda:0", "cpu")),
    ("cuda_inner", ("cuda:0", "cuda:0")),
])  # fmt: skip
def test_with_one_gpu(place, name, sides):  # noqa: F811
    check(place, name, "devices=1", sides)


@needs_two
@pytest.mark.parametrize("machine", ["devices=2;peer=0-1", "devices=2"])
@pytest.mark.parametrize("sides", [("cuda:0", "cuda:1"), ("cuda:1", "cuda:0")])
def test_with_two_gpus(place, machine, sides):  # noqa: F811
    check(place, "cuda2cuda", machine, sides, sender_device=sides[0], receiver_device=sides[1])


@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - {"cpu2cpu"}))
def test_misuse_is_answered_as_in_main_memory(place, name):  # noqa: F811
    frames, wanted = SCENARIOS[name]
    output = run_flow(
        place, "cuda_inner", "devices=1", message_num=frames, memory_pool_scenario=name
    )
    check_output(output.replace(" on cuda:0", ""), frames, wanted)


@needs_fake
@pytest.mark.parametrize("name, machine, said", [
    ("cuda2cuda", "devices=1", "this flow needs two GPUs; python_cuda_inner.yml needs one"),
    ("cuda_inner", "devices=0", "this flow needs an NVIDIA GPU, its driver and a PyTorch for CUDA"),
    ("cpu2cuda", "devices=1;empty=1", "this flow needs an NVIDIA GPU, its driver"),
])  # fmt: skip
def test_what_is_missing_is_said(place, name, machine, said):  # noqa: F811
    output = run_flow(place, name, machine, code=1)
    assert said in output and "Traceback" not in output and "preview" not in output, output


@needs_fake
def test_another_gpu_than_there_is(place):  # noqa: F811
    output = run_flow(place, "cuda_inner", "devices=2", code=1, receiver_device="cuda:7")
    assert "this flow needs that GPU; PyTorch sees 2, from cuda:0 on" in output, output


@needs_fake
@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is installed")
def test_without_pytorch(place):  # noqa: F811
    output = run_flow(place, "cuda_inner", "devices=1", torch=False, code=1)
    assert "this flow needs PyTorch (pip install torch)" in output, output
    assert "Traceback" not in output and "preview" not in output
    assert pathlib.Path(place.folder / "leaks").exists() is False
