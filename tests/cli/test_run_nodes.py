#!/usr/bin/env python3
"""Real nodes under the real runner: the node of docs/flows.md, and flows in which one side of an
input is no node, ends early or comes back: they end by themselves."""
import json
import os
import re
import subprocess
import time

from run_kit import main, until

NODE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <tensorbus/tensorbus.h>

/* SEND messages on `out`, then everything that comes; with CRASH_AT the first life ends there. */
int main(void)
{
    tb_node *node;
    tb_event *event;
    tb_status status;
    const char *send = getenv("SEND");
    const char *crash_at = getenv("CRASH_AT");
    const char *pause_at = getenv("PAUSE_AT");
    long taken = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (tb_node_open(&node) != TB_OK) {
        fprintf(stderr, "open: %s\n", tb_last_error_text());
        return 1;
    }
    FILE *lives = fopen("lives", "a+");
    fprintf(lives, "%s\n", tb_node_id(node));
    rewind(lives);
    int life = 0;
    for (char line[80]; fgets(line, sizeof line, lives) != NULL;) {
        line[strcspn(line, "\n")] = '\0';
        life += strcmp(line, tb_node_id(node)) == 0;
    }
    fclose(lives);
    for (long n = 1; send != NULL && n <= atol(send); n++) {
        if (tb_node_send(node, "out", tb_bytes(&n, sizeof n), NULL, TB_SECONDS(20)) != TB_OK) {
            fprintf(stderr, "send: %s\n", tb_last_error_text());
            return 1;
        }
        if (pause_at != NULL && n == atol(pause_at)) {
            for (FILE *go = NULL; (go = fopen("go", "r")) == NULL;) {
                tb_event *none;
                (void)!tb_node_next(node, TB_MILLIS(5), &none);
            }
        }
    }
    if (send != NULL && pause_at == NULL) { /* without inputs it would wait for STOP */
        tb_node_close(node);
        return 0;
    }
    while ((status = tb_node_next(node, TB_FOREVER, &event)) == TB_OK) {
        size_t bytes;
        long number = 0;
        const void *data = tb_event_bytes(event, &bytes);
        if (tb_event_get_type(event) == TB_EVENT_INPUT && bytes == sizeof number) {
            memcpy(&number, data, sizeof number);
        }
        printf("life %d: event %d number %ld dropped %llu\n", life, (int)tb_event_get_type(event),
               number, (unsigned long long)tb_event_dropped(event));
        tb_event_release(event);
        if (crash_at != NULL && life == 1 && ++taken == atol(crash_at)) {
            abort();
        }
    }
    if (status != TB_CLOSED) {
        fprintf(stderr, "next: %s\n", tb_last_error_text());
        return 1;
    }
    tb_node_close(node);
    if (getenv("LINGER") != NULL) { /* work that comes after the node */
        struct timespec pause = {.tv_sec = 3};
        printf("closed\n");
        thrd_sleep(&pause, NULL);
        printf("all written\n");
    }
    return 0;
}
"""


def compile_node(bench, text, name):
    source, build = os.environ["TB_SOURCE_DIR"], os.environ["TB_BINARY_DIR"]
    bench.write(f"{name}.c", text)
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{source}/include", f"{name}.c",
                    "-o", name, f"-L{build}", "-ltensorbus", f"-Wl,-rpath,{build}"],
                   cwd=bench.path, check=True)


def blocks_of_the_documentation(language):
    with open(os.path.join(os.environ["TB_SOURCE_DIR"], "docs", "flows.md"), encoding="utf-8") as file:
        return re.findall(rf"^```{language}\n(.*?)^```$", file.read(), re.M | re.S)


def compile_the_nodes_of_the_documentation(bench):
    """`motion`, which takes images, and `camera`, which sends handles."""
    motion, camera = blocks_of_the_documentation("c")
    assert motion.count("\n") <= 27 and camera.count("\n") <= 48, (motion, camera)
    compile_node(bench, motion, "motion")
    compile_node(bench, camera, "camera")


def the_nodes_of_the_documentation(bench):
    compile_the_nodes_of_the_documentation(bench)
    compile_node(bench, NODE, "node")
    bench.write("flow.yml", """
