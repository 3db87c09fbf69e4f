"""The result of a run as JSON and as a table."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from tests.stress.cleaner import Cleaner
from tests.stress.daemon import Daemon
from tests.stress.metrics import Histogram
from tests.stress.run import StressRun
from tests.stress.slices import SECONDS
from tests.stress.stopwatch import Beside, Latency, quantile

_SCHEMA: Final = "nodeleak.stress/v1"
_NINETY_NINE: Final = 0.99
_TARGET: Final = 1.1
"""Target for the ADD latency ratio with and without cleaners. Reported, not enforced: the machine may be busy."""


def document(finished: StressRun) -> dict[str, Any]:
    """Return the complete result for programs."""
    options, ledger = finished.options, finished.ledger
    lifetimes = sorted(ledger.reclaim_seconds())
    adds = finished.adds.latencies()
    return {
        "schema": _SCHEMA,
        "seed": options.seed,
        "options": {
            "seconds": options.seconds,
            "workers": options.workers,
            "addresses": options.addresses,
            "leak": options.rates.leak,
            "kill": options.rates.kill,
            "pause": options.pause,
        },
        "counts": asdict(ledger.counts()),
        "leak_seconds": {"p50": quantile(lifetimes, 0.5), "most": lifetimes[-1] if lifetimes else 0.0},
        "cache": {"left": finished.cache_left, "removed_early": finished.node.cache.removed_early},
        "add": {str(beside): asdict(latency) for beside, latency in adds.items()},
        "ratio": _ratio(adds) if options.compare else None,
        "cleaners": [_cleaner(one) for one in finished.cleaners],
        "daemons": [_daemon(one) for one in finished.daemons],
        "failures": list(finished.state.failures),
        "violations": [asdict(one) | {"at": one.at - ledger.began} for one in ledger.violations()],
    }


def _cleaner(one: Cleaner) -> dict[str, Any]:
    return {
        "name": one.command.name,
        "runs": len(one.run_seconds),
        "p50_seconds": quantile(sorted(one.run_seconds), 0.5),
        "codes": {str(code): count for code, count in sorted(one.codes.items())},
        "last_errors": {str(code): text for code, text in sorted(one.last_errors.items())},
        "verdicts": dict(one.verdicts.most_common()),
    }


def _daemon(one: Daemon) -> dict[str, Any]:
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


def table(result: Mapping[str, Any]) -> Iterator[str]:
    """Return the result as lines of text."""
    counts, lifetimes, cache = result["counts"], result["leak_seconds"], result["cache"]
    yield f"{'allocations':18}{counts['allocations']}; the range was exhausted {counts['exhausted']} times"
    yield f"{'ADDs killed':18}{counts['adds_killed']}, {counts['half_added']} of them after reserving an address"
    yield f"{'leaked':18}{counts['leaked']}, reclaimed {counts['reclaimed']}"
    yield f"{'leak lifetime':18}{lifetimes['p50']:.2f} s (p50), {lifetimes['most']:.2f} s (max)"
    yield f"{'cache entries':18}{cache['left']} left over, {cache['removed_early']} removed while the container existed"
    for beside, latency in result["add"].items():
        yield (
            f"{'ADD':18}{latency['p50'] * 1000:.1f} ms (p50), {latency['p99'] * 1000:.1f} ms (p99) "
            f"of {latency['count']} {beside}, with {latency['occupied']:.1f} addresses in use"
        )
    if ratio := result["ratio"]:
        yield f"{'ADD compared':18}{ratio['p50']:.2f}x (p50), {ratio['p99']:.2f}x (p99); target {_TARGET:g}x"
        yield f"{'':18}{_how_compared(result['options']['pause'])}"
    for one in result["cleaners"]:
        yield (
            f"{'cleaner':18}{one['name']}: {one['runs']} runs of {one['p50_seconds']:.2f} s (p50), "
            f"exit codes {_counts(one['codes'])}; verdicts {_counts(one['verdicts'])}"
        )
        for code, text in one["last_errors"].items():
            yield f"{'':18}{code}: {text.splitlines()[-1] if text else 'no output'}"
    for one in result["daemons"]:
        yield f"{'daemon':18}{one['name']}: exit codes {_counts(one['codes'])}; lock {_locks(one['lock'])}"


def _how_compared(pause: float) -> str:
    return (
        f"slices of {SECONDS:g} s, only the host-local process; cleaners pause {pause:g} s between runs; "
        "in slices without cleaners the test itself removes leaks"
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{what}: {count}" for what, count in counts.items()) or "none"


def _locks(locks: Mapping[str, Any]) -> str:
    result = [f"{what} {one['count']} times, 99 % within {one['within_seconds']} s" for what, one in locks.items()]
    return ", ".join(result) if any(one["count"] for one in locks.values()) else "not reported"
