"""What became of a torture: as JSON, and as a table."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from tests.stress.cleaner import Cleaner
from tests.stress.metrics import Histogram
from tests.stress.resident import Resident
from tests.stress.run import Torture
from tests.stress.slices import SECONDS
from tests.stress.stopwatch import Beside, Latency, quantile

_SCHEMA: Final = "nodeleak.torture/v1"
_NINETY_NINE: Final = 0.99
_TARGET: Final = 1.1
"""At most so much longer may an ADD take beside a cleaner. It is told, not enforced: the machine may be busy."""


def document(played: Torture) -> dict[str, Any]:
    """Return all of it, for programs."""
    options, ledger = played.options, played.ledger
    lost = sorted(ledger.reclaim_seconds())
    adds = played.adds.latencies()
    return {
        "schema": _SCHEMA,
        "seed": options.seed,
        "options": {
            "seconds": options.seconds,
            "workers": options.workers,
            "addresses": options.addresses,
            "leak": options.habits.leak,
            "kill": options.habits.kill,
            "pause": options.pause,
        },
        "counts": asdict(ledger.counts()),
        "lost_seconds": {"p50": quantile(lost, 0.5), "most": lost[-1] if lost else 0.0},
        "cache": {"left": played.cache_left, "taken": played.node.cache.taken},
        "add": {str(beside): asdict(latency) for beside, latency in adds.items()},
        "ratio": _ratio(adds) if options.compare else None,
        "cleaners": [_cleaner(one) for one in played.cleaners],
        "daemons": [_daemon(one) for one in played.daemons],
        "failures": list(played.history.failures),
        "violations": [asdict(one) | {"at": one.at - ledger.began} for one in ledger.violations()],
    }


def _cleaner(one: Cleaner) -> dict[str, Any]:
    return {
        "name": one.command.name,
        "runs": len(one.run_seconds),
        "p50_seconds": quantile(sorted(one.run_seconds), 0.5),
        "codes": {str(code): count for code, count in sorted(one.codes.items())},
        "complaints": {str(code): said for code, said in sorted(one.complaints.items())},
        "verdicts": dict(one.verdicts.most_common()),
    }


def _daemon(one: Resident) -> dict[str, Any]:
    return {
        "name": one.command.name,
        "codes": {str(code): count for code, count in sorted(one.codes.items())},
        "lock": {what: _histogram(histogram) for what, histogram in one.locks.items()},
    }


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {"count": histogram.count, "within_seconds": histogram.bound(_NINETY_NINE)}


def _ratio(adds: Mapping[Beside, Latency]) -> dict[str, float] | None:
    if not all(beside in adds for beside in Beside):
        return None
    with_, without = adds[Beside.CLEANERS], adds[Beside.NOTHING]
    return {"p50": with_.p50 / without.p50, "p99": with_.p99 / without.p99}


def table(told: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines for people."""
    counts, lost, cache = told["counts"], told["lost_seconds"], told["cache"]
    yield f"{'allocations':18}{counts['allocations']}; the range was exhausted {counts['exhausted']} times"
    yield f"{'ADDs killed':18}{counts['adds_killed']}, {counts['half_added']} of them with an address reserved"
    yield f"{'leaked':18}{counts['leaked']}, reclaimed {counts['reclaimed']}"
    yield f"{'lost for':18}{lost['p50']:.2f} s (p50), {lost['most']:.2f} s at most"
    yield f"{'cache entries':18}{cache['left']} left over, {cache['taken']} taken from sandboxes with a container"
    for beside, latency in told["add"].items():
        yield (
            f"{'ADD':18}{latency['p50'] * 1000:.1f} ms (p50), {latency['p99'] * 1000:.1f} ms (p99) "
            f"of {latency['count']} {beside}, with {latency['occupied']:.1f} addresses taken"
        )
    if ratio := told["ratio"]:
        yield f"{'ADD compared':18}{ratio['p50']:.2f}x (p50), {ratio['p99']:.2f}x (p99); the target is {_TARGET:g}x"
        yield f"{'':18}{_how_compared(told['options']['pause'])}"
    for one in told["cleaners"]:
        yield (
            f"{'cleaner':18}{one['name']}: {one['runs']} runs of {one['p50_seconds']:.2f} s (p50), "
            f"exit codes {_tally(one['codes'])}; verdicts {_tally(one['verdicts'])}"
        )
        for code, said in one["complaints"].items():
            yield f"{'':18}{code}: {said.splitlines()[-1] if said else 'without a word'}"
    for one in told["daemons"]:
        yield f"{'daemon':18}{one['name']}: exit codes {_tally(one['codes'])}; lock {_locks(one['lock'])}"


def _how_compared(pause: float) -> str:
    return (
        f"slices of {SECONDS:g} s, the process of host-local alone; cleaners pause {pause:g} s between their runs; "
        "without them leaks are given back for nothing"
    )


def _tally(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{what}: {count}" for what, count in counts.items()) or "none"


def _locks(locks: Mapping[str, Any]) -> str:
    told = [
        f"{what} {one['count']} times, 99 % of them within {one['within_seconds']} s" for what, one in locks.items()
    ]
    return ", ".join(told) if any(one["count"] for one in locks.values()) else "not told of"
