"""Ten daemons and one API server: a label, the brake, and an API server that is away."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests import processes
from tests.cli.commands import Daemon, running, served
from tests.fakes.engine import engine
from tests.fakes.fleet import FakeFleet, leak, leaking
from tests.fakes.host import Host, build, write_kubeconfig, write_store
from tests.wire import run, until

_AGENTS = 10
_LIMIT = 600.0
"""Seconds for one state of all agents: of a machine that is much slower than usual."""
_LABEL = "nodeleak.dev/cleanup"
_LEAKED = ("10.244.1.101", "10.244.1.102", "10.244.1.103")
_LATER = "10.244.1.104"


@dataclass(frozen=True)
class _Agent:
    name: str
    host: Host
    daemon: Daemon
    port: int

    @property
    def left(self) -> set[str]:
        """The leaked addresses that are still reserved."""
        return {ip for ip in (*_LEAKED, _LATER) if (self.host.store / ip).exists()}

    def value(self, metric: str) -> float | None:
        """Return one sample of its metrics; None: there is none, or it does not answer yet."""
        try:
            _, text = served(self.port, "/metrics")
        except OSError:
            return None
        values = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return next((float(value) for name, _, value in values if name == metric), None)

    def refused(self, reason: str) -> float:
        sample = f'nodeleak_releases_refused_total{{network="kubenet",reason="{reason}"}}'
        return self.value(sample) or 0.0

    @property
    def clean(self) -> list[str]:
        """Return what a person runs in its pod."""
        return [
            *(sys.executable, "-m", "agent", "clean", "--apply", "--output=json"),
            *_options(self.name, self.host),
        ]


def _options(name: str, host: Host) -> list[str]:
    return [
        *(f"--node={name}", f"--kubeconfig={host.kubeconfig}", "--probe=off"),
        *("--cleanup-network=auto", "--brake=kube-system/nodeleak-brake"),
        *("--api-timeout=60s", "--docker-timeout=60s"),
        *host.options,
    ]


_OF_DAEMON: Final = (
    *("--listen=127.0.0.1:0", "--cleanup=auto", f"--cleanup-node-label={_LABEL}=auto"),
    *("--interval=1s", "--confirm-after=0s", "--events=off", "--stale-after=1h"),
)


@contextmanager
def _fleet() -> Iterator[tuple[FakeFleet, list[_Agent]]]:
    with TemporaryDirectory(prefix="nodeleak-") as directory, ExitStack() as stack:
        nodes = [leaking(f"worker-{number}", _LEAKED) for number in range(_AGENTS)]
        fleet = FakeFleet(*nodes)
        url = stack.enter_context(fleet.serve())
        daemons: list[tuple[str, Host, Daemon]] = []
        for node in nodes:
            host = build(Path(directory, node.name), node)
            write_kubeconfig(host, url)
            stack.enter_context(engine(host.docker_socket, node))
            daemon = stack.enter_context(running(*_OF_DAEMON, *_options(node.name, host)))
            daemons.append((node.name, host, daemon))
        yield fleet, [_Agent(*each, _port(each[-1])) for each in daemons]


def _port(daemon: Daemon) -> int:
    """Wait until it serves HTTP, and return where."""

    def ports() -> list[int]:
        assert daemon.process.poll() is None, daemon.lines
        return [event["port"] for event in daemon.events if event["event"] == "agent.started"]

    until(ports, "the agent has started", _LIMIT)
    return ports()[0]


def _until(agents: Iterable[_Agent], what: str, is_so: Callable[[_Agent], bool]) -> None:
    """Wait until it is so for each agent. One that has ended is not waited for."""

    def holds(agent: _Agent) -> bool:
        assert agent.daemon.process.poll() is None, agent.daemon.lines
        return is_so(agent)

    for agent in agents:
        until(partial(holds, agent), f"{agent.name}: {what}", _LIMIT)


def _refuses(reason: str) -> Callable[[_Agent], bool]:
    """Whether the agent refuses for this reason from now on, and not only before."""
    before: dict[str, float] = {}

    def is_so(agent: _Agent) -> bool:
        return agent.refused(reason) > before.setdefault(agent.name, agent.refused(reason))

    return is_so


def test_ten_agents_release_where_the_label_is_and_the_brake_is_known_to_be_off() -> None:
    with _fleet() as (fleet, agents):
        chosen, others = agents[: _AGENTS // 2], agents[_AGENTS // 2 :]
        _until(agents, "without a label, it only observes", _refuses("node_not_chosen"))
        assert all(agent.left == {*_LEAKED} for agent in agents)

        fleet.set_brake("a test")
        _until(agents, "it sees the brake", lambda agent: agent.value("nodeleak_brake") == 1)
        for agent in chosen:
            fleet.label(agent.name, **{_LABEL: "auto"})
        _until(agents, "the brake refuses", _refuses("brake_on"))
        releasable = 'nodeleak_releasable_addresses{network="kubenet"}'
        _until(agents, "it counts", lambda agent: agent.value(releasable) == len(_LEAKED))
        cleaned = json.loads(run(*chosen[0].clean, environment=processes.environment()))
        assert {address["reason"] for address in cleaned["addresses"]} == {"brake_on"}
        assert all(agent.left == {*_LEAKED} for agent in agents)

        fleet.end_brake()
        _until(chosen, "it releases", lambda agent: not agent.left)
        _until(others, "the others see its end", lambda agent: agent.value("nodeleak_brake") == 0)
        assert all(agent.left == {*_LEAKED} for agent in others)

        # The watches still have what they had, for --stale-after: only the reading before a release fails.
        fleet.go_away(away=True)
        refuses = _refuses("source_unavailable")

        def refuses_a_new_leak(agent: _Agent) -> bool:
            if not agent.left:  # at first, the last reading of the brake may be new enough
                write_store(agent.host.store, [leak(_LATER)])
            return refuses(agent)

        _until(chosen, "an unreadable brake refuses", refuses_a_new_leak)
        assert all(agent.left == {_LATER} for agent in chosen)

        fleet.go_away(away=False)
        _until(chosen, "it goes on", lambda agent: not agent.left)
        assert all(agent.left == {*_LEAKED} for agent in others)
