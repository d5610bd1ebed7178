"""The library's log lines come as records of "tensorbus.<topic>"."""

import logging
import threading

import pytest

import kit
import tensorbus as tb

WARNING = ("Attempt to {} memory pool [front] failed - reason: pool does not exist. "
           "Operation aborted.")


def test_use_after_free_is_a_warning(bus: tb.Bus, caplog: pytest.LogCaptureFixture) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
    pool.write(bytes(4))
    assert pool.free() is True and caplog.records == []
    assert pool.free() is False
    for verb, use in (("release", pool.free), ("write", lambda: pool.write(bytes(4))),
                      ("write", pool.loan), ("read", pool.read)):
        caplog.clear()
        if verb == "release":
            assert use() is False
        else:
            with pytest.raises(RuntimeError, match="was freed"):
                use()
        assert [(r.name, r.levelname, r.getMessage()) for r in caplog.records] == [
            ("tensorbus.pool", "WARNING", WARNING.format(verb))]


def test_freed_by_another_process(bus: tb.Bus, caplog: pytest.LogCaptureFixture) -> None:
    pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
    kit.run("tb.Reader('camera/front').free_pool()")
    with pytest.raises(tb.FreedError):
        pool.write(bytes(4))
    assert WARNING.format("write") in caplog.text
    assert pool.free() is False
    assert WARNING.format("release") in caplog.text


def test_lines_of_the_librarys_own_threads(directory: object) -> None:
    """A client that talks nonsense is logged by the service thread."""
    out, err = kit.run("""
        import logging, pathlib, socket
        records = []
        class Keep(logging.Handler):
            def emit(self, record):
                records.append((record.name, record.levelname, record.getMessage(),
                                threading.current_thread() is threading.main_thread()))
        logging.getLogger("tensorbus").addHandler(Keep())
        tb.open_bus("camera")
        path = next(pathlib.Path(os.environ["TENSORBUS_DIR"]).rglob("camera.sock"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(str(path))
            client.send(b"noise" * 100)
            deadline = time.monotonic() + 10
            while not records and time.monotonic() < deadline:
                time.sleep(0.001)
        say(records[0][0], records[0][1], records[0][3])
        """)
    assert out == "tensorbus.endpoint WARNING True\n" and err == ""


def test_a_program_without_logging_still_sees_warnings(directory: object) -> None:
    _, err = kit.run("""
        tb.open_bus("camera")
        pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
        pool.free(); pool.free()
        """)
    assert err == WARNING.format("release") + "\n"


def test_a_handler_that_raises_does_not_break_the_call(bus: tb.Bus) -> None:
    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise ValueError("broken filter")

    logger = logging.getLogger("tensorbus.pool")
    broken = Broken()
    logger.addFilter(broken)
    seen: list[object] = []
    import sys

    hook, sys.unraisablehook = sys.unraisablehook, lambda info: seen.append(str(info.exc_value))
    try:
        pool = tb.Pool.register(tb.Spec(4, "u1"), name="front")
        pool.free()
        assert pool.free() is False
        with pytest.raises(tb.FreedError):
            pool.write(bytes(4))
    finally:
        logger.removeFilter(broken)
        sys.unraisablehook = hook
    assert seen == ["broken filter"] * 2


def test_the_level_comes_from_the_environment(directory: object) -> None:
    source = """
        import logging
        logging.basicConfig(level=logging.DEBUG, format="%(name)s %(levelname)s %(message)s")
        tb.open_bus("camera")
        pool = tb.Pool.register(tb.Spec(4, "u1"), name="front", slots=1, max_leases=4)
        tb.Reader("camera/front", max_leases=8)
        """
    assert "tensorbus.pool INFO" in kit.run(source, env={"TENSORBUS_LOG": "info"})[1]
    assert kit.run(source)[1] == ""


def test_log_in_many_threads(bus: tb.Bus, caplog: pytest.LogCaptureFixture) -> None:
    pools = [tb.Pool.register(tb.Spec(4, "u1")) for _ in range(4)]

    def work(pool: tb.Pool) -> None:
        pool.free()
        for _ in range(50):
            pool.free()

    threads = [threading.Thread(target=work, args=(pool,)) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caplog.records) == 200