nodes:
  - {id: source, path: ./node, env: {SEND: 3}, outputs: [out]}
  - {id: motion, path: ./motion, inputs: {image: source/out}, outputs: [boxes]}
  - {id: view, path: ./node, inputs: {boxes: motion/boxes}}
""")
    code, out, err = bench.run("flow.yml")
    assert code == 0 and out.count(b"motion | image: 8 rows\n") == 3, (code, out, err)
    assert out.count(b"view | life 1: event 1 ") == 3, out


def the_handles_of_the_documentation(bench):
    """The page's flow as it stands: every image is read in the camera's own pool, written in place."""
    compile_the_nodes_of_the_documentation(bench)
    (flow,) = (block for block in blocks_of_the_documentation("yaml") if "hz/30" in block)
    bench.write("flow.yml", flow)
    run = bench.start("flow.yml")
    until(lambda: bench.flows() and bench.logs("motion").count(b"image: 1080 rows\n") >= 10, 20,
          "ten images came")
    (pool,) = json.loads(bench.tool("pool", "list", "--json"))["pools"]
    assert (pool["process"], pool["pool"], pool["readers"]) == ("camera", "frames", 1), pool
    assert pool["frames"] >= 10 and pool["copies"] == 0, pool
    bench.tool("stop")
    code, out, err = bench.finish(run)
    assert code == 0 and len(re.findall(r"^  (?:camera|motion) +exit 0 ", err, re.M)) == 2, (code, out, err)
    assert b"camera | " not in out, out


def a_receiver_that_is_no_node(bench):
    compile_node(bench, NODE, "node")
    bench.write("flow.yml", """
nodes:
  - {id: src, path: ./node, env: {SEND: 20}, outputs: [out]}
  - {id: dst, path: 'true', inputs: {i: {source: src/out, queue_policy: backpressure}}}
""")
    code, out, err = bench.run("flow.yml")
    assert code == 0 and re.search(r"^  src +exit 0 ", err, re.M), (code, out, err)


def a_receiver_that_does_not_open_its_node(bench):
    """After 10 s the sender says for whom it waits, and why."""
    compile_node(bench, NODE, "node")
    bench.write("flow.yml", """
nodes:
  - {id: src, path: ./node, env: {SEND: 1}, outputs: [out]}
  - {id: dst, path: sleep, args: '13', inputs: {i: src/out}}
""")
    code, out, err = bench.run("flow.yml")
    assert code == 0 and re.search(
        rb"src \| .*waits for `dst/i` .* \(it has not ended, but has not opened its node yet\)", out), out


def a_sender_that_is_no_node(bench):
    compile_node(bench, NODE, "node")
    bench.write("flow.yml", """
nodes:
  - {id: src, path: sleep, args: 1, outputs: [out]}
  - {id: dst, path: ./node, inputs: {i: src/out}}
""")
    code, out, err = bench.run("flow.yml")
    assert code == 0 and b"dst | life 1: event 2 " in out, (code, out, err)


def a_receiver_that_comes_back_after_the_sender(bench):
    compile_node(bench, NODE, "node")
    bench.write("flow.yml", """
nodes:
  - {id: src, path: ./node, env: {SEND: 20}, outputs: [out]}
  - id: dst
    path: ./node
    env: {CRASH_AT: 10}
    restart_policy: on-failure
    inputs: {i: {source: src/out, queue_size: 20}}
""")
    code, out, err = bench.run("flow.yml")
    assert code == 0 and b"dst | life 1: event 1 number 10 dropped 0\n" in out, (code, out, err)
    assert b"dst | life 2: event 2 number 0 " in out, out
    assert re.search(r"^  dst +exit 0 .* 1$", err, re.M), err


def a_node_on_its_way_out_has_its_grace(bench):
    """It has closed its node, and cannot be told STOP any more."""
    compile_node(bench, NODE, "node")
    bench.write("flow.yml", """
