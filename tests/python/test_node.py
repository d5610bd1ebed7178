"""A node's life: opening, waiting, sending, ending; threads, fork, the interpreter's
end."""

import gc
import os
import threading
import time

import numpy as np
import pytest
from node_kit import Node, environment, node_pair, open_node

import kit
import tensorbus as tb

LARGE = 50_000


@pytest.fixture
def pair():
    with node_pair() as nodes:
        yield nodes


# ---- opening and closing


def test_outside_of_a_runner_the_way_in_is_named():
    with pytest.raises(tb.NotFoundError, match="tensorbus run FLOW"):
        tb.Node()
    with pytest.raises(TypeError):
        tb.Node("name")


def test_a_pool_before_the_node_is_an_error_that_says_so():
    os.environ.update(environment("here"))
    pool = tb.Pool.register(tb.Spec(3, "u1"))
    with pytest.raises(tb.ExistsError, match="make the Node first"):
        tb.Node()
    pool.bus.close()
    tb.Node().close()


def test_a_broken_environment_is_an_error():
    os.environ.update(environment("here", inputs="in=nonsense"))
    with pytest.raises(tb.InvalidError, match="TENSORBUS_INPUTS"):
        tb.Node()


def test_what_a_node_knows_of_itself():
    with open_node(
        "here", "a=tensorbus/timer/secs/60\nb=tensorbus/timer/secs/60", "x=\ny="
    ) as node:
        assert (node.id, node.inputs, node.outputs, node.closed) == (
            "here",
            ("a", "b"),
            ("x", "y"),
            False,
        )
        assert node.bus.name == "here" and "here" in repr(node)
        with pytest.raises(tb.ExistsError, match="this process has opened node `here` already"):
            tb.Node()
    assert node.closed and node.bus.closed and "closed" in repr(node)
    node.close()
    for use in (lambda: node.id, lambda: node.inputs, node.next, lambda: node.send_output("x"),
                lambda: node.close_output("x"), lambda: next(node), node.__enter__):  # fmt: skip
        with pytest.raises((tb.ClosedError, StopIteration)):
            use()
    assert list(node) == []


def test_a_node_that_nobody_has_any_more_is_closed():
    node = open_node("here", outputs="x=")
    bus = node.bus
    del node
    gc.collect()
    assert bus.closed
    open_node("here").close()


def test_its_bus_is_the_default_one(pair):
    source, sink = pair
    pool = tb.Pool.register(tb.Spec(3, "u1"), name="mine")
    assert pool.bus is sink.bus  # the one that was opened last
    assert tb.Pool.register(tb.Spec(3, "u1"), name="other", bus=source.bus).bus.name == "source"


def test_receivers_hear_of_the_end(pair):
    source, sink = pair
    source.send_output("out", b"last")
    source.close()
    assert sink.next(10).value == b"last"
    assert sink.next(10).type == "INPUT_CLOSED"
    with pytest.raises(tb.ClosedError):
        sink.next(10)
    assert list(sink) == []


def test_the_end_of_the_loop(pair):
    source, sink = pair
    for n in range(3):
        source.send_output("out", np.array([n]))
    source.close_output("out")
    with pytest.raises(tb.ClosedError, match="`out` is closed"):
        source.send_output("out")
    got = [(event.type, event.id, event.value and int(event.numpy()[0])) for event in sink]
    assert got == [("INPUT", "in", n) for n in range(3)] + [("INPUT_CLOSED", "in", None)]


def test_leaving_a_block_closes_also_after_an_exception():
    with pytest.raises(ZeroDivisionError):
        with open_node("here") as node:
            1 / 0
    assert node.closed


def test_arrays_outlive_the_node():
    """In a process of its own: what is still looked at stays mapped until its end."""
    with Node(
        """
with tb.Node() as node:
    large, small = node.next(10).numpy(), node.next(10).numpy()
    held = node.next(10).hold()
    value = held.value
say(large[-1], small[-1])
for look in (lambda: held.value, value.numpy, held.hold, lambda: bytes(value)):
    try:
        look()
        say("no error")
    except (tb.ClosedError, tb.InvalidError, BufferError):
        pass
held.release()
say(held.id, held.type, held.metadata)
""",
        "sink",
        "in=source/out",
    ) as sink:
        with open_node("source", outputs="out=sink/in") as source:
            for value in (np.arange(LARGE), np.arange(10), np.arange(LARGE)):
                source.send_output("out", value, {"a": 1})
            out, err = sink.end()
    assert out.splitlines() == [f"{LARGE - 1} 9", "in INPUT {'a': 1}"] and err == ""


