"""Which nodes there are, and which agent each of them has. Pure: from the lines that kubectl prints."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import digits
from typing import Final

LABELS: Final = "app.kubernetes.io/name=nodeleak,app.kubernetes.io/component=agent"
"""As in deploy/base."""
WITHOUT_AGENT: Final = "kubernetes.io/os!=windows,type!=virtual-kubelet"
"""A selector of the nodes that can run an agent."""
_FIELDS: Final = (
    ".spec.nodeName",
    ".metadata.namespace",
    ".metadata.name",
    ".metadata.creationTimestamp",
    ".metadata.deletionTimestamp",
    ".status.phase",
    '.status.conditions[?(@.type=="Ready")].status',
    ".spec.containers[*].name",
    '.status.containerStatuses[?(@.name=="nodeleak")].state.waiting.reason',
    '.status.containerStatuses[?(@.name=="nodeleak")].state.running.startedAt',
)
_NAME: Final = _FIELDS.index(".metadata.name")
_ADDRESS: Final = 5
"""After name, status, roles, age and version."""
_NAMES: Final = '{.items[*].metadata.name}{"\\n"}'
JSONPATH: Final = (
    "jsonpath={range .items[*]}" + '{"\\t"}'.join(f"{{{field}}}" for field in _FIELDS) + f'{{"\\n"}}{{end}}{_NAMES}'
)
"""One line for each pod, then their names. A whole pod is a hundred times as long, and a cluster has thousands of them.

A kubelet can write any text into the status of its pods, also lines of other nodes. The API server checks names.
"""


@dataclass(frozen=True, slots=True)
class Agent:
    """A pod of the DaemonSet."""

    node: str
    namespace: str
    pod: str
    container: str
    ready: bool = True
    not_running: str = ""
    """Why no command can be run in it; empty: one can."""
    terminating: bool = False
    created: str = ""

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.pod}"


@dataclass(frozen=True, slots=True)
class Target:
    """A node, and its agent."""

    node: str
    status: str
    """As `kubectl get nodes` prints it, such as `Ready,SchedulingDisabled`."""
    agent: Agent | None

    @property
    def unreachable(self) -> str:
        """Why this node cannot be asked; empty: it can."""
        if self.agent is None:
            return "no agent pod on this node"
        return self.agent.not_running and f"agent pod {self.agent.name} is not running: {self.agent.not_running}"


class Untrusted(Exception):
    """Somebody may have made pods, or lines of pods, that could answer for any node. Says what to do."""


def agents_in(listed: str) -> list[Agent]:
    """Read what JSONPATH prints; raises Untrusted."""
    *lines, names = listed.splitlines() or [""]
    fields = [line.split("\t") for line in lines]
    if any(len(one) != len(_FIELDS) for one in fields) or [one[_NAME] for one in fields] != names.split():
        raise Untrusted("the status of an agent's pod has a line break or tab: see 'kubectl get pods -o json'")
    return [_agent(*one) for one in fields]


def targets(node_lines: str, found: Iterable[Agent]) -> list[Target]:
    """Combine `kubectl get nodes --no-headers` with the agents' pods; raises Untrusted."""
    agents, namespaces = dict[str, Agent](), set[str]()
    for agent in sorted(found, key=_usefulness):
        agents[agent.node] = agent
        namespaces.add(agent.namespace)
    if len(namespaces) > 1:
        where = ", ".join(sorted(namespaces))
        raise Untrusted(
            f"pods with the labels of the agent are in several namespaces: {where}: choose with --namespace"
        )
    nodes = (line.split() for line in node_lines.splitlines() if line.strip())
    try:
        return [Target(name, status, agents.get(name)) for name, status, *_ in nodes]
    except ValueError as error:
        raise Untrusted("'kubectl get nodes' printed a node without a status: run it to see the line") from error


def addresses(node_lines: str) -> dict[str, str]:
    """Read `kubectl get nodes --no-headers --output=wide`: the node of each internal address."""
    nodes = [fields for line in node_lines.splitlines() if len(fields := line.split()) > _ADDRESS]
    # A node that was replaced may still have its object, with the same address: neither is known by it.
    times = Counter(fields[_ADDRESS] for fields in nodes)
    return {fields[_ADDRESS]: fields[0] for fields in nodes if times[fields[_ADDRESS]] == 1}


def only(found: Iterable[Target], names: Sequence[str]) -> tuple[list[Target], list[str]]:
    """Return the targets with these names, each once, and the names that no node has; without names, all targets."""
    by_name = {target.node: target for target in found}
    wanted = list(dict.fromkeys(names)) if names else list(by_name)
    return [by_name[name] for name in wanted if name in by_name], [name for name in wanted if name not in by_name]


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key by which worker-2 comes before worker-10."""
    parts = filter(None, re.split(r"([0-9]{1,18})", name))
    return [(int(part), "") if part[0] in digits else (-1, part) for part in parts]


def _agent(
    node: str,
    namespace: str,
    pod: str,
    created: str,
    deleted: str,
    phase: str,
    ready: str,
    containers: str,
    waiting: str,
    running: str,
) -> Agent:
    names = containers.split()
    return Agent(
        node=node,
        namespace=namespace,
        pod=pod,
        container="nodeleak" if "nodeleak" in names else next(iter(names), ""),
        ready=ready == "True",
        # A sidecar may wait while the agent runs.
        not_running="" if running else waiting or ("" if phase == "Running" else phase or "no status yet"),
        terminating=bool(deleted),
        created=created,
    )


def _usefulness(agent: Agent) -> tuple[bool, bool, bool, str]:
    """During an update a node has two agents, and an evicted pod stays in the list."""
    return (not agent.not_running, not agent.terminating, agent.ready, agent.created)
