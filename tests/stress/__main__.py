"""`python -m tests.stress`: plays, tells, and says by its exit code whether an address was ever wrongly released."""

import json
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from tests.stress import options, report
from tests.stress.engine import BROKEN
from tests.stress.options import Options
from tests.stress.run import Torture, torture


def main(arguments: Sequence[str] | None = None) -> int:
    """Play; returns the exit code."""
    given = options.parse(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, _leave)
    _announce(given)
    try:
        played = torture(given)
    except KeyboardInterrupt:
        print("torture: interrupted; nothing is left behind", file=sys.stderr)
        return 128 + signal.SIGINT
    except (OSError, *BROKEN) as error:
        print(f"torture: {error}", file=sys.stderr)
        return 1
    return _tell(given, played)


def _leave(_signal: int, _frame: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def _announce(given: Options) -> None:
    commands = [f"{one.name} again and again" for one in given.cleaners] + [
        f"{one.name} all the time" for one in given.daemons
    ]
    print(
        f"torture: {given.seconds:g} s, {given.workers} workers, {given.addresses} addresses, "
        f"{given.habits.leak:g} % leaked, {given.habits.kill:g} % killed, seed {given.seed}",
        f"cleaning: {', '.join(commands) or 'nobody'}",
        sep="\n",
        flush=True,
    )


def _tell(given: Options, played: Torture) -> int:
    told = report.document(played)
    if given.report is not None:
        given.report.write_text(json.dumps(told, indent=1) + "\n")
    print(*report.table(told), sep="\n")
    violations = played.ledger.violations()
    for violation in violations:
        print(violation.line(played.ledger.began))
    for failure in played.history.failures:
        print(f"torture: {failure}", file=sys.stderr)
    if played.history.failures or violations:
        print(f"FAILED: {len(violations)} violations, {len(played.history.failures)} failures")
        return 1
    print("no violation")
    return 0
