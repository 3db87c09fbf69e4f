"""`python -m tests.stress`: run the stress test and exit with 1 if an address was released wrongly."""

import json
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from tests.stress import options, report
from tests.stress.containerd import main as containerd
from tests.stress.engine import BROKEN
from tests.stress.modern import main as modern
from tests.stress.options import Options
from tests.stress.run import StressRun, run_stress


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stress test and return the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    signal.signal(signal.SIGTERM, _leave)
    if containerd.SELECTED_BY in arguments:
        return containerd.main([one for one in arguments if one != containerd.SELECTED_BY])
    if any(argument.startswith(modern.SELECTED_BY) for argument in arguments):
        return modern.main(arguments)
    given = options.parse(arguments)
    _print_options(given)
    try:
        finished = run_stress(given)
    except KeyboardInterrupt:
        print("stress: interrupted; everything was cleaned up", file=sys.stderr)
        return 128 + signal.SIGINT
    except (OSError, *BROKEN) as error:
        print(f"stress: {error}", file=sys.stderr)
        return 1
    return _print_result(given, finished)


def _leave(_signal: int, _frame: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def _print_options(given: Options) -> None:
    commands = [f"{one.name} in a loop" for one in given.cleaners] + [
        f"{one.name} as a daemon" for one in given.daemons
    ]
    print(
        f"stress: {given.seconds:g} s, {given.workers} workers, {given.addresses} addresses, "
        f"{given.rates.leak:g} % leaked, {given.rates.kill:g} % killed, seed {given.seed}",
        f"cleaners: {', '.join(commands) or 'none'}",
        sep="\n",
        flush=True,
    )


def _print_result(given: Options, finished: StressRun) -> int:
    document = report.document(finished)
    if given.report is not None:
        given.report.write_text(json.dumps(document, indent=1) + "\n")
    print(*report.table(document), sep="\n")
    violations = finished.ledger.violations()
    for violation in violations:
        print(violation.line(finished.ledger.began))
    for failure in finished.state.failures:
        print(f"stress: {failure}", file=sys.stderr)
    if finished.state.failures or violations:
        print(f"FAILED: {len(violations)} violations, {len(finished.state.failures)} failures")
        return 1
    print("no violations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
