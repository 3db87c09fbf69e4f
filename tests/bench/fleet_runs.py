"""One run of the section `fleet`: what an API server and its clients use, and what a restart of the former costs."""

import json
import math
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

from tests.bench.fleet_clients import Clients, open_watches, total
from tests.bench.measure import footprint
from tests.bench.scale import AGENT, Sample, sample
from tests.control_plane import ControlPlane

MINUTE: Final = 60.0
_SETTLE: Final = 20.0


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds."""

    steady: float = 150.0
    recovery: float = 80.0
    """From the first answer of the restarted server on."""


class Request(NamedTuple):
    at: float
    verb: str


class Memory(NamedTuple):
    """MiB of a process."""

    resident: float
    peak: float
    share: float
    """What several processes use counted in part (PSS)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What the API server and its clients have used up to now."""

    server: Sample
    resident: float
    """MiB of the API server."""
    received: Mapping[str, int]
    """Bytes, by each connection of a client that is open."""
    cpu: float
    """Seconds, of all clients."""


@dataclass(frozen=True, slots=True)
class Restart:
    answered: float
    """Seconds from the start of the process to its first answer."""
    back: float | None
    """Seconds from then until as many watches were open as before. None: it took longer than was measured."""
    cpu: float
    """Seconds that the process needed up to a minute after its first answer."""
    requests: list[Request]
    """Of the clients, by seconds from the first answer."""
    failed: int
    """Lists and watches of whomever that were answered with 429 or 5xx."""

    @property
    def first_minute(self) -> Counter[str]:
        """Return how many requests there were, by verb."""
        return Counter(request.verb for request in self.requests if request.at < MINUTE)

    @property
    def peak(self) -> int:
        """Return the most requests in one second."""
        by_second = Counter(math.floor(request.at) for request in self.requests)
        return max(by_second.values(), default=0)


@dataclass(frozen=True, slots=True)
class Run:
    before: Reading
    after: Reading
    requests: list[Request]
    """Between the two readings."""
    restart: Restart
    memory: list[Memory]
    """Of each client, after the restart."""
    unavailable: int
    """Clients that logged that something could not be read."""

    @property
    def seconds(self) -> float:
        return self.after.server.at - self.before.server.at

    def rate(self, value: Callable[[Reading], float]) -> float:
        """Return what was used in a second."""
        return (value(self.after) - value(self.before)) / self.seconds

    @property
    def received(self) -> int:
        """Return the bytes that clients received, but for those of connections that have ended."""
        before = self.before.received
        return sum(
            count - before.get(connection, 0) for connection, count in self.after.received.items()
        )


def measure(
    what: str, plane: ControlPlane, times: Times, running: AbstractContextManager[Clients]
) -> Run:
    """Measure a steady time with these clients, and a restart of the API server."""
    print(f"fleet: {what} …", file=sys.stderr, flush=True)
    with running as clients:
        time.sleep(_SETTLE)
        begun = time.time()
        before = _read(plane, clients.pids)
        time.sleep(times.steady)
        after = _read(plane, clients.pids)
        requests = [request for request in _requests(plane) if request.at >= begun]
        return Run(
            before=before,
            after=after,
            requests=requests,
            restart=_restart(plane, times),
            memory=[_memory(pid) for pid in clients.pids],
            unavailable=sum("source.unavailable" in log.read_text() for log in clients.logs),
        )


def _read(plane: ControlPlane, pids: Sequence[int]) -> Reading:
    server = sample(plane)
    return Reading(
        server=server,
        resident=footprint(plane.api_server).rss_mib,
        received=_received(plane.port, pids),
        cpu=sum(footprint(pid).cpu_ms for pid in pids) / 1000,
    )


def _received(port: int, pids: Sequence[int]) -> dict[str, int]:
    """Return the bytes that each connection of these processes to a port has received so far."""
    command = ["ss", "--tcp", "--info", "--processes", "--numeric", "--oneline", "--no-header"]
    done = subprocess.run(
        [*command, f"dport = :{port}"], capture_output=True, text=True, check=True
    )
    own = {f"pid={pid}," for pid in pids}
    received: dict[str, int] = {}
    for line in done.stdout.splitlines():
        count = re.search(r"bytes_received:(\d+)", line)
        if count and own & set(re.findall(r"pid=\d+,", line)):
            received[line.split()[3]] = int(count[1])
    return received


def _memory(pid: int) -> Memory:
    used = footprint(pid)
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (share,) = (line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:"))
    return Memory(used.rss_mib, used.peak_mib, int(share) / 1024)


def _requests(plane: ControlPlane) -> list[Request]:
    """Return all requests of agents and watchers so far."""
    events = map(json.loads, plane.audit_log.read_text().splitlines())
    return [
        Request(
            datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(), event["verb"]
        )
        for event in events
        if event["user"]["username"] == AGENT
    ]


def _restart(plane: ControlPlane, times: Times) -> Restart:
    watches = open_watches(plane)
    plane.kill_api_server()
    begun = time.time()
    answered = plane.start_api_server(audit=True)
    back = cpu = None
    while (seconds := time.time() - answered) < max(times.recovery, MINUTE) or cpu is None:
        if back is None and open_watches(plane) >= watches:
            back = seconds
        if cpu is None and seconds >= MINUTE:
            cpu = footprint(plane.api_server).cpu_ms / 1000
        time.sleep(1)
    return Restart(
        answered=answered - begun,
        back=back,
        cpu=cpu,
        requests=[
            Request(request.at - answered, request.verb)
            for request in _requests(plane)
            if request.at >= begun
        ],
        failed=sum(
            total(plane, "apiserver_request_total", verb, code)
            for verb in ('verb="LIST"', 'verb="WATCH"')
            for code in ('code="429"', 'code="5')
        ),
    )
