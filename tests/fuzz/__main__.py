"""Run each fuzzer for a while: python -m tests.fuzz --help."""

import argparse
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisWarning

from tests.fuzz.commands import FUZZERS
from tests.fuzz.fuzzer import Fuzzer

_BATCH = 50
_PROGRESS = 10.0
"""Seconds between two lines of progress."""


class _Run:
    """One fuzzer, for so many seconds."""

    def __init__(self, fuzzer: Fuzzer, seconds: float) -> None:
        self._fuzzer, self._seconds = fuzzer, seconds
        self.executions = 0
        self.failure = ""

    def __call__(self, first_seed: int) -> None:
        start = shown = time.monotonic()
        with (
            tempfile.TemporaryDirectory(prefix="nodeleak-fuzz-") as directory,
            self._fuzzer.open(Path(directory)) as parse,
        ):

            @settings(
                max_examples=_BATCH, database=None, deadline=None, suppress_health_check=list(HealthCheck),
                phases=(Phase.generate, Phase.shrink), print_blob=False,
            )  # fmt: skip
            @given(self._fuzzer.contents())
            def check(content: bytes) -> None:
                self.executions += 1
                self._fuzzer.check_cost(parse, content)

            batch = 0
            while not self.failure and time.monotonic() - start < self._seconds:
                try:
                    seed(first_seed + batch)(check)()
                except Exception:  # noqa: BLE001 (whatever it is, it is the finding)
                    self.failure = traceback.format_exc()
                batch += 1
                if time.monotonic() - shown >= _PROGRESS:
                    shown = time.monotonic()
                    print(f"{self._fuzzer.name:22} {shown - start:4.0f} s {self.executions:8} executions", flush=True)
        took = time.monotonic() - start
        result = "FAILED" if self.failure else "ok"
        print(f"{self._fuzzer.name:22} {took:4.0f} s {self.executions:8} executions: {result}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for each fuzzer (default: 60)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first batch; default: the time")
    names = [one.name for one in FUZZERS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"fuzzers; default: all of {', '.join(names)}")
    arguments = parser.parse_args()
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", HypothesisWarning)  # a failing content may be long
    if unknown := set(arguments.names).difference(names):
        parser.error(f"unknown fuzzer {', '.join(sorted(unknown))}")
    runs = {one.name: _Run(one, arguments.seconds) for one in FUZZERS if one.name in (arguments.names or names)}
    print(f"{len(runs)} fuzzers, {arguments.seconds:g} s each, --seed={arguments.seed}", flush=True)
    for run in runs.values():
        run(arguments.seed)
    failed = {name: run.failure for name, run in runs.items() if run.failure}
    for name, failure in failed.items():
        print(f"\n{name}:\n{failure}", file=sys.stderr)
    total = sum(run.executions for run in runs.values())
    print(f"{total} executions, {len(failed)} failed{': ' if failed else ''}{', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
