#!/usr/bin/env python3
"""The end of pools under the runner: those that nobody freed are named in two lines, and the files that
foreign readers see are gone, also of a node that was killed."""
import os
import subprocess

from run_kit import main

NODE = r"""
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <tensorbus/tensorbus.h>

/* Registers a pool with a name for foreign readers and frees, keeps it, or is killed. */
int main(int argc, char **argv)
{
    tb_node *node;
    char id[TB_POOL_ID_SIZE];
    char word = 1;
    tb_tensor tensor = {.data = &word, .dtype = TB_I8, .ndim = 1, .shape = {1}};
    if (argc != 3 || tb_node_open(&node) != TB_OK) {
        return 1;
    }
    tb_register_options options = {.size = sizeof options, .doradma_name = argv[2]};
    if (tb_register_with(tb_node_bus(node), &tensor, &options, id) != TB_OK) {
        printf("%s\n", tb_last_error_text());
        return 1;
    }
    char path[200];
    snprintf(path, sizeof path, "/dev/shm/%s", argv[2]);
    FILE *file = fopen(path, "r");
    printf("%s %s\n", path, file != NULL ? "is there" : "is missing");
    fflush(stdout);
    if (strcmp(argv[1], "free") == 0 && tb_free(tb_node_bus(node), id) != TB_OK) {
        return 1;
    }
    if (strcmp(argv[1], "kill") == 0) {
        raise(SIGKILL);
    }
    tb_node_close(node);
    return 0;
}
"""


def prepare(bench, ends):
    """A node for each of the ends; the names of their files."""
    source, build = os.environ["TB_SOURCE_DIR"], os.environ["TB_BINARY_DIR"]
    bench.write("node.c", NODE)
    subprocess.run(["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{source}/include", "node.c",
                    "-o", "node", f"-L{build}", "-ltensorbus", f"-Wl,-rpath,{build}"],
                   cwd=bench.path, check=True)
    names = [f"dora_pool_test_{bench.mark[:8]}_{i}" for i in range(len(ends))]
    bench.write("flow.yml", "nodes:\n" + "".join(
        f"  - {{id: n{i}, path: ./node, args: {end} {names[i]}}}\n" for i, end in enumerate(ends)))
    return names


def gone(names):
    assert not [name for name in names if os.path.exists(f"/dev/shm/{name}")], names


def lines_of(out):
    return [line for line in out.decode().splitlines() if " | " not in line]


def nothing_is_left_over(bench):
    names = prepare(bench, ["free"])
    code, out, err = bench.run("flow.yml")
    assert code == 0 and out.count(b" is there\n") == 1, (out, err)
    assert not [line for line in lines_of(out) if "memory pool" in line], out
    gone(names)


def pools_that_nobody_freed(bench):
    """Two pools, though each has memory for foreign readers beside it."""
    names = prepare(bench, ["keep", "free", "keep"])
    code, out, err = bench.run("flow.yml")
    assert code == 0 and out.count(b" is there\n") == 3, (out, err)
    assert lines_of(out)[-2:] == ["Detected 2 unreleased memory pool, releasing...",
                                  "Successfully released 2 unreleased memory pools!"], out
    gone(names)


def pools_of_a_killed_node(bench):
    names = prepare(bench, ["kill"])
    code, out, err = bench.run("flow.yml")
    assert code == 1 and "killed by SIGKILL" in err, (code, err)
    assert lines_of(out)[-2:] == ["Detected 1 unreleased memory pool, releasing...",
                                  "Successfully released 1 unreleased memory pools!"], out
    gone(names)


if __name__ == "__main__":
    main([nothing_is_left_over, pools_that_nobody_freed, pools_of_a_killed_node])
