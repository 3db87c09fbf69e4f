"""What a torture is made of: its command line."""

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.stress import command
from tests.stress.command import NOTHING, Command
from tests.stress.worker import Habits

MOST_ADDRESSES: Final = 240
_PAUSE_OF_COMPARE: Final = 1.0

_ABOUT = """
Churn one store of host-local's with the real docker and the real host-local, leak and kill on the way, run cleaners
beside it, and see that no address is ever taken from a holder, none is held twice, every leak is reclaimed in the end,
and nothing else is left.
"""
_MORE = """
A cleaner is a shell command. It finds the store in TORTURE_STORE (one network's directory; TORTURE_NETWORKS above it),
libcni's cache in TORTURE_CACHE, a place for its own state in TORTURE_STATE, docker in DOCKER_HOST; and the same in
nodeleak's own variables. By name: nodeleak; one-liner (a cleaner: the shell one-liner that people copy); none.

exit codes: 0 no violation; 1 violations, or a cleaner or a daemon that failed; 2 wrong usage.
It needs root, host-local, and docker with the image of hack/cluster: hack/cluster start docker
"""


@dataclass(frozen=True, slots=True)
class Options:
    cleaners: tuple[Command, ...]
    daemons: tuple[Command, ...]
    seconds: float
    workers: int
    addresses: int
    habits: Habits
    seed: int
    reclaim: float
    pause: float
    report: Path | None
    compare: bool
    keep: bool


def parse(arguments: Sequence[str]) -> Options:
    """Read the command line; exits with 2 where it is wrong."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.leak + given.kill > 100:
        parser.error("--leak and --kill are shares of the same hundred sandboxes")
    cleaners = [command.cleaner(text) for text in given.cleaner if text != NOTHING]
    daemons = [command.daemon(text) for text in given.daemon if text != NOTHING]
    if given.compare and not cleaners + daemons:
        parser.error("--compare needs a --cleaner or a --daemon")
    pause = given.pause if given.pause is not None else _PAUSE_OF_COMPARE if given.compare else 0.0
    return Options(
        cleaners=tuple(cleaners),
        daemons=tuple(daemons),
        seconds=given.seconds,
        workers=given.workers,
        addresses=given.addresses,
        habits=Habits(given.leak, given.kill),
        seed=secrets.randbits(32) if given.seed is None else given.seed,
        reclaim=given.reclaim,
        pause=pause,
        report=given.report,
        compare=given.compare,
        keep=given.keep,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--cleaner", action="append", default=[], metavar="COMMAND", help="run it again and again; may be repeated")
    add("--daemon", action="append", default=[], metavar="COMMAND", help="start it once; may be repeated")
    add("--seconds", type=_positive, default=60.0, help="how long sandboxes come and go (60)")
    add("--workers", type=_count, default=8, help="how many of them at a time (8)")
    add("--addresses", type=_addresses, default=12, help="how many addresses there are for them (12)")
    add("--leak", type=_percent, default=15.0, help="of 100 sandboxes, how many are removed without DEL (15)")
    add("--kill", type=_percent, default=10.0, help="of 100 sandboxes, in how many the kubelet is killed (10)")
    add("--seed", type=int, help="of all that is left to chance but time; default: another one each time")
    add("--reclaim", type=_positive, default=30.0, metavar="SECONDS", help="how long the cleaners have in the end (30)")
    add("--pause", type=_positive, metavar="SECONDS", help="between the runs of a cleaner (0; with --compare 1)")
    add("--report", type=Path, metavar="FILE", help="write what happened, as JSON")
    add("--compare", action="store_true", help="compare the time of ADD in slices with and without the cleaners")
    add("--keep", action="store_true", help="leave the directory to look at")
    return parser


def _positive(text: str) -> float:
    return _between(float(text), 0, float("inf"))


def _count(text: str) -> int:
    return int(_between(int(text), 1, 1000))


def _addresses(text: str) -> int:
    return int(_between(int(text), 1, MOST_ADDRESSES))


def _percent(text: str) -> float:
    return _between(float(text), 0, 100)


def _between(value: float, least: float, most: float) -> float:
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{value:g} is not between {least:g} and {most:g}")
    return value
