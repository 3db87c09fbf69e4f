"""docs/scale.md: page.md, filled with what was measured."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.scale.kubelets import WATCH_SECONDS
from tests.scale.objects import IMAGES, SERVICES, SHARED_PER_NODE
from tests.scale.session import MOST_POD_UPDATES, NODE_UPDATES, POD_UPDATES
from tests.scale.written import Written

RECORD: Final = Path(__file__).with_name("record.json")
DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "scale.md"
_TEMPLATE: Final = Path(__file__).with_name("page.md")
_RESTART: Final = Path(__file__).with_name("restart.md")
FLEET: Final = 15_000
_MIB: Final = 1024**2
_BIN: Final = 2
_WIDTH: Final = 50
_UNHEALTHY: Final = 0.01
_EVENTS_A_MINUTE: Final = 5
_KINDS: Final = ("agents", "kubelets")
_RATE: Final = 0.1
"""What the rate of status changes may differ from the planned one while the CPU of clients is compared."""
_LEFT_OUT: Final = """
With {sizes} nodes, the machine was too busy for the planned rate of status changes beside all kubelets. CPU and bytes
depend on this rate, so they are left out there.
"""


def read() -> dict[str, Any]:
    """Return what was measured."""
    found: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {"sessions": []}
    return found


def document(record: Mapping[str, Any]) -> str:
    sessions = [one for one in record["sessions"] if one["arms"]]
    restarts = [one for one in record["sessions"] if one["restart"]]
    restarted = [one for one in restarts if "failed" not in one["restart"]]
    failed = [one for one in restarts if "failed" in one["restart"]]
    last = next(one for one in reversed(sessions) if _comparable(one) and not _limited(one))
    return _TEMPLATE.read_text().format(
        **_method(sessions, last),
        restart_section="".join([*map(_restart_section, restarted[-1:]), *map(_not_measured, failed)]),
        steady_table=_table(
            ("nodes", "clients", "CPU (cores)", "requests each second", "KB each second", "memory (MiB)", "watches"),
            (row for one in sessions for row in _steady_rows(one)),
        ),
        requests_table=_table(("request", "agent", "kubelet"), _request_rows(last)),
        start_table=_table(
            ("nodes", "clients", "CPU (seconds)", "requests", "sent (MiB)"), _start_rows(filter(_comparable, sessions))
        ),
        fleet_table=_table(("", "arithmetic", ""), (*_fleet_rows(last), *_written_rows(Written(**record["written"])))),
    )


def _method(sessions: Sequence[Mapping[str, Any]], last: Mapping[str, Any]) -> dict[str, Any]:
    left_out = [f"{one['nodes']:,}" for one in sessions if not _comparable(one)]
    return {
        "left_out": _LEFT_OUT.format(sizes=" and ".join(left_out)) if left_out else "",
        **{key: last[key] for key in ("nodes", "pods", "date", "where")},
        "cpu_share": _share(last, "cpu"),
        "memory_share": _share(last, "live"),
        "services": SERVICES,
        "shared": SHARED_PER_NODE,
        "images": IMAGES,
        "pod_updates": POD_UPDATES * 60,
        "most_pod_updates": MOST_POD_UPDATES,
        "node_minutes": 1 / NODE_UPDATES / 60,
        "watch_minutes": " to ".join(f"{seconds / 60:g}" for seconds in WATCH_SECONDS),
        **{
            key: ", ".join(f"{one[key]:.0f} s ({one['nodes']:,} nodes)" for one in sessions)
            for key in ("spread", "steady")
        },
        "fleet": FLEET,
    }


def _restart_section(one: Mapping[str, Any]) -> str:
    restart, broken = one["restart"]["restart"], one["restart"]["broken"]
    return _RESTART.read_text().format(
        nodes=one["nodes"],
        down=one["restart"]["down"],
        too_many=one["restart"]["too_many"],
        lists=sum(count for kind, count in restart["requests"].items() if kind.startswith("list")),
        listed=len(restart["lists"]),
        last_list=max(restart["lists"], default=0),
        warm=min(restart["lists"], default=0),
        list_peak=max(Counter(map(int, restart["lists"])).values(), default=0),
        peak=max(restart["each_second"]),
        back=len(restart["first"]),
        last_back=max(restart["first"], default=0),
        lists_histogram=_histogram(restart["lists"]),
        first_histogram=_histogram(restart["first"]),
        broken_peak=max(broken["each_second"]),
        broken_back=len(broken["first"]),
        broken_last=max(broken["first"], default=0),
        broken_histogram=_histogram(broken["first"]),
    )


def _not_measured(one: Mapping[str, Any]) -> str:
    return f"A restart with {one['nodes']:,} agents was not measured: {one['restart']['failed']} on this machine.\n\n"


def _steady_rows(one: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    nodes, comparable = f"{one['nodes']:,}", _comparable(one)
    for kind in _KINDS:
        cost = _costs(one, kind)
        cpu, written = (f"{cost['cpu']:.3f}", f"{cost['written'] / 1000:,.0f}") if comparable else ("", "")
        memory = f"{cost['live'] / _MIB:,.0f}"
        yield nodes, kind, cpu, f"{cost['requests']:.0f}", written, memory, f"{cost['watches']:,.0f}"
    keys = ("cpu", "requests", "written", "live", "watches")
    shares = (_share(one, key) if comparable or key not in {"cpu", "written"} else "" for key in keys)
    yield nodes, "agents ÷ kubelets", *shares


def _limited(one: Mapping[str, Any]) -> bool:
    """Return whether fewer statuses changed than on so many nodes: the costs of a larger cluster do not follow."""
    return bool(one["pod_updates"] < POD_UPDATES * one["nodes"])


def _comparable(one: Mapping[str, Any]) -> bool:
    """Return whether statuses changed at the planned rate beside all kinds of clients."""
    planned = one["pod_updates"]
    rates = (arm["steady"]["requests"].get("PATCH pods", 0) / arm["steady"]["seconds"] for arm in one["arms"])
    return all(abs(rate / planned - 1) <= _RATE for rate in rates)


def _request_rows(one: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """Of both kinds, what there is at least once an hour."""
    hourly = {kind: _each_hour(one, kind) for kind in _KINDS}
    for name in sorted({name for found in hourly.values() for name in found}):
        yield name, *(f"{hourly[kind].get(name, 0):,.0f}" for kind in _KINDS)


def _each_hour(one: Mapping[str, Any], kind: str) -> dict[str, float]:
    with_clients, without = (_rates(_arm(one, name)) for name in (kind, "none"))
    hourly = {name: (rate - without.get(name, 0)) * 3600 / one["nodes"] for name, rate in with_clients.items()}
    return {name: value for name, value in hourly.items() if value >= 1}


def _start_rows(sessions: Iterable[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    for one in sessions:
        for kind in _KINDS:
            cost = _start_cost(one, kind)
            values = (f"{cost['cpu']:.1f}", f"{cost['requests']:,.0f}", f"{cost['written'] / _MIB:.0f}")
            yield f"{one['nodes']:,}", kind, *values


def _start_cost(one: Mapping[str, Any], kind: str) -> dict[str, float]:
    """What the start of 1,000 clients costs in all."""
    arm, idle = _arm(one, kind)["start"], _arm(one, "none")["steady"]
    share: float = arm["seconds"] / idle["seconds"]
    scale: float = 1000 / one["nodes"]

    def cost(value: Callable[[Any], float]) -> float:
        return (value(arm) - value(idle) * share) * scale

    return {
        "cpu": cost(lambda found: float(found["cpu"])),
        "written": cost(lambda found: float(found["written"])),
        "requests": cost(lambda found: float(sum(_requests(found).values()))),
    }


def _fleet_rows(one: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    thousands, cost, start = FLEET / 1000, _costs(one, "agents"), _start_cost(one, "agents")

    def times(each: str) -> str:
        return f"{thousands:.0f} × {each}"

    yield "API server: watches", f"{FLEET:,} × 2", f"{FLEET * 2:,}"
    if (connections := _arm(one, "agents").get("connections")) is not None:
        each = connections / one["nodes"]
        yield "API server: connections", f"{FLEET:,} × {each:.1f}", f"{FLEET * each:,.0f}"
    requests, cpu, written = (thousands * cost[key] for key in ("requests", "cpu", "written"))
    yield "API server: requests", times(f"{cost['requests']:.0f}"), f"{requests:,.0f} each second"
    yield "API server: CPU", times(f"{cost['cpu']:.3f}"), f"{cpu:.1f} cores"
    memory = thousands * cost["live"] / 1024**3
    yield "API server: memory in use", times(f"{cost['live'] / _MIB:.0f} MiB"), f"{memory:.1f} GiB"
    yield "API server: sent", times(f"{cost['written'] / 1000:.0f} KB"), f"{written / 1e6:.1f} MB each second"
    seconds = f"{thousands * start['cpu']:.0f} s of CPU"
    yield "API server: start of all agents", times(f"{start['cpu']:.1f} s"), seconds


def _written_rows(written: Written) -> Iterator[Sequence[str]]:
    unhealthy = int(FLEET * _UNHEALTHY)
    events, leaks = unhealthy * written.events, f"a leak on {_UNHEALTHY:.0%} of the nodes"
    yield "etcd: Leases, and writes of healthy agents", "none", "0"
    each = f"{unhealthy} × {written.events}, each of {written.event:,} bytes, updated every 5 minutes"
    yield (
        f"etcd: Events, {leaks}",
        each,
        f"{events * written.event / 1000:.0f} KB, {events / 300:.1f} writes each second",
    )
    most = FLEET * _EVENTS_A_MINUTE / 60
    yield (
        "etcd: Events at most",
        f"{FLEET:,} × {_EVENTS_A_MINUTE} a minute (rate limit)",
        f"{most:,.0f} writes each second",
    )
    reads = f"{FLEET / 15:,.0f} each second"
    yield "etcd: reads after a restart of the API servers", f"{FLEET:,} × 1 key, within 15 s", reads
    yield "Prometheus", "[what a node costs](reference.md#what-a-node-costs)", "series, samples, disk"
    yield "logs, healthy", f"{FLEET:,} × {written.healthy_day} bytes", f"{FLEET * written.healthy_day:,} bytes a day"
    started = f"{FLEET * written.at_start / 1e6:.1f} MB"
    yield "logs, start of all agents", f"{FLEET:,} × {written.at_start} bytes", started
    found = f"{unhealthy * written.finding / 1000:.0f} KB a day"
    yield f"logs, {leaks} each day", f"{unhealthy} × {written.finding} bytes", found


def _costs(one: Mapping[str, Any], kind: str) -> dict[str, float]:
    """What 1,000 clients cost in the steady state: each second, and memory and watches."""

    def of(arm: Mapping[str, Any]) -> dict[str, float]:
        steady = arm["steady"]
        rates = {key: steady[key] / steady["seconds"] for key in ("cpu", "written")}
        return {**rates, "requests": sum(_rates(arm).values()), **{key: arm[key] for key in ("live", "watches")}}

    without = of(_arm(one, "none"))
    return {key: (value - without[key]) * 1000 / one["nodes"] for key, value in of(_arm(one, kind)).items()}


def _share(one: Mapping[str, Any], key: str) -> str:
    return f"{_costs(one, 'agents')[key] / _costs(one, 'kubelets')[key]:.0%}"


def _arm(one: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(arm for arm in one["arms"] if arm["kind"] == kind)
    return found


def _rates(arm: Mapping[str, Any]) -> dict[str, float]:
    """Return the requests of each kind in a second."""
    steady = arm["steady"]
    return {name: count / steady["seconds"] for name, count in _requests(steady).items()}


def _requests(found: Mapping[str, Any]) -> dict[str, int]:
    """Without the changes of statuses, which are no cost of the clients."""
    return {name: count for name, count in found["requests"].items() if not name.startswith("PATCH")}


def _histogram(times: Sequence[float]) -> str:
    bins = [0] * (int(max(times, default=0)) // _BIN + 1)
    for one in times:
        bins[int(one) // _BIN] += 1
    most = max(*bins, 1)
    lines = (
        f"{number * _BIN:3}-{(number + 1) * _BIN:<3} {count:6,} {'#' * round(count * _WIDTH / most)}".rstrip()
        for number, count in enumerate(bins)
    )
    return "\n".join(["```", *lines, "```"])


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *lines])