def test_outputs_by_name(pair):
    source, _ = pair
    with pytest.raises(tb.NotFoundError, match="`outt`.*it has: `out`"):
        source.send_output("outt", b"")
    with pytest.raises(tb.NotFoundError, match="`outt`"):
        source.close_output("outt")
    with pytest.raises(TypeError):
        source.send_output(5, b"")
    with pytest.raises(TypeError):
        source.send_output()


# ---- waiting


def test_timeouts(pair):
    source, sink = pair
    begun = time.monotonic()
    assert sink.next(0) is None and sink.next(timeout=0.0) is None
    assert time.monotonic() - begun < 0.1
    assert sink.next(0.15) is None
    assert 0.15 <= time.monotonic() - begun < 2
    for wrong in (-1, float("nan"), "1", b""):
        with pytest.raises((ValueError, TypeError), match="timeout"):
            sink.next(wrong)
        with pytest.raises((ValueError, TypeError), match="timeout"):
            source.send_output("out", timeout=wrong)


def test_a_tick_has_no_value():
    with open_node("here", "tick=tensorbus/timer/millis/5") as node:
        times = []
        for event in node:
            assert (event.type, event.id, event.value, event.metadata) == (
                "INPUT",
                "tick",
                None,
                {},
            )
            times.append(event.stamp_ns)
            if len(times) == 3:
                break
    assert times[1] - times[0] == times[2] - times[1] == 5_000_000


def test_what_was_dropped_is_counted():
    with node_pair("queue=2") as (source, sink):
        for n in range(5):
            source.send_output("out", np.array([n]))
        first, second = sink.next(10), None
        assert (int(first.numpy()[0]), first.dropped) == (3, 3)
        second = sink.next(10)
        assert (int(second.numpy()[0]), second.dropped) == (4, 0)


def test_silence_is_an_error_event():
    with node_pair("timeout_ns=50000000") as (source, sink):
        event = sink.next(10)
        assert event.type == "ERROR" and event.id == "in" and "nothing came" in event.text
        assert event["text"] in repr(event) and event.value is None


def test_a_full_queue():
    with node_pair("queue=1;policy=backpressure") as (source, sink):
        sent = 0
        begun = time.monotonic()
        with pytest.raises(tb.AgainError, match="stayed full"):
            while sent < 10:
                source.send_output("out", np.array([sent]), timeout=0.1)
                sent += 1
        assert time.monotonic() - begun >= 0.1
        assert issubclass(tb.AgainError, TimeoutError)
        thread = threading.Thread(target=source.send_output, args=("out", np.array([99])))
        thread.start()
        got = [int(sink.next(10).numpy()[0]) for _ in range(sent + 1)]
        thread.join(kit.LIMIT_S)
        assert got == [*range(sent), 99]


# ---- threads


def test_others_run_while_one_waits(pair):
    """next() without the GIL: this thread goes on and sends."""
    source, sink = pair
    got = []
    thread = threading.Thread(target=lambda: got.append(sink.next(kit.LIMIT_S).numpy()[0]))
    thread.start()
    time.sleep(0.05)
    assert thread.is_alive() and got == []
    source.send_output("out", np.array([7]))
    thread.join(kit.LIMIT_S)
    assert got == [7]


def test_one_thread_waits_at_a_time(pair):
    source, sink = pair
    entered = threading.Event()

    def wait():
        entered.set()
        sink.next(kit.LIMIT_S)

    thread = threading.Thread(target=wait)
    thread.start()
    entered.wait(kit.LIMIT_S)

    def refused():
        try:
            sink.next(0)
        except tb.InvalidError as error:
            return "one at a time" in str(error)

    kit.await_true(refused, "a second thread is refused")
    source.send_output("out")
    thread.join(kit.LIMIT_S)
    assert sink.next(0) is None


