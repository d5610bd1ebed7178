"""Command line of `tensorbus bench dora`; run as `python -m tensorbus.bench_dora`."""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys

from . import report
from .measure import measure
from .rows import GOALS, WORKLOADS

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2

EPILOG = """exit codes: 0 ok, 1 a goal was not met or its row was skipped (--check), 2 usage

examples:
  tensorbus bench dora --quick
  tensorbus bench dora --row rate --json
  tensorbus bench dora --explain turn/61.4MB
"""


DESCRIPTION = """Compare, in one run, stock dora's fastest documented way of sending arrays with
Tensorbus inside dora (by messages, and direct) and on its own runner. Sides and floors
alternate in blocks; figures are medians over blocks. Takes about ten minutes.

Needs a Python with tensorbus, dora-rs, dora-rs-cli and pyarrow: the one that
$TENSORBUS_PYTHON names, else the one beside the command, else python3.
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        sys.stderr.write(f"tensorbus bench dora: {message}; see --help\n")
        sys.exit(EXIT_USAGE)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tensorbus bench dora",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer frames, blocks (3 minutes)")
    parser.add_argument("--row", metavar="PATTERN", help="only rows whose name contains PATTERN")
    parser.add_argument("--list", action="store_true", help="names of all rows")
    parser.add_argument("--explain", metavar="ROW", help="what a row does and its interval spans")
    parser.add_argument("--check", action="store_true", help="exit 1 when a goal is not met")
    parser.add_argument("--json", action="store_true", help="one JSON object; words go to stderr")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.list:
        for workload in WORKLOADS:
            print(workload.name)
        return EXIT_OK
    if options.explain is not None:
        for workload in WORKLOADS:
            if workload.name == options.explain:
                print(workload.about)
                return EXIT_OK
        parser.error(f"no row `{options.explain}`: --list names them")
    chosen = [at for at in WORKLOADS if options.row is None or options.row in at.name]
    if not chosen:
        parser.error(f"no row contains `{options.row}`: --list names them")
    blocks = 5
    if options.quick:
        blocks = 3
        chosen = [dataclasses.replace(at, frames=at.frames // 3) for at in chosen]
    say = sys.stderr if options.json else sys.stdout
    result = measure(chosen, blocks, lambda text: print(text, file=say, flush=True))
    names = {at.name for at in chosen}
    goals = [goal for goal in GOALS if report.workload_of(goal.row) in names]
    verdicts = report.judge(result, goals)
    if options.json:
        report.print_json(result, verdicts)
    else:
        report.print_table(result, verdicts)
    missed = [verdict for verdict in verdicts if not verdict.met]
    return EXIT_FAILED if options.check and missed else EXIT_OK


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no error
    sys.exit(main())
