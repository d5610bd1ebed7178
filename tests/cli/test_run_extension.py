#!/usr/bin/env python3
"""The extension channel under the real runner: what a killed node had stored is dropped and its reader
told, also while the flow goes on and the node comes back; a killed runner takes everything with it."""
import json
import os
import signal
import subprocess

from run_kit import main, until

NODE = r"""
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <tensorbus/tensorbus.h>

static tb_node *node;

static void load(const char *key)
{
    tb_extension_value *value;
    size_t size;
    tb_status status = tb_extension_load(node, "test", key, 0, &value);
    if (status == TB_OK) {
        const char *bytes = tb_extension_value_bytes(value, &size);
        printf("loaded %s: %zu bytes %.*s\n", key, size, size < 100 ? (int)size : 0, bytes);
        tb_extension_value_release(value);
    } else {
        printf("load %s: %s\n", key, tb_status_name(status));
    }
}

static void store(const char *key, const void *bytes, size_t size)
{
    tb_status status = tb_extension_store(node, "test", key, bytes, size);
    printf("store %s: %s\n", key, status == TB_OK ? "ok" : tb_last_error_text());
}

static int owner(void)
{
    tb_event *event;
    static char large[100000];
    load("small"); /* of a former life there is nothing */
    store("small", "hello", 5);
    store("large", large, sizeof large);
    while (tb_node_next(node, TB_FOREVER, &event) == TB_OK) {
        tb_event_release(event);
    }
    return 0;
}

static int reader(void)
{
    tb_extension_value *value;
    while (tb_extension_load(node, "test", "large", 0, &value) == TB_AGAIN) {
        tb_event *event;
        if (tb_node_next(node, TB_MILLIS(2), &event) == TB_OK) {
            tb_event_release(event);
        }
    }
    tb_extension_value_release(value);
    load("small");
    load("large");
    for (int dropped = 0; dropped < 2;) {
        tb_extension_keys *keys;
        tb_status status = tb_extension_drain(node, "test", TB_FOREVER, &keys);
        if (status != TB_OK) {
            printf("drain: %s\n", tb_last_error_text());
            return 0;
        }
        for (size_t i = 0; i < tb_extension_keys_count(keys); i++, dropped++) {
            printf("dropped %s\n", tb_extension_keys_at(keys, i));
        }
        tb_extension_keys_destroy(keys);
    }
    load("small");
    return 0;
}

int main(int argc, char **argv)
{
    FILE *log = fopen(argv[2], "a"); /* outlives the runner, unlike standard output */
    dup2(fileno(log), 1);
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGTERM, SIG_IGN); /* the guard's, when the runner is killed: the node ends by itself */
    if (argc != 3 || tb_node_open(&node) != TB_OK) {
        printf("open: %s\n", tb_last_error_text());
        return 1;
    }
    int code = strcmp(argv[1], "owner") == 0 ? owner() : reader();
    tb_node_close(node);
    return code;
}
"""

FLOW = """
nodes:
  - {id: owner, path: ./node, args: owner owner.txt%s}
  - {id: reader, path: ./node, args: reader reader.txt}
"""


def prepare(bench, more=""):
    source, build = os.environ["TB_SOURCE_DIR"], os.environ["TB_BINARY_DIR"]
    bench.write("node.c", NODE)
    subprocess.run(["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{source}/include", "node.c",
                    "-o", "node", f"-L{build}", "-ltensorbus", f"-Wl,-rpath,{build}"],
                   cwd=bench.path, check=True)
    bench.write("flow.yml", FLOW % more)


def said(bench, node):
    file = bench.path / f"{node}.txt"
    return file.read_text() if file.exists() else ""


def pid_of(bench, node):
    nodes = json.loads(bench.tool("node", "list", "--json"))["nodes"]
    return next(n["pid"] for n in nodes if n["id"] == node)


LOADED = "loaded small: 5 bytes hello\nloaded large: 100000 bytes \n"


def a_killed_owner_comes_back_with_nothing(bench):
    prepare(bench, ", restart_policy: on-failure")
    run = bench.start("flow.yml")
    until(lambda: said(bench, "reader") == LOADED, 20, "both are loaded")
    os.kill(pid_of(bench, "owner"), signal.SIGKILL)
    until(lambda: said(bench, "reader").count("dropped ") == 2, 20, "both are dropped")
    until(lambda: said(bench, "owner").count("store large") == 2, 20, "its second life")
    bench.tool("stop")
    code, out, err = bench.finish(run)
    assert code == 0, (code, out, err)
    assert said(bench, "owner") == 2 * "load small: TB_AGAIN\nstore small: ok\nstore large: ok\n"
    text = said(bench, "reader")
    assert text.startswith(LOADED) and "dropped small\n" in text and "dropped large\n" in text, text


def a_killed_runner_takes_all_with_it(bench):
    prepare(bench)
    run = bench.start("flow.yml", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: said(bench, "reader") == LOADED, 20, "both are loaded")
    os.kill(run.pid, signal.SIGKILL)
    bench.finish(run)
    until(lambda: said(bench, "reader") != LOADED, 10, "the reader has heard of it")
    assert f"drain: the runner (process {run.pid}) is gone, and extension values with it" in said(
        bench, "reader")
    until(lambda: not bench.processes(), 10, "the nodes have ended")
    bench.tool("clean")


if __name__ == "__main__":
    main([a_killed_owner_comes_back_with_nothing, a_killed_runner_takes_all_with_it])
