"""What agents cost an API server (1.37) with 5,000 Nodes, beside minimal watchers of the same objects.

etcd and the API server are real. kwok watches all Nodes and pods, and holds a Lease of each Node. It renews none while
this is measured: 500 renewals a second would hide the agents on two cores. Each agent is a process with a fake node:
files, process table and containerd. It runs as in a pod, with the settings, account and rights of `deploy/base`, and
syncs every 15 s. Its node has 30 pods of 6 KB, one node in 20 has 110; all other Nodes have 2 pods. On each node with
an agent, up to 3 pods change in a minute, and the Node of 7 KB every 5 minutes. A minimal watcher
(`tests/bench/watchers.py`) lists and watches the same three things, and tries again after a second. In the end, the API
server is killed and started again. With 500 agents it takes 20 GiB of memory and half an hour.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import mean
from typing import Final

from tests import go_tool
from tests.bench import fleet_clients, fleet_nodes, kwok
from tests.bench.fleet_runs import Memory, Run, Times, measure
from tests.bench.measure import Compared
from tests.bench.scale import updates
from tests.control_plane import ControlPlane, Programs, newest
from tests.fakes.nodes import FakeNode

COLUMNS: Final = ("what", "no clients", "watchers", "agents")
_NODES: Final = 5_000
_AGENTS: Final = 500
_POD_UPDATES: Final = 3 / 60
_NODE_UPDATES: Final = 1 / 300
"""Changes of pods, and of the Node, for each agent in a second."""
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 (a private directory is made in it)
_MIB: Final = 1024**2


def figures(
    count: int = _NODES, agents: int = _AGENTS, times: Times | None = None
) -> Iterator[Compared]:
    """`agents`: how many, and in another run so many watchers."""
    programs = newest()
    if absent := programs.missing():
        needs = f"{', '.join(absent)} (hack/cluster build --profile=containerd)"
        yield Compared(f"not measured: it needs {needs}", ("-", "-", "-"))
        return
    go_tool.build(kwok.MODULE)  # before anything runs beside it
    nodes = fleet_nodes.fake_nodes(count, agents)
    with ExitStack() as stack:
        plane = stack.enter_context(_control_plane(programs, nodes))
        stack.enter_context(kwok.running(plane, count))
        runs = _runs(plane, nodes[:agents], times or Times())
        yield from _rows(nodes[:agents], *runs)


@contextmanager
def _control_plane(programs: Programs, nodes: Sequence[FakeNode]) -> Iterator[ControlPlane]:
    with tempfile.TemporaryDirectory(
        prefix="nodeleak-bench-", dir=_MEMORY if _MEMORY.is_dir() else None
    ) as directory:
        plane = ControlPlane(Path(directory), programs)
        try:
            plane.start_etcd()
            plane.store(fleet_nodes.objects(nodes))
            plane.start_api_server(audit=True)
            yield plane
        finally:
            plane.stop()


def _runs(plane: ControlPlane, nodes: Sequence[FakeNode], times: Times) -> tuple[Run, Run, Run]:
    """Return those without clients, with watchers, and with agents."""
    account = fleet_clients.mount_account(plane)
    names = [node.name for node in nodes]
    pods, changing = fleet_nodes.changing(nodes)
    with ExitStack() as stack:
        stack.enter_context(updates(plane, pods, _POD_UPDATES * len(nodes)))
        stack.enter_context(updates(plane, changing, _NODE_UPDATES * len(nodes)))
        hosts = [stack.enter_context(fleet_clients.host_of(plane, account, node)) for node in nodes]
        nobody = nullcontext(fleet_clients.Clients())
        return (
            measure("no clients", plane, times, nobody),
            measure("watchers", plane, times, fleet_clients.watchers(plane, account, names)),
            measure("agents", plane, times, fleet_clients.agents(plane, hosts, names)),
        )


def _rows(nodes: Sequence[FakeNode], alone: Run, watchers: Run, agents: Run) -> Iterator[Compared]:
    clients = len(nodes)

    def of_all(what: str, text: Callable[[Run], str]) -> Compared:
        return Compared(what, (text(alone), text(watchers), text(agents)))

    def of_clients(what: str, text: Callable[[Run], str]) -> Compared:
        return Compared(what, ("-", text(watchers), text(agents)))

    def requests(run: Run) -> float:
        return len(run.requests) * 60 / run.seconds / clients

    def received(run: Run) -> float:
        return run.received * 60 / run.seconds / clients / 1000

    def cores(run: Run) -> float:
        return run.rate(lambda reading: reading.server.cpu)

    yield Compared("clients", ("0", f"{clients:,}", f"{clients:,}"))
    yield of_clients("each: requests in a minute", lambda run: f"{requests(run):.1f}")
    yield of_clients("each: received in a minute", lambda run: f"{received(run):.1f} KB")
    yield of_all("API server: watches", lambda run: f"{run.after.server.watches:,}")
    yield of_all("API server: CPU", lambda run: f"{cores(run) * 1000:.0f} millicores")
    yield of_all(
        "API server: memory in use; resident",
        lambda run: f"{run.after.server.memory / _MIB:.0f} MiB; {run.after.resident:.0f} MiB",
    )
    yield from _rows_of_restart(of_all, of_clients)
    yield from _rows_of_agents(nodes, agents)


_Row = Callable[[str, Callable[[Run], str]], Compared]


def _rows_of_restart(of_all: _Row, of_clients: _Row) -> Iterator[Compared]:
    def requests(run: Run) -> str:
        by_verb = sorted(run.restart.first_minute.items())
        return ", ".join(f"{count:,} {verb}" for verb, count in by_verb)

    def back(run: Run) -> str:
        return "later" if run.restart.back is None else f"{run.restart.back:.0f} s"

    yield of_all("restart: first answer", lambda run: f"after {run.restart.answered:.0f} s")
    yield of_clients("restart: requests in the next minute", requests)
    yield of_clients("restart: most in one second", lambda run: f"{run.restart.peak:,}")
    yield of_all("restart: all watches are open again after another", back)
    yield of_all("restart: lists and watches that failed", lambda run: f"{run.restart.failed:,}")
    yield of_all(
        "restart: CPU of the API server to the end of that minute",
        lambda run: f"{run.restart.cpu:.1f} s",
    )


def _rows_of_agents(nodes: Sequence[FakeNode], agents: Run) -> Iterator[Compared]:
    def row(what: str, text: str) -> Compared:
        return Compared(what, ("-", "-", text))

    yield row("agents that lacked a source, also in the restart", f"{agents.unavailable:,}")
    cpu = agents.rate(lambda reading: reading.cpu) * 1000 / len(nodes)
    yield row("an agent: CPU", f"{cpu:.1f} millicores")
    for pods in (fleet_nodes.PODS, fleet_nodes.MOST_PODS):
        memory = [
            used
            for used, node in zip(agents.memory, nodes, strict=True)
            if len(node.running) == pods
        ]
        if memory:
            what = f"an agent with {pods} pods: resident memory; peak of any; its own share (PSS)"
            yield row(what, _shown(memory))


def _shown(memory: Sequence[Memory]) -> str:
    resident = mean(used.resident for used in memory)
    share = mean(used.share for used in memory)
    return f"{resident:.1f} MiB; {max(used.peak for used in memory):.1f} MiB; {share:.1f} MiB"


def main() -> None:
    """Try it with other numbers: `python -m tests.bench.fleet NODES AGENTS STEADY RECOVERY`."""
    nodes, agents, steady, recovery = sys.argv[1:]
    for row in figures(int(nodes), int(agents), Times(float(steady), float(recovery))):
        print(row, flush=True)


if __name__ == "__main__":
    main()
