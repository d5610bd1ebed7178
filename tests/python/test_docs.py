"""The code of the pages about Python is run as it stands there, and prints what stands there.

Blocks by what follows their language:
    ```python             run in one process for the page, one after the other. Each print() ends
                          with a comment of what it prints; `...` in it stands for anything.
    ```python torch       the same, where the module can be imported.
    ```python crash       after the blocks before it, in a process of its own, which SIGSEGV ends.
    ```python camera.py   written to a file.
    ```yaml flow.yml      the same.
    ```sh                 run in the folder with these files; with `sh pyarrow` where that can be
                          imported.
    ```text               what the `sh` or `crash` block before it prints: lines in any order
                          between others for `tensorbus run`, exactly this otherwise.
Blocks without a language are not run: installing, and commands with files of the reader's.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest
from dora_support import Place, tool

import kit
import tensorbus as tb

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ["README.md", "docs/python.md", "docs/python-pitfalls.md", "docs/coming-from-dora.md"]
MODULES = {"torch", "jax", "cupy", "pyarrow"}

# Runs blocks one after the other; a line of JSON says what each printed.
SESSION = """
import contextlib, importlib.util, io, json, os, sys, traceback
blocks = json.load(sys.stdin)
names = {"__name__": "__main__"}
for block in blocks:
    if block["module"] and importlib.util.find_spec(block["module"]) is None:
        print(json.dumps(None), flush=True)
        continue
    code = compile("\\n" * (block["line"] - 1) + block["text"], block["page"], "exec")
    if block["crash"]:
        exec(code, names)
        sys.exit("it did not crash")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, names)
    print(json.dumps(said.getvalue()), flush=True)
