"""The command line of the stress test."""

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.stress import command
from tests.stress.command import NOTHING, Command
from tests.stress.worker import Rates

MOST_ADDRESSES: Final = 240
_PAUSE_OF_COMPARE: Final = 1.0

_ABOUT = """
Stress-test cleaners of leaked addresses: churn one host-local store with the real docker and host-local, leak addresses
and kill plugins, run cleaners at the same time, and check that no address is taken from its holder, none is held twice,
every leak is reclaimed in the end, and nothing else is left in the store.
"""
_MORE = """
COMMAND is a shell command or one of: nodeleak; one-liner (the widely copied shell one-liner, as a cleaner only);
restore (`nodeleak restore --last --apply` during the churn, often killed, as a cleaner only); none.
A command gets these variables, and the same values in nodeleak's own variables:
  STRESS_STORE     the directory of the network's reservations (its parent: STRESS_NETWORKS)
  STRESS_CACHE     libcni's result cache
  STRESS_STATE     a directory for its own state
  DOCKER_HOST      the docker engine

With --runtime=containerd the test runs on a real containerd instead, with --profile=containerd or crio on a whole node
of today (hack/cluster); both have options of their own (--help lists them).

Exit codes: 0 no violations; 1 violations, or a cleaner or daemon failed; 2 wrong usage.
Requires root, host-local, and docker with the image of hack/cluster (hack/cluster start docker).
"""


@dataclass(frozen=True, slots=True)
class Options:
    cleaners: tuple[Command, ...]
    daemons: tuple[Command, ...]
    seconds: float
    workers: int
    addresses: int
    rates: Rates
    seed: int
    reclaim: float
    pause: float
    report: Path | None
    compare: bool
    keep: bool


def parse(arguments: Sequence[str]) -> Options:
    """Parse the command line; exit with 2 on wrong usage."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.leak + given.kill > 100:
        parser.error("--leak and --kill together must not exceed 100")
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
        rates=Rates(given.leak, given.kill),
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
    add("--cleaner", action="append", default=[], metavar="COMMAND", help="run it in a loop; may be repeated")
    add("--daemon", action="append", default=[], metavar="COMMAND", help="start it once, as a daemon; may be repeated")
    add("--seconds", type=_positive, default=60.0, help="duration of the churn (60)")
    add("--workers", type=_count, default=8, help="concurrent sandboxes (8)")
    add("--addresses", type=_addresses, default=12, help="size of the address range (12)")
    add("--leak", type=_percent, default=15.0, help="percentage of sandboxes that are removed without DEL (15)")
    add("--kill", type=_percent, default=10.0, help="percentage of sandboxes during which the kubelet is killed (10)")
    add("--seed", type=int, help="random seed (default: a new one for each run)")
    add("--reclaim", type=_positive, default=30.0, metavar="SECONDS", help="time for the cleaners after the churn (30)")
    add("--pause", type=_positive, metavar="SECONDS", help="pause between two runs of a cleaner (0; with --compare 1)")
    add("--report", type=Path, metavar="FILE", help="write the result as JSON")
    add("--compare", action="store_true", help="compare ADD latency in slices with and without cleaners")
    add("--keep", action="store_true", help="keep the working directory")
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
