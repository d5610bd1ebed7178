"""Python nodes under `tensorbus run`: pipelines, STOP, Ctrl-C, exceptions, kills and restarts."""

import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import textwrap
import time

import pytest
from dora_support import Place, tool

HEAD = """
import os, signal, sys, time
import numpy as np
import tensorbus as tb

def say(*words):
    print("SAID", *words)
"""


class Flow(Place):
    """A flow of Python nodes: {id: (program, further YAML lines)}."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        self.process: subprocess.Popen[str] | None = None

    def write(self, nodes: dict[str, tuple[str, str]], head: str = "") -> pathlib.Path:
        text = head + "nodes:\n"
        for name, (program, more) in nodes.items():
            path = self.folder / f"{name}.py"
            path.write_text(HEAD + textwrap.dedent(program))
            text += (
                f"  - id: {name}\n    path: {path}\n" + textwrap.indent(more.strip(), "    ") + "\n"
            )
        return super().flow(text)

    def go(self, nodes: dict[str, tuple[str, str]], code: int = 0, head: str = "") -> str:
        """Run it to its end."""
        return self.run(tool("tensorbus"), "run", self.write(nodes, head), code=code)

    def start(self, nodes: dict[str, tuple[str, str]], head: str = "") -> None:
        self.process = subprocess.Popen(
            [tool("tensorbus"), "run", self.write(nodes, head)], cwd=self.folder, env=self.env(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self.seen: list[str] = []

    def until(self, pattern: str) -> re.Match[str]:
        """Read what it prints up to a line."""
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            self.seen.append(line)
            if found := re.search(pattern, line):
                return found
        pytest.fail(f"`{pattern}` did not come\n{''.join(self.seen)}")

    def end(self, code: int, timeout: float = 30) -> str:
        assert self.process is not None
        rest, _ = self.process.communicate(timeout=timeout)
        output = "".join(self.seen) + rest
        assert self.process.returncode == code, output
        return output

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            subprocess.run([tool("tensorbus"), "clean"], env=self.env(), check=False)


@pytest.fixture
def flow(tmp_path):
    here = Flow(tmp_path)
    yield here
    here.close()
    here.check_left()


def said(output: str, node: str) -> list[str]:
    """What a node has said."""
    return re.findall(rf"(?m)^{node} +\| SAID (.*)$", output)


def clean(output: str) -> None:
    """No word of trouble."""
    assert not re.search("Traceback|rror|warning|Fatal|Exception", output), output


SOURCE = (
    """
    VALUES = [None, b"bytes", "text", np.arange(12).reshape(3, 4).T, np.arange(200_000.0)]
    with tb.Node() as node:
        pool = tb.Pool.register(tb.Spec((1000, 100), "uint16"), name="frames")
        for n, value in enumerate(VALUES):
            node.send_output("out", value, {"n": n, "list": [n, n + 1]})
        with pool.loan() as image:
            image[:] = 7
        node.send_output("out", pool.last, {"n": len(VALUES), "list": []})
        for event in node:  # until the others have ended: the pool goes with this process
            pass
    """,
    "outputs: [out]\ninputs: {end: sink/end}",
)
MIDDLE = (
    """
    with tb.Node() as node:
        for event in node:
            if event.type == "INPUT":
                node.send_output("out", event.value, event.metadata)
    """,
    "outputs: [out]\ninputs:\n  in: {source: source/out, queue_policy: backpressure}",
)
SINK = (
    """
    with tb.Node() as node:
        for event in node:
            if event.type != "INPUT":
                say(event.type, event.id)
                continue
            value = event.value
            shown = value if value is None or isinstance(value, str) else (
                bytes(value) if getattr(value, "kind", "") == "bytes" else value.numpy())
            if isinstance(shown, np.ndarray):
                shown = (shown.dtype.name, shown.shape, float(shown.sum()),
                         shown.ravel()[-1].item())
            say(event.metadata["n"], event.metadata["list"], type(value).__name__, shown)
            if event.metadata["n"] == 5:
                break
    """,
    "outputs: [end]\ninputs:\n  in: {source: middle/out, queue_policy: backpressure}",
)


def test_every_kind_of_value_through_three_nodes(flow):
    output = flow.go({"source": SOURCE, "middle": MIDDLE, "sink": SINK})
    assert said(output, "sink") == [
        "0 [0, 1] NoneType None",
        "1 [1, 2] Value b'bytes'",
        "2 [2, 3] str text",
        "3 [3, 4] Value ('int64', (4, 3), 66.0, 11)",
        "4 [4, 5] Value ('float64', (200000,), 19999900000.0, 199999.0)",
        "5 [] Frame ('uint16', (1000, 100), 700000.0, 7)",
    ]
    clean(output)


@pytest.mark.skipif(not importlib.util.find_spec("pyarrow"), reason="pyarrow is not installed")
def test_arrow_through_three_nodes(flow):
    source = (
        """
        import pyarrow as pa
        with tb.Node() as node:
            for array in (pa.array(range(100_000)), pa.array(["a", None]),
                          pa.array([{"x": [1]}] * 9000)):
                node.send_output("out", array, {"n": 0, "list": []})
        """,
        "outputs: [out]",
    )
    sink = (
        """
        import pyarrow as pa
        with tb.Node() as node:
            for event in node:
                if event.type == "INPUT":
                    array = event.arrow()
                    array.validate(full=True)
                    say(array.type, len(array), array.null_count, array[-1].as_py())
        """,
        "inputs:\n  in: {source: middle/out, queue_policy: backpressure}",
    )
    output = flow.go({"source": source, "middle": MIDDLE, "sink": sink})
    assert said(output, "sink") == [
        "int64 100000 0 99999", "string 2 1 None",
        "struct<x: list<item: int64>> 9000 0 {'x': [1]}",
    ]  # fmt: skip
    clean(output)


def test_frames_in_flight_without_turns(flow):
    """A sender that fills slots in place while the receiver holds earlier ones."""
    source = (
        """
        with tb.Node() as node:
            pool = tb.Pool.register(tb.Spec(100_000, "int32"), name="frames", slots=8)
            for n in range(300):
                with pool.loan(timeout=20) as image:
                    image[:] = n
                node.send_output("out", pool.last, {"n": n}, timeout=20)
            del image
            say(pool.stats().copies, pool.stats().drops)
            for event in node:
                pass
        """,
        "outputs: [out]\ninputs: {end: sink/end}",
    )
    sink = (
        """
        from collections import deque
        with tb.Node() as node:
            held, done = deque(), 0
            for event in node:
                if event.type == "INPUT":
                    held.append((event.metadata["n"], event.frame.hold()))
                if len(held) > 3:
                    n, frame = held.popleft()
                    assert (frame.numpy() == n).all() and n == done
                    frame.release()
                    done += 1
                if event.type == "INPUT" and event.metadata["n"] == 299:
                    break
            say(done, [n for n, frame in held if (frame.numpy() == n).all()])
        """,
        "outputs: [end]\ninputs:\n"
        "  in: {source: source/out, queue_size: 3, queue_policy: backpressure}",
    )
    output = flow.go({"source": source, "sink": sink})
    assert said(output, "source") == ["0 0"] and said(output, "sink") == ["297 [297, 298, 299]"]
    clean(output)


# ---- the end

WAITERS = {
    "loop": ("""
        node = tb.Node()
        say("waits")
        for event in node:
            say(event.type, repr(event.id))
        say("over")
        """, "inputs: {tick: tensorbus/timer/secs/3600}"),
    "next": ("""
        node = tb.Node()
        say("waits")
        say(node.next().type)
        try:
            node.next()
        except tb.ClosedError as error:
            say("closed")
        """, "inputs: {tick: tensorbus/timer/secs/3600}"),
    "tasks": ("""
        import asyncio
        async def main():
            node = tb.Node()
            say("waits")
            async for event in node:
                say(event.type, repr(event.id))
            say("over")
        asyncio.run(main())
        """, "inputs: {tick: tensorbus/timer/secs/3600}"),
    "thread": ("""
        import threading
        node = tb.Node()
        thread = threading.Thread(target=lambda: [say(event.type) for event in node])
        thread.start()
        say("waits")
        thread.join()
        """, "inputs: {tick: tensorbus/timer/secs/3600}"),
    "sender": ("""
        node = tb.Node()
        say("waits")
        while (event := node.next(0)) is None:
            node.send_output("out", b"x")
        say(event.type)
        """, "outputs: [out]"),
    "lazy": ("""
        node = tb.Node()
        time.sleep(0.3)
        while node.next().type != "STOP":
            time.sleep(0.3)
        say("STOP")
        """, "inputs:\n  in: {source: sender/out, queue_size: 1, queue_policy: backpressure}"),
}  # fmt: skip


@pytest.mark.parametrize("how", ["stop", "interrupt"])
def test_stop_ends_every_kind_of_wait(flow, how):
    nodes = {name: node for name, node in WAITERS.items() if name not in ("sender", "lazy")}
    flow.start(nodes)
    for _ in nodes:
        flow.until(r"SAID waits")
    time.sleep(0.1)
    begun = time.monotonic()
    if how == "stop":
        flow.run(tool("tensorbus"), "stop")
    else:
        flow.process.send_signal(signal.SIGINT)
    output = flow.end(130 if how == "interrupt" else 0)
    assert time.monotonic() - begun < 5
    assert said(output, "loop") == ["waits", "STOP ''", "over"]
    assert said(output, "next") == ["waits", "STOP", "closed"]
    assert said(output, "tasks") == ["waits", "STOP ''", "over"]
    assert said(output, "thread") == ["waits", "STOP"]
    clean(output)


def test_stop_ends_a_sender_that_waits_for_room(flow):
    """When its receiver has ended there is room, and it comes to its own STOP."""
    flow.start({name: WAITERS[name] for name in ("sender", "lazy")})
    flow.until(r"SAID waits")
    time.sleep(0.5)
    begun = time.monotonic()
    flow.run(tool("tensorbus"), "stop")
    output = flow.end(0)
    assert time.monotonic() - begun < 5
    assert said(output, "lazy") == ["STOP"] and said(output, "sender") == ["waits", "STOP"]
    clean(output)


# What a failed node has sent arrives, but a flow that a failure ends is told STOP, which comes
# before what is queued: so the receivers here say what they got, and then the node fails.
TELLING_SINK = (
    """
    with tb.Node() as node:
        for event in node:
            say(event.type, event.metadata.get("n"))
            if event.type == "INPUT":
                node.send_output("got", None, event.metadata)
    """,
    "outputs: [got]\ninputs: {in: fails/out}",
)


def check_telling_sink(output: str, count: int) -> None:
    lines = said(output, "sink")
    assert lines[:count] == [f"INPUT {n}" for n in range(count)], output
    assert lines[count] in ("INPUT_CLOSED None", "STOP None"), output


def test_a_node_that_fails(flow):
    """Its neighbours hear of the end; its traceback and its exit code are shown."""
    output = flow.go({
        "fails": ("""
            with tb.Node() as node:
                node.send_output("out", b"before", {"n": 0})
                node.next()
                raise RuntimeError("my own mistake")
            """, "outputs: [out]\ninputs: {got: sink/got}"),
        "sink": TELLING_SINK,
    }, code=1)  # fmt: skip
    check_telling_sink(output, 1)
    assert "RuntimeError: my own mistake" in output and re.search(r"fails +exit 1", output), output


def test_a_node_that_is_killed(flow):
    """SIGKILL in the middle of everything: what it sent arrives, what it held is free again."""
    output = flow.go({
        "source": ("""
            with tb.Node() as node:
                pool = tb.Pool.register(tb.Spec(50_000, "u1"), name="frames", slots=4)
                for n in range(60):
                    # A dead receiver's holds must not keep the slots.
                    handle = pool.write(np.full(50_000, n, np.uint8), timeout=8)
                    node.send_output("out", handle, {"n": n}, timeout=8)
                say("sent all")
            """, "outputs: [out]"),
        "fails": ("""
            held = []
            node = tb.Node()
            for event in node:
                if event.id == "in" and len(held) < 3:
                    held.append(event.hold())
                    node.send_output("out", event.numpy()[:4].copy(), event.metadata)
                if event.id == "got" and event.metadata["n"] == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
            """, "outputs: [out]\ninputs:\n  got: sink/got\n"
                 "  in: {source: source/out, queue_policy: backpressure}"),
        "sink": TELLING_SINK,
    }, code=1)  # fmt: skip
    check_telling_sink(output, 3)
    assert said(output, "source") == ["sent all"]
    assert re.search(r"fails +killed by SIGKILL|fails: killed by SIGKILL", output), output


def test_a_node_that_is_killed_and_comes_back(flow):
    nodes = {
        "source": (
            """
            with tb.Node() as node:
                for event in node:
                    if event.type == "INPUT" and event.id == "tick":
                        node.send_output("out", np.full(20_000, 1), {"pid": os.getpid()})
                    if event.id == "end":  # closed
                        break
            """,
            "outputs: [out]\ninputs: {tick: tensorbus/timer/millis/10, end: sink/end}",
        ),
        "middle": (
            """
            life = sum(1 for _ in open("lives")) if os.path.exists("lives") else 0
            open("lives", "a").write("x\\n")
            node = tb.Node()
            for count, event in enumerate(node):
                if event.type == "INPUT":
                    node.send_output("out", event.value, {"life": life})
                if count == 5 and life < 2:
                    os.kill(os.getpid(), signal.SIGKILL)
            """,
            "outputs: [out]\ninputs: {in: source/out}\nrestart_policy: on-failure",
        ),
        "sink": (
            """
            with tb.Node() as node:
                lives = []
                for event in node:
                    if event.type != "INPUT":
                        say(event.type)
                        continue
                    assert event.numpy().sum() == 20_000
                    lives.append(event.metadata["life"])
                    if lives.count(2) == 10:
                        say(sorted(set(lives)), lives == sorted(lives), lives.count(0) >= 5)
                        break
            """,
            "outputs: [end]\ninputs:\n  in: {source: middle/out, queue_size: 100}",
        ),
    }
    output = flow.go(nodes)
    assert said(output, "sink") == ["[0, 1, 2] True True"]
    assert len((flow.folder / "lives").read_text().split()) == 3


def test_nodes_that_do_not_close(flow):
    """The interpreter's end closes; what was sent arrives."""
    nodes = {
        "source": (
            """
            node = tb.Node()
            view = None
            for n in range(20):
                node.send_output("out", np.full(30_000, n))
            """,
            "outputs: [out]",
        ),
        "sink": (
            """
            got = [int(event.numpy()[-1]) for event in tb.Node() if event.type == "INPUT"]
            say(got == list(range(20)))
            """,
            "inputs:\n  in: {source: source/out, queue_policy: backpressure}",
        ),
    }
    output = flow.go(nodes)
    assert said(output, "sink") == ["True"]
    clean(output)


def test_messages_are_not_lost_under_load(flow):
    """Three senders with threads, small and large values, one receiver that counts them all."""
    sender = """
        import threading
        with tb.Node() as node:
            def send(number):
                for n in range(150):
                    size = 20_000 if n % 7 == 0 else 3
                    metadata = {"who": node.id, "thread": number, "n": n}
                    node.send_output("out", np.full(size, n), metadata)
            threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
        """
    names = ["a", "b", "c"]
    nodes = {name: (sender, "outputs: [out]") for name in names}
    nodes["sink"] = (
        """
        last = {}
        for event in tb.Node():
            if event.type == "INPUT":
                who = event.metadata["who"], event.metadata["thread"]
                assert event.metadata["n"] == last.get(who, -1) + 1 == event.numpy()[-1]
                assert event.dropped == 0
                last[who] = event.metadata["n"]
        say(len(last), set(last.values()))
        """,
        "inputs:\n"
        + "".join(
            f"  {name}: {{source: {name}/out, queue_size: 4, queue_policy: backpressure}}\n"
            for name in names
        ),
    )
    output = flow.go(nodes)
    assert said(output, "sink") == ["9 {149}"]
    clean(output)
