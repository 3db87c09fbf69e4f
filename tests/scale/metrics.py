"""What a kube-apiserver has done and holds, by its own /metrics and /proc."""

import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from tests.scale.control_plane import ControlPlane
from tests.wire import established

_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters up to `events`; the others are what there is now."""

    at: float
    cpu: float
    """Seconds."""
    written: int
    """Bytes, to all connections: those of the clients and that to etcd."""
    requests: Counter[str]
    """By verb and resource; a watch counts when it ends."""
    codes: Counter[str]
    events: int
    """Of all watches."""
    watches: int
    connections: int
    rss: int
    live: int
    """Bytes in use after a garbage collection: heap and stacks."""
    goroutines: int


def sample(of: ControlPlane, *, memory: bool) -> Sample:
    """`memory`: collect garbage first, which costs CPU: `live` and `rss` are 0 without it."""
    if memory:
        of.get("/debug/pprof/heap?gc=1")
    # Before /metrics is written, which costs CPU too.
    at, cpu, written = time.monotonic(), _cpu(of.pid), _written(of.pid)
    requests, codes, values = Counter[str](), Counter[str](), Counter[str]()
    for name, labels, value in _series(of.get("/metrics").decode()):
        values[name] += int(value)
        if name == "apiserver_request_total":
            requests[f"{labels['verb']} {labels['resource'] or labels.get('component', '')}"] += int(value)
            codes[labels["code"]] += int(value)
    live = values["go_memstats_heap_alloc_bytes"] + values["go_memstats_stack_inuse_bytes"]
    return Sample(
        at,
        cpu,
        written,
        requests,
        codes,
        events=values["apiserver_watch_events_total"],
        watches=values["apiserver_longrunning_gauge"],
        connections=len(established(of.port)),
        rss=values["process_resident_memory_bytes"] if memory else 0,
        live=live if memory else 0,
        goroutines=values["go_goroutines"],
    )


_WANTED: Final = frozenset(
    {
        *("apiserver_request_total", "apiserver_watch_events_total", "apiserver_longrunning_gauge"),
        *("go_memstats_heap_alloc_bytes", "go_memstats_stack_inuse_bytes", "process_resident_memory_bytes"),
        "go_goroutines",
    }
)


def _series(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Parse only the wanted lines: there are tens of thousands of others."""
    lines = "\n".join(line for line in text.splitlines() if line.partition("{")[0].split(" ")[0] in _WANTED)
    for family in text_string_to_metric_families(f"{lines}\n"):
        for one in family.samples:
            yield one.name, one.labels, one.value


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _written(pid: int) -> int:
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["wchar"])
