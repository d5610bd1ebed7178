"""fork and spawn: the child gets ForkedError for what its parent opened, and opens its own."""

import multiprocessing

import numpy as np
import pytest

import kit
import tensorbus as tb

# From Python 3.12 on a fork beside threads, such as the bus's, is warned of.
QUIET = ("-W", "ignore::DeprecationWarning")

SCENE = """
bus = tb.open_bus("camera")
pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
pool.write(b"abcd")
reader = tb.Reader("camera/front")
frame = reader.next(1)
view = frame.numpy()
loan = pool.loan()
"""


def test_a_child_and_its_parents_objects(directory: object) -> None:
    out, err = kit.run(SCENE, """
        pid = os.fork()
        if pid == 0:
            uses = [pool.loan, pool.read, pool.stats, pool.free, lambda: pool.write(b"abcd"),
                    reader.next, reader.stats, lambda: iter(reader), frame.numpy, frame.hold,
                    frame.copy, loan.numpy, loan.publish, lambda: bus.name,
                    lambda: tb.open_frame(pool.last, bus=bus)]
            for use in uses:
                try:
                    use()
                    say("no error")
                except tb.ForkedError as error:
                    assert isinstance(error, RuntimeError)
            say(view.tobytes(), frame.released)
            bus.close()
            reader.close()
            frame.release()
            loan.cancel()
            sys.exit(0)
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        loan.numpy()[:] = 7
        loan.publish()
        say(reader.next(1).numpy().tobytes(), view.tobytes(), pool.stats().readers)
        """, options=QUIET)
    assert out.splitlines() == [f"{b'abcd'!r} False", "0", f"{bytes([7] * 4)!r} {b'abcd'!r} 1"]
    assert err == ""


def test_a_child_opens_its_own(directory: object) -> None:
    out, err = kit.run(SCENE, """
        pid = os.fork()
        if pid == 0:
            mine = tb.Pool.register(tb.Spec(4, "u1"), name="mine")
            assert mine.bus is not bus and mine.bus.name == ""
            say(tb.Reader("camera/front").next(5).numpy().tobytes())
            handle = mine.write(b"efgh")
            os.write(writer, bytes(handle))
            signal.pause()
        """.replace("pid = os.fork()", "got, writer = os.pipe(); pid = os.fork()"), """
        handle = os.read(got, 48)
        child = tb.open_frame(handle).numpy()
        say(child.tobytes())
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
        say(child.tobytes())
        try:
            tb.open_frame(handle)
            say("opened")
        except tb.Error as error:
            say(type(error).__name__)
        """, options=QUIET)
    lines = out.splitlines()
    assert sorted(lines[:2]) == [f"{b'abcd'!r}", f"{b'efgh'!r}"]
    assert lines[2] == f"{b'efgh'!r}" and lines[3] in ("opened", "OwnerDiedError", "NotFoundError")
    assert err == ""
    kit.killed.append(0)  # the child


def test_a_node_and_its_workers(directory: object) -> None:
    """The name of the environment is the parent's: a worker's default bus goes without."""
    out, err = kit.run("""
        import multiprocessing as mp
        def work(queue):
            pool = tb.Pool.register(tb.Spec(4, "u1"))
            queue.put((pool.bus.name, bytes(pool.write(b"abcd"))))
            queue.get()
        if __name__ == "__main__":
            pool = tb.Pool.register(tb.Spec(1, "u1"), name="front")
            say(pool.bus.name)
            context = mp.get_context("fork")
            queue = context.Queue()
            worker = context.Process(target=work, args=(queue,))
            worker.start()
            name, handle = queue.get()
            say(repr(name), tb.open_frame(handle).numpy().tobytes())
            queue.put(None)
            worker.join()
        """, options=QUIET, env={"TENSORBUS_NODE": "node-1"})
    assert out.splitlines() == ["node-1", f"'' {b'abcd'!r}"] and err == ""


def produce(connection: object, path: str) -> None:
    """Runs in a process of its own."""
    tb.open_bus(path)
    pool = tb.Pool.register(tb.Spec((3, 5), "f4"), name="front", slots=4)
    for value in range(3):
        connection.send(pool.write(np.full((3, 5), value, np.float32)))
    connection.recv()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method: str, directory: object) -> None:
    """Handles travel through its pipes."""
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=produce, args=(theirs, "camera"))
    process.start()
    try:
        for value in range(3):
            frame = tb.open_frame(ours.recv())
            assert (frame.numpy() == value).all() and frame.info.producer == "camera"
            frame.release()
        ours.send(None)
    finally:
        process.join()
        process.close()
        ours.close()
        theirs.close()
    if method == "forkserver":
        from multiprocessing import forkserver, resource_tracker

        forkserver._forkserver._stop()
        resource_tracker._resource_tracker._stop()
    elif method == "spawn":
        from multiprocessing import resource_tracker

        resource_tracker._resource_tracker._stop()


def test_a_pool_of_worker_processes(directory: object) -> None:
    """concurrent.futures with fork: workers read the parent's frames by their handles."""
    out, err = kit.run(SCENE, """
        import concurrent.futures, multiprocessing
        def total(handle):
            return int(tb.open_frame(handle).numpy().sum())
        handles = [pool.write(np.full(4, value, np.uint8)) for value in (1, 2)]
        with concurrent.futures.ProcessPoolExecutor(
                2, mp_context=multiprocessing.get_context("fork")) as workers:
            say(list(workers.map(total, handles)))
        loan.publish()
        """, options=QUIET)
    assert (out, err) == ("[4, 8]\n", "")


def test_a_fork_while_threads_wait(directory: object) -> None:
    out, err = kit.run(SCENE, """
        waits = [threading.Thread(target=reader.next) for _ in range(3)]
        for thread in waits:
            thread.start()
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                tb.Pool.register(tb.Spec(1, "u1")).write(b"x")
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        for thread in waits:
            pool.write(b"efgh")
            time.sleep(0.01)
        for thread in waits:
            thread.join(10)
        say(sum(thread.is_alive() for thread in waits), reader.stats().frames)
        """, options=QUIET)
    assert out == "0 4\n" and err == ""
    kit.killed.append(0)  # the children, which did not say goodbye


def test_exec_after_fork(directory: object) -> None:
    out, err = kit.run(SCENE, """
        import subprocess
        say(subprocess.run([sys.executable, "-c", "import tensorbus as tb; "
            "print(tb.Reader('camera/front').next(5).numpy().tobytes())"],
            capture_output=True, text=True).stdout.strip())
        """)
    assert (out, err) == (f"{b'abcd'!r}\n", "")

