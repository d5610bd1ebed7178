#!/usr/bin/env python3
"""The pool example's flows with GPUs, on machines that the fake driver plays: every frame, previews on both
sides, exit codes, nothing left on any device; what is said where a GPU or the driver is missing; and the
pool verbs, which need no driver."""
import ctypes
import json
import os
import re
import signal

from run_kit import main, until

SOURCE = os.environ["TB_SOURCE_DIR"]
BUILD = os.environ["TB_BINARY_DIR"]
FLOWS = os.path.join(SOURCE, "examples", "pool")
FAKE = os.path.join(BUILD, "tests", "cuda", "fake")
TOO_OLD = os.path.join(BUILD, "tests", "cuda", "old")
FRAMES = 5
BYTES = 15000 * 512 * 8

ID = r"pool_sender_node_[0-9]+"
MISUSE = (r"tensorbus: warning: Attempt to %s memory pool \[" + ID +
          r"\] failed - reason: pool does not exist\. Operation aborted\.")
CLEANUP = [r"Detected 1 unreleased memory pool, releasing\.\.\.",
           r"Successfully released 1 unreleased memory pools!"]

# What copies between GPUs that do not reach each other keep for the next one, until the process ends.
KEPT = (r"process \d+: 2 allocations, 0 registrations, 0 blocks, 0 reservations, 0 opened, 0 externals, "
        r"2 streams, 5 events, 0 contexts, 0 bytes\n")


def prepare(bench, name, machine, **env):
    """Write a flow with some values of its `env` replaced; the fake driver plays a machine."""
    with open(os.path.join(FLOWS, name + ".yml"), encoding="utf-8") as file:
        text = file.read().replace("../../build/", BUILD + "/")
    for key, value in {"message_num": FRAMES, **env}.items():
        text, count = re.subn(rf"(?m)^(  {key}:).*$", rf"\1 {value}", text)
        assert count == 1, key
    bench.env.update(LD_LIBRARY_PATH=FAKE, FAKE_CUDA=machine, FAKE_CUDA_LEAKS=str(bench.path / "leaks"))
    return bench.write(name + ".yml", text)


def run(bench, *arguments, **env):
    """Exit code, and everything that was said."""
    code, out, err = bench.run(prepare(bench, *arguments, **env), seconds=120)
    return code, out.decode() + err


def leaks(bench):
    file = bench.path / "leaks"
    return file.read_text() if file.exists() else ""


def transfer(bench, name, machine, sides, kept="", **env):
    """A flow goes well; the sides are where the previews say that the frames are."""
    code, said = run(bench, name, machine, **env)
    assert code == 0, said
    for who, side in zip(("Sender", "Receiver"), sides):
        where = rf" on {side}" if side != "cpu" else ""
        assert re.search(rf"{who} preview: \[0, 1, 2, 3, 4, \.\.\.\]{where}\n", said), (who, said)
    assert f"{FRAMES} of {FRAMES} frames" in said, said
    assert re.search(r"Average transfer throughput: [1-9][0-9]*\.[0-9] MB/s", said), said
    assert not re.search(r"memory pool|tensorbus: (warning|error)|assert", said), said
    assert re.fullmatch(kept, leaks(bench)), leaks(bench)


def cpu2cuda(bench):
    transfer(bench, "cpu2cuda", "devices=2", ("cpu", "cuda:0"))


def cuda2cpu(bench):
    transfer(bench, "cuda2cpu", "devices=2", ("cuda:0", "cpu"))


def cuda_inner(bench):
    transfer(bench, "cuda_inner", "devices=1", ("cuda:0", "cuda:0"))


def cuda_inner_on_the_second(bench):
    transfer(bench, "cuda_inner", "devices=2", ("cuda:1", "cuda:1"), sender_device="cuda:1",
             receiver_device="cuda:1")


def cuda2cuda_by_peer_access(bench):
    """The frames go from one GPU to the other: no memory of the host is used."""
    transfer(bench, "cuda2cuda", "devices=2;peer=0-1", ("cuda:0", "cuda:1"))


def cuda2cuda_through_the_host(bench):
    transfer(bench, "cuda2cuda", "devices=2", ("cuda:0", "cuda:1"), KEPT)


def other_machines(bench):
    """GPUs without virtual memory, instances of divided ones, integrated ones."""
    for machine in ("devices=1;no_vmm=all", "devices=1;mig=all", "devices=1;integrated=all"):
        transfer(bench, "cuda_inner", machine, ("cuda:0", "cuda:0"), sender_device="cuda")


def misuse_and_clean_up(bench):
    """The lines are those of pools in host memory."""
    for scenario, wanted in (("duplicate_free", [MISUSE % "release"]),
                             ("read_after_free", [MISUSE % "read"]),
                             ("write_after_free", [MISUSE % "write"]), ("auto_cleanup", CLEANUP)):
        code, said = run(bench, "cuda_inner", "devices=1", memory_pool_scenario=scenario)
        lines = [line.split(" | ", 1)[-1] for line in said.splitlines()
                 if "memory pool" in line or re.search("tensorbus: (warning|error)", line)]
        assert code == 0 and len(lines) == len(wanted), said
        assert all(re.fullmatch(w, line) for w, line in zip(wanted, lines)), (wanted, lines)
        assert leaks(bench) == "", leaks(bench)


