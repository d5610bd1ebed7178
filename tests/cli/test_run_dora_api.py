#!/usr/bin/env python3
"""`run --dora-api`: where the folder that answers to `import dora` is looked for, in which order, and what
Python nodes then get. The folders are stand-ins; the real one is tested in tests/python."""
import os
import pathlib
import shutil
import subprocess
import sys

import run_kit
from run_kit import main

NODE = """
import os, sys
import dora, dora_tensor_pool
print(dora.WHO, dora_tensor_pool.WHO)
print("path", os.environ["PYTHONPATH"])
try:
    import tensorbus
    print("package", tensorbus.WHO)
except ImportError:
    print("package none")
"""
FLOW = "nodes:\n  - {id: n, path: n.py}\n"


def make_folder(parent, who):
    """A stand-in for python/tensorbus/dora_api."""
    folder = parent / "dora_api"
    for name in ("dora", "dora_tensor_pool"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"WHO = '{who}'\n")
    return folder


def make_package(parent, who, core=False):
    """A stand-in for the installed package, with the folder in it."""
    package = parent / "tensorbus"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"WHO = '{who}'\n")
    if core:
        (package / "_core.abi3.so").write_text("")
    return make_folder(package, who)


def place_command(bench, directory):
    """A copy of the command in a directory that has nothing of ours beside it."""
    directory.mkdir(parents=True)
    bench.command = shutil.copy(run_kit.TENSORBUS, directory / "tensorbus")


def run(bench, *arguments, flow=FLOW, code=0, **variables):
    """Run the flow with a command that may lie anywhere; standard output and standard error."""
    bench.write("n.py", NODE)
    bench.write("flow.yml", flow)
    done = subprocess.run(
        [getattr(bench, "command", run_kit.TENSORBUS), "run", *arguments, "flow.yml"], cwd=bench.path,
        env={**bench.env, **{k: str(v) for k, v in variables.items()}}, capture_output=True, timeout=60)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout.decode(), done.stderr.decode()


def lines(out, node="n"):
    return [line.split(" | ", 1)[1] for line in out.splitlines() if line.startswith(f"{node} | ")]


def the_variable_comes_first(bench):
    place_command(bench, bench.path / "prefix" / "bin")
    make_package(bench.path / "prefix" / "lib" / "python3.11" / "site-packages", "beside")
    told = make_folder(bench.path / "told", "told")
    out, _ = run(bench, "--dora-api", TENSORBUS_DORA_API=told)
    assert lines(out)[:2] == ["told told", f"path {told}"], out


def a_variable_that_is_wrong(bench):
    (bench.path / "wrong" / "dora").mkdir(parents=True)
    (bench.path / "wrong" / "dora" / "__init__.py").write_text("")
    _, err = run(bench, "--dora-api", code=2, TENSORBUS_DORA_API=bench.path / "wrong")
    assert f"flow.yml:2:19: node `n`: TENSORBUS_DORA_API is {bench.path}/wrong, and there are no" in err, err
    assert err.count("flow.yml:") == 1, err


def without_the_option_nothing_changes(bench):
    told = make_folder(bench.path / "told", "told")
    bench.write("plain.py", "import os; print(os.environ.get('PYTHONPATH'))")
    out, _ = run(bench, flow="nodes:\n  - {id: n, path: plain.py}\n", TENSORBUS_DORA_API=told)
    assert lines(out) == ["None"], out


def what_was_on_the_path_stays_behind_it(bench):
    told = make_folder(bench.path / "told", "told")
    bench.script("shell.sh", 'echo "$PYTHONPATH"\n')
    flow = """
nodes:
  - {id: n, path: n.py}
  - {id: own, path: n.py, env: {PYTHONPATH: "/own:$PYTHONPATH"}}
  - {id: shell, path: shell.sh}
"""
    out, _ = run(bench, "--dora-api", flow=flow, TENSORBUS_DORA_API=told, PYTHONPATH="/outer:/other")
    assert lines(out)[1] == f"path {told}:/outer:/other", out
    assert lines(out, "own")[1] == f"path {told}:/own:/outer:/other", out
    assert lines(out, "shell") == ["/outer:/other"], "a program that is no Python file sees nothing of it"


def beside_the_command_in_a_prefix(bench):
    """As pip installs both; of several Pythons the newest."""
    place_command(bench, bench.path / "prefix" / "bin")
    for version in ("3.9", "3.12", "3.11"):
        folder = make_package(bench.path / "prefix" / "lib" / f"python{version}" / "site-packages",
                              version, core=True)
        if version == "3.12":
            newest = folder
    out, _ = run(bench, "--dora-api")
    assert lines(out) == ["3.12 3.12", f"path {newest}", "package none"], out


def beside_the_command_in_a_build_folder(bench):
    """Its package can be imported as well, unless there is another one."""
    place_command(bench, bench.path / "build" / "bin")
    source = make_folder(bench.path / "source", "source")
    built = make_package(bench.path / "build" / "python", "built", core=True)
    shutil.rmtree(built)
    built.symlink_to(source)
    (bench.path / "build" / "bin" / "dora_api").symlink_to(make_folder(bench.path / "link", "link"))
    out, _ = run(bench, "--dora-api")
    assert lines(out) == ["source source", f"path {source}:{bench.path}/build/python", "package built"], out
    make_package(bench.path / "mine", "mine")
    out, _ = run(bench, "--dora-api", PYTHONPATH=bench.path / "mine")
    assert lines(out)[2] == "package mine", out
    shutil.rmtree(bench.path / "build" / "python") # built without the Python package
    out, _ = run(bench, "--dora-api")
    assert lines(out)[0] == "link link", out


