"""The command on flow files: cases F01, F02, F03 (missing program), F09, F10 as a user meets them, and
the rules that hold for every verb: exit codes, data on standard output, words on standard error."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TENSORBUS = os.path.join(os.environ["TB_BINARY_DIR"], "bin", "tensorbus")


def run(*words, cwd=None, env=None, stdout=subprocess.PIPE):
    return subprocess.run(
        [TENSORBUS, *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=60,
    )


class Flows(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="tb-cli-")
        self.addCleanup(shutil.rmtree, self.directory)
        self.write("tool", "#!/bin/sh\nexit 0\n", 0o755)

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.directory, name)
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        os.chmod(path, mode)
        return path

    def refused(self, text, *says, env=None):
        """`validate` names the file and place, says each of the texts, prints no data, exits 2."""
        self.write("f.yml", text)
        done = run("validate", "f.yml", cwd=self.directory, env=env)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stdout, "")
        for said in says:
            self.assertIn(said, done.stderr)
        for verb in ("graph", "build"):
            again = run(verb, "f.yml", cwd=self.directory, env=env)
            self.assertEqual((again.returncode, again.stdout), (2, ""))
            self.assertIn(says[0], again.stderr)
        return done.stderr

    def test_F01_broken_files(self):
        node = "nodes:\n  - id: a\n    path: ./tool\n"
        self.refused(
            node + "nodez: 1\n",
            "f.yml:4:1: unknown key `nodez` in the root of the file; did you mean `nodes`?",
        )
        self.refused(
            node + "    ouputs: []\n",
            "f.yml:4:5: unknown key `ouputs` in node `a`; did you mean `outputs`?",
        )
        self.refused(
            node + "    deploy:\n      machin: x\n",
            "f.yml:5:7: unknown key `machin` in `deploy` of node `a`; did you mean `machine`?",
        )
        self.refused("nodes:\n\t- id: a\n", "f.yml:2:1: a tab as indentation")
        self.refused("", "f.yml:1:1: the file is empty")
        self.refused("env: {A: 1}\n", "f.yml:1:1: `nodes` is missing")
        self.refused("nodes:\n  - &x {id: a, path: b}\n  - *x\n", "f.yml:2:5: anchors (`&x`)")
        with open(os.path.join(self.directory, "big.yml"), "wb") as big:
            big.truncate(100_000_000)
        done = run("validate", "big.yml", cwd=self.directory)
        self.assertEqual(done.returncode, 2)
        self.assertIn("big.yml: the file has 100000000 bytes, a flow has at most", done.stderr)
        done = run("validate", "gone.yml", cwd=self.directory)
        self.assertEqual(done.returncode, 2)
        self.assertIn("gone.yml: cannot be read: No such file or directory", done.stderr)

    def test_F02_ends_that_do_not_exist(self):
        flow = (
            "nodes:\n  - {{id: camera, path: ./tool, outputs: [image]}}\n"
            "  - {{id: motion, path: ./tool, outputs: [boxes], inputs: {{x: {}}}}}\n"
        )
        self.refused(
            flow.format("camra/image"),
            "input `x` of node `motion` takes `camra/image`, but there is no node `camra`; did you "
            "mean `camera`?; nodes: camera, motion",
        )
        self.refused(
            flow.format("camera/imge"),
            "input `x` of node `motion` takes `camera/imge`, but node `camera` has no output "
            "`imge`; did you mean `image`?; its outputs: image",
        )
        self.refused(
            flow.format("motion/boxes"),
            "input `x` of node `motion` takes `motion/boxes`, an output of the same node",
        )

    def test_F03_missing_program(self):
        self.write("f.yml", "nodes:\n  - {id: a, path: ./gone}\n  - {id: b, path: ./data}\n")
        self.write("data", "x")
        done = run("validate", "f.yml", cwd=self.directory)
        self.assertEqual(done.returncode, 2)
        self.assertIn("f.yml:2:19: program of node `a`: `./gone` does not exist", done.stderr)
        self.assertIn("f.yml:3:19: program of node `b`: `./data` is not executable", done.stderr)
        self.assertEqual(run("validate", "--no-programs", "f.yml", cwd=self.directory).returncode, 0)
        done = run("build", "f.yml", cwd=self.directory)
        self.assertEqual(done.returncode, 1)
        self.assertIn("program of node `a`: `./gone` does not exist", done.stderr)

    def test_F09_variables(self):
        node = "nodes:\n  - id: a\n    path: $WHERE/tool\n    build: %s\n"
        good = node % "sh -c 'echo \"$@\" >words' x $WHERE ${WHERE}/y \"$SPACED\" '$WHERE' 'a  b' $$"
        self.write("f.yml", good)
        env = {"WHERE": self.directory, "SPACED": "p  q"}
        done = run("build", "f.yml", cwd=self.directory, env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(self.directory, "words")) as words:
            self.assertEqual(
                words.read(), f"{self.directory} {self.directory}/y p  q $WHERE a  b $\n"
            )
        self.refused(
            node % "x $UNSET_HERE", "f.yml:4:12: `build` of node `a`: variable `UNSET_HERE` is not", env=env
        )
        self.refused("nodes:\n  - {id: a, path: ./tool, args: $UNSET_HERE}\n", "variable `UNSET_HERE`")
        self.refused("env: {A: $UNSET_HERE}\nnodes: []\n", "variable `UNSET_HERE`")

    def test_F10_variables_of_the_runner(self):
        for key in ("TENSORBUS_NODE", "TENSORBUS_FLOW", "TENSORBUS_DIR", "LD_PRELOAD"):
            self.refused(
                "nodes:\n  - {id: a, path: ./tool, env: {%s: x}}\n" % key,
                "`env` of node `a` may not set `%s`" % key,
            )
            self.refused(
                "env: {%s: x}\nnodes: [{id: a, path: ./tool}]\n" % key,
                "`env` of the root may not set `%s`" % key,
            )

    def test_all_mistakes_are_listed(self):
        said = self.refused(
            "nodes:\n" + "".join("  - {id: n%d, path: ./tool, x: 1}\n" % i for i in range(30)),
            "f.yml:2:28: unknown key `x`",
        )
        self.assertEqual(said.count("unknown key `x`"), 20)
        self.assertIn("f.yml: and 10 more\n", said)

    def test_validate_says_ok_for_each_file(self):
        self.write("a.yml", "nodes: [{id: a, path: ./tool, outputs: [x]}]\n")
        self.write("b.yml", "nodes: [{id: a, path: ./tool}, 7]\n")
        done = run("validate", "a.yml", "b.yml", cwd=self.directory)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stdout, "a.yml: ok: 1 node, 0 inputs, 1 output\n")
        done = run("validate", "--json", "a.yml", "b.yml", cwd=self.directory)
        self.assertEqual(done.returncode, 2)
        good, bad = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(
            good,
            {
                "file": "a.yml", "ok": True, "name": "a", "nodes": 1, "inputs": 0, "outputs": 1,
                "errors": [], "unlisted": 0,
            },
        )
        self.assertEqual((bad["ok"], bad["errors"][0]["line"]), (False, 1))
        self.assertIn("node 2 must be a map", bad["errors"][0]["text"])

    def test_graph(self):
        self.write(
            "f.yml",
            "nodes:\n  - {id: a, path: ./tool, outputs: [x]}\n"
            "  - {id: b, path: ./not-built-yet, inputs: {x: a/x, t: tensorbus/timer/hz/2}}\n",
        )
        done = run("graph", "f.yml", cwd=self.directory)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(done.stdout.startswith("flowchart LR\n"))
        self.assertIn('n0 -->|"x"| n1', done.stdout)
        self.assertIn('(["every 500 ms"])', done.stdout)
        # Without Graphviz the error names the way out; nothing is left half written.
        done = run("graph", "--svg", "f.svg", "f.yml", cwd=self.directory, env={"PATH": "/nowhere"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("install the package `graphviz`", done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.directory, "f.svg")))
        if shutil.which("dot") is not None:
            done = run("graph", "--svg", "f.svg", "f.yml", cwd=self.directory)
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
            with open(os.path.join(self.directory, "f.svg")) as svg:
                self.assertIn("</svg>", svg.read())
            done = run("graph", "--svg", "/nowhere/f.svg", "f.yml", cwd=self.directory)
            self.assertEqual(done.returncode, 1)

    def test_build_exit_codes(self):
        self.write("f.yml", "nodes: [{id: a, path: ./tool, build: sh -c 'echo out; exit 7'}]\n")
        done = run("build", "f.yml", cwd=self.directory)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("out\n", done.stderr)
        self.assertIn("f.yml:1: build of node `a`", done.stderr)
        self.assertIn("ended with exit code 7", done.stderr)

    def test_ctrl_c_during_build(self):
        self.write(
            "f.yml", "nodes: [{id: a, path: ./tool, build: sh -c 'echo $$ >pid; exec sleep 60'}]\n"
        )
        child = subprocess.Popen(
            [TENSORBUS, "build", "f.yml"], cwd=self.directory, stderr=subprocess.PIPE, text=True
        )
        pid_file = os.path.join(self.directory, "pid")
        deadline = time.monotonic() + 20
        while not (os.path.exists(pid_file) and os.path.getsize(pid_file) > 1):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=20)[1]
        self.assertEqual(child.returncode, 130)
        self.assertIn("interrupted", said)
        with open(pid_file) as file:
            self.assertRaises(ProcessLookupError, os.kill, int(file.read()), 0)

    def test_usage(self):
        cases = [
            ([], 2, "usage: tensorbus VERB"),
            (["vaildate"], 2, "unknown verb `vaildate`; did you mean `validate`?"),
            (["zzzzzzzz"], 2, "`tensorbus --help` lists them"),
            (["lsit"], 2, "unknown verb `lsit`; did you mean `list`?"),
            (["show"], 2, "unknown verb `show`; `tensorbus --help` lists them"),  # not `stop`
            (["test"], 2, "unknown verb `test`; `tensorbus --help` lists them"),  # not `list`
            (["list", "--log"], 2, "unknown option `--log`\n"),
            (["validate"], 2, "which flow?"),
            (["validate", "--jsn", "f"], 2, "unknown option `--jsn`; did you mean `--json`?"),
            (["run", "-no-biuld", "f"], 2, "unknown option `-no-biuld`; did you mean `--no-build`?"),
            (["graph", "--sgv", "f"], 2, "unknown option `--sgv`; did you mean `--svg`?"),
            (["stop", "--timout", "1"], 2, "unknown option `--timout`; did you mean `--timeout`?"),
            (["list", "--jason"], 2, "unknown option `--jason`; did you mean `--json`?"),
            (["clean", "--" + "x" * 5000], 2, "x`\n"),
            (["build", "a", "b"], 2, "one flow at a time"),
            (["build", "--out"], 2, "--out needs a directory"),
            (["graph", "--svg"], 2, "--svg needs a file"),
            (["version", "x"], 2, "unexpected `x`"),
            (["pool"], 2, "what to do: `list`, `info` or `watch`\n"),
            (["pool", "top"], 2, "`list`, `info` or `watch`, not `top`"),
            (["pool", "list", "--jsn"], 2, "unknown option `--jsn`; did you mean `--json`?"),
            (["pool", "info", "--flow"], 2, "--flow needs a value"),
            (["bench", "local", "--quik"], 2, "unknown option `--quik`; did you mean `--quick`?"),
        ]
        for words, code, says in cases:
            done = run(*words)
            self.assertEqual((done.returncode, done.stdout), (code, ""), words)
            self.assertIn(says, done.stderr)

    def test_help_of_every_verb(self):
        done = run("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        verbs = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
        self.assertIn("validate", verbs)
        for verb in verbs:
            done = run(verb, "--help")
            self.assertEqual((done.returncode, done.stderr), (0, ""), verb)
            self.assertTrue(done.stdout.lower().startswith("usage: tensorbus " + verb), verb)
            self.assertRegex(done.stdout.lower(), r"examples?:\n", verb)
            self.assertLess(max(map(len, done.stdout.splitlines())), 100, verb)
            self.assertEqual(run("help", verb).stdout, done.stdout, "`help VERB` is the same")
        self.assertEqual(run("help", "vaildate").returncode, 2)

    def test_version(self):
        self.assertRegex(run("version").stdout, r"^tensorbus \d+\.\d+\.\d+ \(Linux ")
        self.assertRegex(json.loads(run("version", "--json").stdout)["tensorbus"], r"^\d+\.\d+\.\d+$")
        for word in ("--version", "-V"):
            self.assertEqual(run(word).stdout, run("version").stdout)
            self.assertEqual(run(word, "--json").stdout, run("version", "--json").stdout)

    def test_a_full_disk_is_a_failure(self):
        with open("/dev/full", "w") as full:
            done = run("version", stdout=full)
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard output could not be written", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv, verbosity=1)