def one_gpu_is_too_few(bench):
    code, said = run(bench, "cuda2cuda", "devices=1")
    assert code == 1, said
    assert "this flow needs two GPUs; cuda_inner.yml needs one" in said, said
    assert "there is no cuda:1" in said and "preview" not in said, said
    assert "killed by" not in said, said


def no_driver(bench):
    drivers = [(FAKE, "devices=0"), (FAKE, "devices=1;empty=1"), (TOO_OLD, "")]
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        drivers.append(("", ""))  # really none
    for path, machine in drivers:
        for name in ("cpu2cuda", "cuda2cpu", "cuda2cuda", "cuda_inner"):
            flow = prepare(bench, name, machine)
            bench.env["LD_LIBRARY_PATH"] = path
            code, out, err = bench.run(flow)
            said = out.decode() + err
            assert code == 1, said
            assert "this flow needs an NVIDIA GPU and its driver; cpu2cpu.yml needs neither" in said, said
            assert "preview" not in said and "killed by" not in said, said
    # What uses no GPU does not notice.
    code, said = run(bench, "cpu2cpu", "devices=0")
    assert code == 0 and "Receiver preview" in said, said


def devices_that_are_none(bench):
    for value in ("gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda: 1", "CUDA:0"):
        code, said = run(bench, "cuda_inner", "devices=2", receiver_device=f"'{value}'")
        assert code == 1, said
        assert f"receiver_device is `{value}`: use cpu, cuda or cuda:0, cuda:1" in said, said
    bench.env["receiver_device"] = "cuda:0"
    code, said = run(bench, "in_flight", "devices=2")
    assert code == 1 and "this flow fills and reads frames with the CPU; use `cpu`" in said, said


def a_failing_driver(bench):
    """A copy that fails: the flow ends, and says which call it was."""
    bench.env["FAKE_CUDA_FAIL"] = "cuMemcpyDtoDAsync_v2:3:700"
    code, said = run(bench, "cuda_inner", "devices=1")
    assert code == 1 and "cuMemcpyDtoDAsync" in said and "killed by" not in said, said


def pool_verbs(bench):
    """list, info and watch see where a pool is; they need no driver."""
    without = dict(bench.env, LD_LIBRARY_PATH=TOO_OLD)
    process = bench.start(prepare(bench, "cuda2cuda", "devices=2;peer=0-1", message_num=1000000))
    (pool,) = until(lambda: [p for p in json.loads(bench.tool("pool", "list", "--json", env=without))["pools"]
                             if p["frames"] > 3] if bench.flows() else [], 60, "a pool with frames")
    assert pool["device"] == "cuda" and pool["device_memory"] == "vmm", pool
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", pool["device_uuid"]), pool
    uuid = bytes.fromhex(pool["device_uuid"].replace("-", ""))
    assert uuid.startswith(b"fake gpu 1"), uuid  # the receiver's
    assert pool["device_bytes"] >= 2 * BYTES > pool["segment_bytes"], pool
    path = f"{pool['process']}/{pool['pool']}"
    short = "cuda " + pool["device_uuid"][:8]
    head, line = bench.tool("pool", "list", env=without).splitlines()
    assert "device" in head.split() and short in line, (head, line)
    info = bench.tool("pool", "info", path, env=without)
    assert re.search(rf"(?m)^device +cuda, UUID {pool['device_uuid']}, memory vmm$", info), info
    assert json.loads(bench.tool("pool", "info", "--json", path, env=without))["device"] == "cuda"
    watched = bench.tool("pool", "watch", "-n", "2", "-i", "0.1", path, env=without).splitlines()
    assert len(watched) == 2 and all(one.endswith("  on " + short) for one in watched), watched
    process.send_signal(signal.SIGINT)
    bench.finish(process)

    process = bench.start(prepare(bench, "cpu2cpu", "devices=0", message_num=1000000))
    (pool,) = until(lambda: json.loads(bench.tool("pool", "list", "--json"))["pools"]
                    if bench.flows() else [], 60, "a pool")
    assert pool["device"] == "cpu" and pool["device_uuid"] is pool["device_bytes"] is None, pool
    path = f"{pool['process']}/{pool['pool']}"
    assert re.search(r"(?m)^device +cpu$", bench.tool("pool", "info", path))
    assert " on " not in bench.tool("pool", "watch", "-n", "1", "-i", "0.1", path)
    process.send_signal(signal.SIGINT)
    bench.finish(process)
    assert leaks(bench) == "", leaks(bench)


if __name__ == "__main__":
    main([cpu2cuda, cuda2cpu, cuda_inner, cuda_inner_on_the_second, cuda2cuda_by_peer_access,
          cuda2cuda_through_the_host, other_machines, misuse_and_clean_up, one_gpu_is_too_few, no_driver,
          devices_that_are_none, a_failing_driver, pool_verbs])