def test_threads_send_while_another_waits():
    threads, each = 4, 100
    with node_pair("queue=5;policy=backpressure") as (source, sink):

        def send(number):
            for n in range(each):
                size = LARGE if n % 10 == 0 else 4
                source.send_output("out", np.full(size, n), {"from": number, "n": n})

        running = [threading.Thread(target=send, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        last = [-1] * threads
        for _ in range(threads * each):
            event = sink.next(kit.LIMIT_S)
            who, n = event.metadata["from"], event.metadata["n"]
            assert n == last[who] + 1 and event.numpy()[-1] == n and event.dropped == 0
            last[who] = n
        for thread in running:
            thread.join(kit.LIMIT_S)
        assert last == [each - 1] * threads


def test_closing_ends_the_waits_of_other_threads():
    with node_pair("queue=1;policy=backpressure") as (source, sink):
        ends = []

        def run(call):
            try:
                call()
            except tb.ClosedError as error:
                ends.append(str(error))

        def send_on():
            while True:
                source.send_output("out", b"x")

        running = [threading.Thread(target=run, args=(call,)) for call in (send_on, source.next)]
        for thread in running:
            thread.start()
        time.sleep(0.1)
        assert all(thread.is_alive() for thread in running)
        begun = time.monotonic()
        source.close()
        for thread in running:
            thread.join(kit.LIMIT_S)
        assert len(ends) == 2 and time.monotonic() - begun < 2


# ---- fork and the interpreter's end


def test_a_forked_child_cannot_use_the_node(pair):
    source, sink = pair
    source.send_output("out", np.arange(LARGE), {"a": 1})
    source.send_output("out", np.arange(3))
    event = sink.next(10).hold()
    small = sink.next(10).hold()
    view = event.numpy()
    pid = os.fork()
    if pid == 0:
        code = 9
        try:
            for use in (
                sink.next,
                lambda: next(sink),
                lambda: source.send_output("out", b"x"),
                lambda: source.close_output("out"),
                lambda: sink.next(0),
            ):
                try:
                    use()
                    os._exit(1)
                except tb.ForkedError:
                    pass
            assert event.metadata == {"a": 1}
            event.release()
            small.release()
            sink.close()
            source.close()
            code = 0
        except BaseException as error:
            os.write(2, repr(error).encode())
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert view[-1] == LARGE - 1 and small.numpy()[2] == 2
    source.send_output("out", b"undisturbed")
    assert sink.next(10).value == b"undisturbed"


@pytest.mark.parametrize("body", [
    "",
    "kept = node",
    "event = node.next(10)",
    "event = node.next(10).hold()",
    "view = node.next(10).numpy()",
    "view = node.next(10).numpy(); cycle = [node, view]; cycle.append(cycle)",
    "view = memoryview(node.next(10).value)",
    "array = np.from_dlpack(node.next(10).value)",
    "capsules = node.next(10).value.__arrow_c_array__()",
    "import builtins; builtins.kept = (node, node.next(10), node.next)",
    "threading.Thread(target=list, args=(node,), daemon=True).start(); time.sleep(0.05)",
    "view = node.next(10).numpy(); node.close()",
    "node.close()",
    "sys.exit(0)",
    "import atexit; view = node.next(10).numpy(); atexit.register(lambda: view.sum())",
])  # fmt: skip
def test_the_interpreters_end_with_a_node_open(body):
    """No crash and no word; its receivers get what was sent, and hear of the end."""
    with Node(
        """
node = tb.Node()
node.send_output("out", b"before the end")
node.send_output("out", np.arange(50_000))
"""
        + body,
        "middle",
        "in=source/out;queue=100",
        "out=source/back",
    ) as middle:
        with open_node("source", "back=middle/out;queue=100", "out=middle/in") as source:
            source.send_output("out", np.arange(LARGE))
            source.send_output("out", np.arange(4))
            assert source.next(20).value == b"before the end"
            assert source.next(20).numpy()[-1] == 49_999
            assert source.next(20).type == "INPUT_CLOSED"
        assert middle.end() == ("", "")