def the_real_build_folder(bench):
    """The command as it was built finds the folder of its source tree."""
    real = pathlib.Path(os.environ["TB_SOURCE_DIR"]).resolve() / "python" / "tensorbus" / "dora_api"
    bench.write("where.py", "import os; print(os.environ['PYTHONPATH'].split(':')[0])")
    out, _ = run(bench, "--dora-api", flow="nodes:\n  - {id: n, path: where.py}\n")
    assert lines(out) == [str(real)], out


def the_interpreter_is_asked(bench):
    place_command(bench, bench.path / "bare")
    folder = make_package(bench.path / "site", "asked")
    out, _ = run(bench, "--dora-api", PYTHONPATH=bench.path / "site")
    assert lines(out) == ["asked asked", f"path {folder}:{bench.path}/site", "package asked"], out
    # The node's own, in its directory, with its environment; each interpreter once.
    asked = bench.path / "asked"
    bench.path.joinpath("bin").mkdir()
    wrapper = f'#!/bin/sh\n[ "$1" = -c ] && pwd >>{asked}\nexec {sys.executable} "$@"\n'
    bench.write("bin/python3", wrapper, 0o755)
    (bench.path / "place").mkdir()
    bench.write("place/n.py", NODE)
    own = f'env: {{PATH: "{bench.path}/bin:$PATH", PYTHONPATH: {bench.path}/site}}'
    flow = f"""
nodes:
  - {{id: n, path: n.py, {own}, deploy: {{working_dir: place}}}}
  - {{id: m, path: n.py, {own}}}
  - {{id: o, path: n.py, env: {{PATH: "{bench.path}/bin:$PATH", PYTHONPATH: "{bench.path}/site:/more"}}}}
"""
    out, _ = run(bench, "--dora-api", flow=flow)
    assert [lines(out, node)[0] for node in "nmo"] == 3 * ["asked asked"], out
    assert asked.read_text().split() == [f"{bench.path}/place", f"{bench.path}"], asked.read_text()


def each_environment_of_uv_is_asked(bench):
    """Before looking beside the command: what its own package is, its nodes import."""
    place_command(bench, bench.path / "prefix" / "bin")
    make_package(bench.path / "prefix" / "lib" / "python3.11" / "site-packages", "beside")
    folder = make_package(bench.path / "site", "in the environment")
    bench.path.joinpath("bin").mkdir()
    # uv venv DIRECTORY: an environment whose interpreter sees `site`, but for node `without`.
    bench.write("bin/uv", f"""#!/bin/sh
for directory; do :; done
mkdir -p "$directory/bin"
case $directory in */without) see=;; *) see={bench.path}/site;; esac
printf '#!/bin/sh\\nPYTHONPATH=$PYTHONPATH:%s exec {sys.executable} "$@"\\n' "$see" >"$directory/bin/python"
chmod +x "$directory/bin/python"
""", 0o755)
    flow = "nodes:\n  - {id: n, path: n.py}\n  - {id: without, path: n.py}\n"
    out, _ = run(bench, "--dora-api", "--uv", flow=flow, PATH=f"{bench.path}/bin:{os.environ['PATH']}")
    assert lines(out)[0] == "in the environment in the environment", out
    assert lines(out)[1].startswith(f"path {folder}"), out
    assert lines(out, "without")[0] == "beside beside", out


def found_nowhere(bench):
    place_command(bench, bench.path / "bare")
    flow = "nodes:\n  - {id: n, path: n.py}\n  - {id: m, path: n.py}\n"
    _, err = run(bench, "--dora-api", flow=flow, code=2)
    assert err.count("flow.yml:") == 1, "one line for all nodes of an interpreter"
    for part in ("flow.yml:2:19: node `n`: --dora-api needs the folder `dora_api`",
                 f"{bench.path}/bare/../python/tensorbus/dora_api", f"{bench.path}/bare/dora_api",
                 f"{bench.path}/bare/../lib*/python3*/*-packages/tensorbus/dora_api", "python3",
                 "pip install", "TENSORBUS_DORA_API"):
        assert part in err, (part, err)
    bench.script("plain.sh", "echo none of it\n") # nobody needs it: nothing is looked for
    out, _ = run(bench, "--dora-api", flow="nodes:\n  - {id: n, path: plain.sh}\n")
    assert lines(out) == ["none of it"], out


def an_interpreter_that_does_not_answer(bench):
    """One that fails, one that says nonsense, one that never ends: as if it had no package."""
    place_command(bench, bench.path / "bare")
    bench.path.joinpath("bin").mkdir()
    for body in ("exit 3", "echo /nowhere; echo; head -c 100000 /dev/zero", "sleep 60"):
        bench.write("bin/python3", f'#!/bin/sh\n[ "$1" = -c ] || exit 0\n{body}\n', 0o755)
        _, err = run(bench, "--dora-api", code=2, PATH=f"{bench.path}/bin:{os.environ['PATH']}")
        assert f"nor in the package `tensorbus` of {bench.path}/bin/python3" in err, err
        bench.check_clean()


if __name__ == "__main__":
    main([the_variable_comes_first, a_variable_that_is_wrong, without_the_option_nothing_changes,
          what_was_on_the_path_stays_behind_it, beside_the_command_in_a_prefix,
          beside_the_command_in_a_build_folder, the_real_build_folder, the_interpreter_is_asked,
          each_environment_of_uv_is_asked, found_nowhere, an_interpreter_that_does_not_answer])
