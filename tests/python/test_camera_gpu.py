"""The nodes in Python of examples/camera: the drawn scene before the nodes in C, the step on a GPU
(by PyTorch on the CPU where there is no GPU), and what is said where something is missing."""

import importlib.util
import pathlib
import re

import pytest
from dora_support import ROOT, Place, tool

import gpu_kit

CAMERA = ROOT / "examples" / "camera"
FRAMES = 40
HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")


@pytest.fixture
def place(tmp_path: pathlib.Path):
    here = Place(tmp_path)
    yield here
    here.check_left()


def run(place: Place, flow: str, code: int = 0, **env: str) -> str:
    programs = pathlib.Path(tool("tensorbus")).parents[1] / "examples" / "camera"
    if not (programs / "monitor").exists():
        pytest.skip("the examples in C are not built beside this `tensorbus`")
    text = (CAMERA / flow).read_text().replace("../../build/examples/camera", str(programs))
    text = re.sub(r"path: (?=\w+\.py)", f"path: {CAMERA}/", text)
    if flow == "flow.yml":
        text = re.sub(r"path: .*/camera\n", f"path: {CAMERA}/scene.py\n", text)
    env = {"SCENE_FRAMES": str(FRAMES), "SCENE_SIZE": "640x360", "CAMERA_RATE": "max"} | env
    report = place.folder / "report"
    report.mkdir(exist_ok=True)
    return place.run(
        tool("tensorbus"),
        "run",
        place.flow(text),
        code=code,
        CAMERA_REPORT=str(report),
        DEMO_PNG=str(place.folder / "demo.png"),
        **env,
    )


def check(place: Place, output: str) -> None:
    """Every frame came, none was copied, and discs were found in all of them."""
    report = dict(
        line.split() for line in (place.folder / "report/monitor.txt").read_text().splitlines()
    )
    assert (report["frames"], report["lost"], report["copies"]) == (str(FRAMES), "0", "0"), report
    assert FRAMES < int(report["boxes"]) < 6 * FRAMES, report
    assert (place.folder / "demo.png").read_bytes().startswith(b"\x89PNG"), output


def test_the_drawn_scene_takes_the_cameras_place(place):
    output = run(place, "flow.yml")
    check(place, output)
    assert f"{FRAMES} frames of a scene of 640x360" in output, output


@pytest.mark.parametrize("name, value, said", [
    ("SCENE_SIZE", "big", "use WIDTHxHEIGHT"), ("SCENE_FRAMES", "0", "use a number from 1"),
    ("VIDEO", "/nowhere/film.mp4", "OpenCV"),
])  # fmt: skip
def test_scenes_that_it_cannot_draw(place, name, value, said):
    output = run(place, "flow.yml", code=1, **{name: value})
    assert name in output and said in output and "Traceback" not in output, output


@needs_torch
def test_the_step_on_a_gpu(place):
    device = "cuda:0" if gpu_kit.REAL else "cpu"
    output = run(place, "gpu_scene.yml", CAMERA_DEVICE=device)
    check(place, output)
    assert f"{FRAMES} frames brought to {device}" in output, output
    assert f"{FRAMES} frames searched on {device}" in output, output


@pytest.mark.skipif(gpu_kit.REAL, reason="there is a GPU")
def test_what_is_missing_is_said(place):
    output = run(place, "gpu_scene.yml", code=1)
    assert (
        "this flow needs an NVIDIA GPU" if HAS_TORCH else "this flow needs PyTorch"
    ) in output, output
    assert "flow.yml looks for what moves with the CPU" in output and "Traceback" not in output, (
        output
    )


@needs_torch
@pytest.mark.parametrize("device", ["gpu", "meta", "cuda:x"])
def test_devices_that_are_none(place, device):
    output = run(place, "gpu_scene.yml", code=1, CAMERA_DEVICE=device)
    assert f"CAMERA_DEVICE is `{device}`: use cuda:0, cuda:1, ... or cpu" in output, output
