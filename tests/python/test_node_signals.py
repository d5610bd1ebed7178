"""Signals and Ctrl-C while a node waits, sends and ends."""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest
from node_kit import Node, await_socket, node_pair, open_node

import kit

LARGE = 50_000


@pytest.fixture
def pair():
    with node_pair() as nodes:
        yield nodes


class Stop(Exception):
    pass


@pytest.fixture
def alarm():
    """Raises Stop in the main thread after a while; says when it was due."""

    def ring(number, frame):
        raise Stop

    def set_alarm(seconds):
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return time.monotonic() + seconds

    former = signal.signal(signal.SIGALRM, ring)
    yield set_alarm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


def test_a_signal_ends_next(pair, alarm):
    source, sink = pair
    for wait in (sink.next, lambda: sink.next(20), lambda: next(sink), lambda: list(sink)):
        due = alarm(0.1)
        with pytest.raises(Stop):
            wait()
        assert time.monotonic() - due < 0.1
    source.send_output("out", b"still there")
    assert sink.next(10).value == b"still there"


@pytest.mark.parametrize("size", [4, LARGE])
def test_a_signal_ends_a_send(alarm, size):
    with node_pair("queue=1;policy=backpressure") as (source, sink):
        sent = 0
        due = alarm(0.3)
        with pytest.raises(Stop):
            while True:
                source.send_output("out", np.full(size, sent))
                sent += 1
        assert time.monotonic() - due < 0.1
        got = []
        while (event := sink.next(0)) is not None:
            got.append(int(event.numpy()[0]))
        assert got == list(range(sent))  # the last one was not sent
        source.send_output("out", np.full(size, 77))
        assert sink.next(10).numpy()[-1] == 77


@pytest.fixture
def on_alarm():
    """Sets what SIGALRM does."""
    former = signal.getsignal(signal.SIGALRM)

    def set_handler(handler):
        signal.signal(signal.SIGALRM, lambda number, frame: handler())

    yield set_handler
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


def test_an_event_is_not_lost_to_a_signal(pair, on_alarm):
    """The message comes while the handler runs that ends the wait for it."""
    source, sink = pair

    def send_and_stop():
        source.send_output("out", b"in time")
        raise Stop

    on_alarm(send_and_stop)
    for wait in (lambda: sink.next(20), lambda: next(sink)):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Stop):
            wait()
        assert sink.next(0).value == b"in time"
    assert sink.next(0) is None


def test_a_handler_may_wait_itself(pair, on_alarm):
    """And the wait that it interrupts is ended by the next signal all the same."""
    source, sink = pair
    done = []

    def wait_then_stop():
        source.next(0.07)
        done.append(None)
        if len(done) == 3:
            raise Stop

    on_alarm(wait_then_stop)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.2)
    begun = time.monotonic()
    with pytest.raises(Stop):
        sink.next(20)
    assert 0.5 < time.monotonic() - begun < 2


@pytest.mark.parametrize("body", [
    "tb.Node()",
    "node = tb.Node()\nsay('open')\nnode.next()",
    "node = tb.Node()\nsay('open')\nfor event in node: pass",
], ids=["opening", "next", "loop"])  # fmt: skip
def test_ctrl_c_ends_a_node(body):
    inputs = "in=nobody/out" if body == "tb.Node()" else "tick=tensorbus/timer/secs/60"
    with Node(
        "try:\n"
        + "\n".join("    " + line for line in body.splitlines())
        + """
except KeyboardInterrupt:
    say("interrupted")
""",
        "here",
        inputs,
    ) as node:
        if "say" in body:
            assert node.hear() == "open"
        else:
            await_socket("here")
        time.sleep(0.1)
        begun = time.monotonic()
        node.interrupt()
        assert node.hear() == "interrupted"
        assert time.monotonic() - begun < (0.5 if "say" not in body else 0.15)
        node.end()


@dataclasses.dataclass
class Interrupted:
    source: Node
    begun: float

    def seconds(self) -> float:
        return time.monotonic() - self.begun


@contextlib.contextmanager
def interrupted(script: str, word: str) -> Iterator[Interrupted]:
    """A node `source` that a receiver which takes nothing keeps waiting: it got Ctrl-C soon after
    it has said `word`. Afterwards the receiver takes what there is, to its end."""
    with Node(script, "source", outputs="out=sink/in") as source:
        await_socket("source")
        with open_node("sink", "in=source/out;queue=1;policy=backpressure") as sink:
            assert source.hear() == word
            time.sleep(0.2)
            begun = time.monotonic()
            source.interrupt()
            yield Interrupted(source, begun)
            while sink.next(10).type != "INPUT_CLOSED":
                pass


def test_ctrl_c_ends_a_send():
    script = """
node = tb.Node()
try:
    while True:
        node.send_output("out", b"x")
        say("sent")
except KeyboardInterrupt:
    say("interrupted")
"""
    with interrupted(script, "sent") as end:
        while (line := end.source.hear()) == "sent":
            pass
        assert line == "interrupted" and end.seconds() < 0.15
        end.source.end()


@pytest.mark.parametrize("ending", [
    "node.close()",
    "with node: pass",
    "del node\n    for _ in range(1000): time.sleep(0.01)",
], ids=["close", "block", "drop"])  # fmt: skip
def test_ctrl_c_ends_the_wait_of_closing(ending):
    """A receiver that takes nothing keeps a node that closes; Ctrl-C ends that: it is closed."""
    script = f"""
node = tb.Node()
bus = node.bus
node.send_output("out", np.arange({LARGE}))
say("closing")
try:
    {ending}
except KeyboardInterrupt:
    say("interrupted", bus.closed)
"""
    with interrupted(script, "closing") as end:
        assert end.source.hear() == "interrupted True"
        assert end.seconds() < 1
        _, err = end.source.end()
    assert "did not take all frames yet: the wait was interrupted" in err


def test_ctrl_c_ends_the_wait_at_the_interpreter_s_end():
    script = f"""
import atexit
node = tb.Node()
node.send_output("out", np.arange({LARGE}))
atexit.register(say, "ending")
"""
    with interrupted(script, "ending") as end:
        end.source.process.wait(kit.LIMIT_S)
        assert end.seconds() < 1
