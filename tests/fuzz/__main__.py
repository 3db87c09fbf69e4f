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


def _run(fuzzer: Fuzzer, seconds: float, first_seed: int) -> tuple[int, str]:
    """Run one fuzzer for so many seconds; return how often the input was read, and the first failure."""
    executions, batch, failure, start = 0, 0, "", time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="nf-") as directory,
        fuzzer.open(Path(directory)) as parse,
    ):

        @settings(
            max_examples=_BATCH, database=None, deadline=None, suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink), print_blob=False,
        )  # fmt: skip
        @given(fuzzer.contents())
        def check(content: bytes) -> None:
            nonlocal executions
            executions += 1
            fuzzer.check_cost(parse, content)

        while not failure and time.monotonic() - start < seconds:
            try:
                seed(first_seed + batch)(check)()
            except Exception:  # noqa: BLE001 (whatever it is, it is the finding)
                failure = traceback.format_exc()
            batch += 1
    result = "FAILED" if failure else "ok"
    print(
        f"{fuzzer.name:22} {time.monotonic() - start:4.0f} s {executions:8} executions: {result}",
        flush=True,
    )
    return executions, failure


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for each fuzzer (default: 60)")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of the first batch; default: the time"
    )
    names = [fuzzer.name for fuzzer in FUZZERS]
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"fuzzers; default: all of {', '.join(names)}"
    )
    arguments = parser.parse_args()
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", HypothesisWarning)  # a failing content may be long
    warnings.simplefilter(
        "ignore", ResourceWarning
    )  # docker's package forgets a client that could not be made
    if unknown := set(arguments.names).difference(names):
        parser.error(f"unknown fuzzer {', '.join(sorted(unknown))}")
    chosen = [fuzzer for fuzzer in FUZZERS if fuzzer.name in (arguments.names or names)]
    print(
        f"{len(chosen)} fuzzers, {arguments.seconds:g} s each, --seed={arguments.seed}", flush=True
    )
    results = {fuzzer.name: _run(fuzzer, arguments.seconds, arguments.seed) for fuzzer in chosen}
    failed = {name: failure for name, (_, failure) in results.items() if failure}
    for name, failure in failed.items():
        print(f"\n{name}:\n{failure}", file=sys.stderr)
    total = sum(executions for executions, _ in results.values())
    print(f"{total} executions, {len(failed)} failed{': ' if failed else ''}{', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
