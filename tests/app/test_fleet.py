"""Ten daemons and one API server: a label, the brake, and an API server that is away."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.request import urlopen

from tests import processes
from tests.control_plane import free_ports
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
    port: int

    @property
    def left(self) -> set[str]:
        """The leaked addresses that are still reserved."""
        return {ip for ip in (*_LEAKED, _LATER) if (self.host.store / ip).exists()}

    def value(self, metric: str) -> float | None:
        """Return one sample of its metrics; None: there is none, or it does not answer."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
                lines = answer.read().decode().splitlines()
        except (URLError, ConnectionError):
            return None
        values = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return next((float(value) for name, _, value in values if name == metric), None)

    def refused(self, reason: str) -> float:
        sample = f'nodeleak_releases_refused_total{{network="kubenet",reason="{reason}"}}'
        return self.value(sample) or 0.0

    @property
    def clean(self) -> list[str]:
        """Return what a person runs in its pod."""
        return [
            *(sys.executable, "-m", "agent", "clean", "--apply", "--output=json"),
            *(f"--node={self.name}", f"--kubeconfig={self.host.kubeconfig}", "--probe=off"),
            *("--cleanup-network=auto", "--brake=kube-system/nodeleak-brake", "--api-timeout=60s"),
            *self.host.options,
        ]

    @property
    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "agent", "run", f"--node={self.name}"),
            *(f"--kubeconfig={self.host.kubeconfig}", f"--listen=127.0.0.1:{self.port}"),
            *("--cleanup=auto", "--cleanup-network=auto", f"--cleanup-node-label={_LABEL}=auto"),
            *("--brake=kube-system/nodeleak-brake", "--interval=1s", "--confirm-after=0s"),
            *("--probe=off", "--events=off", "--api-timeout=60s", "--stale-after=1h"),
            *self.host.options,
        ]


@contextmanager
def _fleet() -> Iterator[tuple[FakeFleet, list[_Agent]]]:
    with TemporaryDirectory(prefix="nodeleak-") as directory, ExitStack() as stack:
        nodes = [leaking(f"worker-{number}", _LEAKED) for number in range(_AGENTS)]
        fleet = FakeFleet(*nodes)
        url = stack.enter_context(fleet.serve())
        agents: list[_Agent] = []
        for node, port in zip(nodes, free_ports(_AGENTS), strict=True):
            host = build(Path(directory, node.name), node)
            write_kubeconfig(host, url)
            stack.enter_context(engine(host.docker_socket, node))
            agent = _Agent(node.name, host, port)
            log = host.root / "agent.log"
            stack.enter_context(processes.running(agent.command, log, processes.environment()))
            agents.append(agent)
        yield fleet, agents


def _until(agents: Iterable[_Agent], what: str, is_so: Callable[[_Agent], bool]) -> None:
    """Wait until it is so for each agent."""
    for agent in agents:
        until(partial(is_so, agent), f"{agent.name}: {what}", _LIMIT)


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