"""


@dataclasses.dataclass
class Block:
    page: str
    line: int  # of its first line of code
    language: str
    words: list[str]
    text: str

    @property
    def file(self) -> str | None:
        return next((word for word in self.words if "." in word), None)

    @property
    def module(self) -> str | None:
        return next((word for word in self.words if word in MODULES), None)

    @property
    def crash(self) -> bool:
        return "crash" in self.words

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    def for_session(self) -> dict[str, object]:
        return {"page": self.page, "line": self.line, "text": self.text, "module": self.module,
                "crash": self.crash}  # fmt: skip


def blocks_of(page: str) -> list[Block]:
    found: list[Block] = []
    opened: Block | None = None
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        fence = re.fullmatch(r"\s*```(.*)", line)
        if opened is not None:
            if fence:
                found.append(opened)
                opened = None
            else:
                opened.text += line + "\n"
        elif fence:
            language, *words = fence[1].split() or [""]
            opened = Block(page, number + 1, language, words, "")
    assert opened is None, f"{page}: a block has no end"
    return found


def promised(block: Block) -> list[str]:
    """What the comments behind print() say that it prints."""
    lines = block.text.splitlines()
    found = []
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
            said = re.search(r"\)  # (.+)$", lines[node.end_lineno - 1])
            assert said, f"{block.page}:{block.line + node.end_lineno - 1}: what does it print?"
            found.append((node.lineno, said[1]))
    return [text for _, text in sorted(found)]


def fits(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("..."))), text) is not None


def session(blocks: list[Block], status: int = 0) -> tuple[list[str | None], str]:
    """Run blocks in one process; what each printed (None: its module is missing), and stderr."""
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        input=json.dumps([block.for_session() for block in blocks]),
        capture_output=True, text=True, timeout=120,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def pages_with(which: Callable[[Block], bool]) -> list[str]:
    return [page for page in PAGES if any(map(which, blocks_of(page)))]


def session_blocks(blocks: list[Block]) -> list[Block]:
    return [b for b in blocks if b.language == "python" and b.file is None and not b.crash]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_known_kind(page: str) -> None:
    blocks = blocks_of(page)
    for block in blocks:
        known = {"": 0, "c": 0, "sh": 1, "text": 0, "yaml": 1, "python": 2}
        assert len(block.words) <= known.get(block.language, -1), block.where
        for word in block.words:
            assert "." in word or word in MODULES | {"crash"}, f"{block.where}: {word}"
        for line in block.text.splitlines():
            assert len(line) <= 118, f"{block.where}: {line}"
    assert any(block.language == "python" for block in blocks)


@pytest.mark.parametrize("page", pages_with(lambda block: session_blocks([block]) != []))
def test_snippets_print_what_they_say(page: str, directory: object) -> None:
    blocks = session_blocks(blocks_of(page))
    said, _ = session(blocks)
    assert len(said) == len(blocks)
    for block, text in zip(blocks, said):
        if text is None:
            continue
        lines, expected = text.splitlines(), promised(block)
        assert len(lines) == len(expected), f"{block.where}: it printed {lines}"
        for line, pattern in zip(lines, expected):
            assert fits(pattern, line), f"{block.where}: it printed\n{line}\nand not\n{pattern}"


@pytest.mark.parametrize("page", pages_with(lambda block: block.crash))
def test_snippets_that_crash_say_why(page: str, directory: object) -> None:
    blocks = blocks_of(page)
    crashes = [number for number, block in enumerate(blocks) if block.crash]
    for number in crashes:
        block, after = blocks[number], blocks[number + 1]
        assert after.language == "text", f"{after.where}: what is printed?"
        before = [b for b in session_blocks(blocks[:number]) if b.module in (None, block.module)]
        if block.module:
            module = dataclasses.replace(block, text="", words=[block.module])
            if session([module])[0] == [None]:
                continue
        _, err = session([*before, block], status=-11)
        kit.killed.append(0)
        assert " ".join(after.text.split()) in " ".join(err.split()), f"{block.where}:\n{err}"


@pytest.mark.parametrize("page", pages_with(lambda block: block.language == "sh"))
def test_files_and_commands(page: str, tmp_path: pathlib.Path) -> None:
    blocks = blocks_of(page)
    place = Place(tmp_path)
    for number, block in enumerate(blocks):
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text)
        missing = block.module and importlib.util.find_spec(block.module) is None
        if block.language != "sh" or missing:
            continue
        out = place.run("bash", "-c", block.text).splitlines()
        after = blocks[number + 1]
        assert after.language == "text", f"{after.where}: what does the command print?"
        expected = after.text.splitlines()
        if "tensorbus run" in block.text:
            out = [line for line in out if line in expected]
        assert out == expected, f"{block.where}: it printed {out}"
    place.run(tool("tensorbus"), "clean")  # workers that multiprocessing ended
    left = [path for path in place.bus.rglob("*") if not path.is_dir() and path.name != ".lock"]
    assert left == []
    shutil.rmtree(place.bus)
    place.bus.mkdir()
    place.check_left()


def words_of(page: str) -> str:
    """What stands between backticks, and the blocks of code."""
    text = (ROOT / page).read_text()
    return "\n".join(re.findall(r"```python.*?```|`[^`\n]+`", text, re.S))


@pytest.mark.parametrize("page", PAGES)
def test_names_exist(page: str) -> None:
    text = words_of(page)
    for path in sorted(set(re.findall(r"\btb((?:\.[A-Za-z_]\w*)+)", text))):
        thing: object = tb
        for name in path[1:].split("."):
            assert hasattr(thing, name), f"{page}: tb{path}"
            thing = getattr(thing, name)
    kinds = {"pool": tb.Pool, "reader": tb.Reader, "frame": tb.Frame,
             "loan": tb.Loan, "event": tb.Event}  # fmt: skip
    used = re.findall(r"\b(pool|reader|frame|loan|event)\.([a-z_]\w*)", text)
    for kind, name in sorted(set(used)):
        known = hasattr(kinds[kind], name) or (page, kind, name) in OF_OTHERS
        assert known, f"{page}: {kind}.{name}"


# tensorbus.dora's pools have an id.
OF_OTHERS = {("docs/coming-from-dora.md", "pool", "id")}


def test_every_error_is_explained() -> None:
    text = (ROOT / "docs/python.md").read_text()
    for name in tb.__all__:
        if name.endswith("Error") and name != "Error":
            assert f"`{name}`" in text, name


def test_the_calls_of_doras_node_are_ours(tmp_path: pathlib.Path) -> None:
    """Each method that the map says is the same is there under --dora-api."""
    if importlib.util.find_spec("pyarrow") is None:  # importing it would start a thread
        pytest.skip("pyarrow is not installed")
    text = (ROOT / "docs/coming-from-dora.md").read_text()
    rows = [row.split("|") for row in text.splitlines() if row.startswith("| ")]
    names = {
        name
        for row in rows if "the same" in row[2]
        for name in re.findall(r"\bnode\.([a-z_]+)\(", row[1])
    }  # fmt: skip
    assert len(names) >= 13
    (tmp_path / "node.py").write_text(
        f"from dora import Node\nprint([n for n in {sorted(names)} if not hasattr(Node, n)])\n"
    )
    (tmp_path / "flow.yml").write_text("nodes: [{id: node, path: node.py}]\n")
    place = Place(tmp_path)
    said = place.run(tool("tensorbus"), "run", "--dora-api", "flow.yml")
    assert "node | []" in said.splitlines()
    place.check_left()