nodes:
  - {id: src, path: ./node, env: {SEND: 3}, outputs: [out]}
  - {id: dst, path: ./node, env: {LINGER: 1}, inputs: {i: src/out}}
""")
    run = bench.start("flow.yml")
    until(lambda: bench.flows() and b"closed" in bench.logs("dst"), 10, "it has closed its node")
    bench.tool("stop")
    code, out, err = bench.finish(run)
    assert code == 0 and b"dst | all written\n" in out, (code, out, err)
    assert re.search(r"^  dst +exit 0 ", err, re.M), err


def another_life_is_not_on_its_way_out(bench):
    """The first life was a node; the second is none, and gets SIGTERM at once."""
    compile_node(bench, NODE, "node")
    bench.script("twice.sh", "if [ -e lives ]; then echo second; exec sleep 60; fi; exec ./node\n")
    bench.write("flow.yml", """
nodes:
  - {id: node, path: ./twice.sh, env: {CRASH_AT: 1}, restart_policy: on-failure,
     inputs: {tick: tensorbus/timer/millis/5}}
""")
    run = bench.start("flow.yml")
    until(lambda: bench.flows() and b"second" in bench.logs("node"), 10, "its second life")
    begin = time.monotonic()
    bench.tool("stop")
    code, out, err = bench.finish(run)
    assert time.monotonic() - begin < 8 and re.search(r"^  node +stopped by SIGTERM ", err, re.M), err


def killed_outside_any_flow(bench):
    """Its socket is all that it leaves, and `clean` removes it."""
    compile_node(bench, NODE, "node")
    env = dict(bench.env, TENSORBUS_NODE="lone", TENSORBUS_OUTPUTS="",
               TENSORBUS_INPUTS="tick=tensorbus/timer/millis/100")
    process = subprocess.Popen([bench.path / "node"], cwd=bench.path, env=env,
                               stdout=subprocess.DEVNULL)
    until(lambda: (bench.path / "lives").exists(), 10, "it is open")
    bench.tool("clean")
    assert list((bench.runtime / "default").glob("*.sock")), "its socket is in use"
    process.kill()
    process.wait()
    assert list((bench.runtime / "default").glob("*.sock")), "nobody was left to remove it"
    bench.tool("clean")
    assert not (bench.runtime / "default").exists()


def what_a_restart_missed_is_counted(bench):
    compile_node(bench, NODE, "node")
    bench.write("flow.yml", """
nodes:
  - {id: src, path: ./node, env: {SEND: 21, PAUSE_AT: 20}, outputs: [out],
     inputs: {tick: tensorbus/timer/millis/5}}
  - id: dst
    path: ./node
    env: {CRASH_AT: 10}
    restart_policy: on-failure
    inputs: {i: {source: src/out, queue_size: 10, queue_policy: backpressure}}
""")
    run = bench.start("flow.yml", "--grace", "5")
    lives = bench.path / "lives"
    until(lambda: lives.exists() and lives.read_text().count("dst") == 2, 20, "the second life")
    bench.write("go", "")
    until(lambda: b"number 21" in bench.logs("dst"), 20, "the last message")
    bench.tool("stop")
    code, out, err = bench.finish(run)
    assert b"dst | life 2: event 1 number 21 dropped 10\n" in out, (code, out, err)


if __name__ == "__main__":
    main([the_nodes_of_the_documentation, the_handles_of_the_documentation,
          a_receiver_that_is_no_node, a_receiver_that_does_not_open_its_node, a_sender_that_is_no_node,
          a_receiver_that_comes_back_after_the_sender, a_node_on_its_way_out_has_its_grace,
          another_life_is_not_on_its_way_out, killed_outside_any_flow,
          what_a_restart_missed_is_counted])
