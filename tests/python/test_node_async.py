"""`async for event in node`."""

import asyncio
import gc
import threading
import time

import numpy as np
import pytest
from node_kit import Node, node_pair, open_node

import kit
import tensorbus as tb


@pytest.fixture
def pair():
    with node_pair() as nodes:
        yield nodes


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, kit.LIMIT_S))


def number(event):
    return int(event.numpy()[0])


def test_a_loop_ends_with_its_inputs(pair):
    source, sink = pair

    async def main():
        got = []
        source.send_output("out", np.array([0]))
        async for event in sink:
            got.append((event.type, event.value and number(event)))
            if len(got) < 3:
                asyncio.get_running_loop().call_later(
                    0.02, source.send_output, "out", np.array([len(got)])
                )
            elif len(got) == 3:
                asyncio.get_running_loop().call_later(0.02, source.close_output, "out")
        return got

    assert run(main()) == [("INPUT", 0), ("INPUT", 1), ("INPUT", 2), ("INPUT_CLOSED", None)]


def test_other_tasks_run_while_it_waits(pair):
    source, sink = pair

    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticking = asyncio.create_task(tick())
        asyncio.get_running_loop().call_later(0.2, source.send_output, "out", np.array([1]))
        event = await anext(sink)
        ticking.cancel()
        return number(event), ticks

    value, ticks = run(main())
    assert value == 1 and ticks > 3


def test_a_node_that_is_never_idle_lets_others_run(pair):
    source, sink = pair
    for n in range(50):
        source.send_output("out", np.array([n]))

    async def main():
        steps = 0

        async def step():
            nonlocal steps
            while True:
                await asyncio.sleep(0)
                steps += 1

        stepping = asyncio.create_task(step())
        for n in range(50):
            assert number(await anext(sink)) == n
        stepping.cancel()
        return steps

    assert run(main()) >= 49


def test_the_event_before_is_over(pair):
    source, sink = pair

    async def main():
        source.send_output("out", np.arange(50_000), {"a": 1})
        first = await anext(sink)
        array = first.numpy()
        source.send_output("out", np.array([1]))
        second = await anext(sink)
        assert first.numpy()[-1] == 49_999  # looked at
        del array
        gc.collect()
        with pytest.raises(tb.InvalidError, match="turn is over"):
            first.value
        assert number(second) == 1 and first.metadata == {"a": 1}

    run(main())


def test_a_cancelled_wait_loses_nothing(pair):
    """Waits that are cancelled at any time, while messages come: each arrives, once, in order."""
    source, sink = pair
    count = 200

    def send():
        for n in range(count):
            source.send_output("out", np.array([n]))
            time.sleep(0.0023)

    async def main():
        got, timeouts = [], 0
        while len(got) < count:
            waiting = asyncio.ensure_future(anext(sink))
            await asyncio.wait([waiting], timeout=0.001)
            if not waiting.done():
                waiting.cancel()
                timeouts += 1
            try:
                got.append(number(await waiting))
            except asyncio.CancelledError:
                pass
        return got, timeouts

    thread = threading.Thread(target=send)
    thread.start()
    got, timeouts = run(main())
    thread.join(kit.LIMIT_S)
    assert got == list(range(count)) and timeouts > 50


def test_next_works_after_a_cancelled_wait(pair):
    source, sink = pair

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(sink), 0.05)
        begun = time.monotonic()
        assert sink.next(0.02) is None
        assert time.monotonic() - begun < 0.3
        source.send_output("out", np.array([1]))
        assert number(sink.next(10)) == 1
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(sink), 0.05)
        source.send_output("out", np.array([2]))
        assert number(await anext(sink)) == 2
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(sink), 0.05)

    run(main())
    source.send_output("out", np.array([3]))
    assert number(sink.next(10)) == 3


def naps():
    """How often this thread has slept."""
    with open("/proc/thread-self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt"))


def test_a_cancelled_wait_gives_the_node_back_soon(pair):
    """next() then sleeps by itself; it does not look every now and then for another thread."""
    source, sink = pair

    async def main():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(sink), 0.05)

    run(main())
    before = naps()
    assert sink.next(1) is None
    assert naps() - before < 300


def test_an_event_that_comes_between_cancelling_and_the_next_call(pair):
    """The thread that waits has it already: whoever asks next gets it, and it stays in order."""
    source, sink = pair

    async def main():
        waiting = asyncio.ensure_future(anext(sink))
        await asyncio.sleep(0.05)  # the thread waits
        for n in range(3):
            source.send_output("out", np.array([n]))
        time.sleep(0.05)  # and has taken the first, but this loop has not heard
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert number(sink.next(0)) == 0
        assert number(await anext(sink)) == 1
        assert number(sink.next(0)) == 2

    run(main())


def test_several_loops_one_after_another(pair):
    source, sink = pair

    async def one(value):
        asyncio.get_running_loop().call_later(0.02, source.send_output, "out", np.array([value]))
        return number(await anext(sink))

    for value in range(3):
        assert run(one(value)) == value


def test_stopping_a_loop_that_waits_leaves_no_thread_behind(pair):
    source, sink = pair

    async def main():
        waiting = asyncio.ensure_future(anext(sink))
        await asyncio.sleep(0.02)
        return waiting

    begun = time.monotonic()
    waiting = run(main())  # cancels what still waits
    assert waiting.cancelled() and time.monotonic() - begun < 5


def test_closing_ends_a_wait(pair):
    source, sink = pair

    async def main():
        waiting = asyncio.ensure_future(anext(sink))
        await asyncio.sleep(0.05)
        sink.close()
        with pytest.raises((StopAsyncIteration, tb.ClosedError)):
            await waiting
        with pytest.raises((StopAsyncIteration, tb.ClosedError)):
            await anext(sink)

    run(main())


def test_errors_come_through():
    with open_node("here", "in=here/out;timeout_ns=50000000", "out=here/in") as node:

        async def main():
            async for event in node:
                return event

        event = run(main())
        assert event.type == "ERROR" and "nothing came" in event.text


@pytest.mark.parametrize("body", [
    "asyncio.run(main())",
    "loop = asyncio.new_event_loop(); task = loop.create_task(main())\n"
    "loop.call_later(0.1, loop.stop); loop.run_forever()",
    "threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start(); time.sleep(0.2)",
])  # fmt: skip
def test_the_interpreters_end_while_a_task_waits(body):
    with Node(
        """
import asyncio
node = tb.Node()
async def main():
    task = asyncio.ensure_future(anext(node))
    await asyncio.sleep(0.1)
    if threading.current_thread() is not threading.main_thread():
        await asyncio.sleep(60)
"""
        + body,
        "here",
        "tick=tensorbus/timer/secs/60",
    ) as node:
        begun = time.monotonic()
        _, err = node.end()
        assert time.monotonic() - begun < 5
        assert "Traceback" not in err and "Fatal" not in err, err


def test_ctrl_c_ends_a_loop():
    with Node(
        """
import asyncio
node = tb.Node()
async def main():
    say("waits")
    async for event in node:
        pass
try:
    asyncio.run(main())
except KeyboardInterrupt:
    say("interrupted")
""",
        "here",
        "tick=tensorbus/timer/secs/60",
    ) as node:
        assert node.hear() == "waits"
        time.sleep(0.1)
        begun = time.monotonic()
        node.interrupt()
        assert node.hear() == "interrupted" and time.monotonic() - begun < 0.5
        assert node.end() == ("", "")
