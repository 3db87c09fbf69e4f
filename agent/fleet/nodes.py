"""Nodes, their agents, and the answers of these. Pure: from what kubectl prints."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeAlias

from agent.exporters.json import Document
from agent.model.documents import MAX_LEVELS, is_deeper
from agent.model.text import truncate

KubeObject: TypeAlias = Mapping[str, Any]
"""A Kubernetes object, or a part of one, as JSON."""

FLEET_SCHEMA: Final = "nodeleak.fleet/v1"
LABELS: Final = "app.kubernetes.io/name=nodeleak,app.kubernetes.io/component=agent"
"""As in deploy/base."""

CAN_RUN_AGENT: Final = "kubernetes.io/os!=windows,type!=virtual-kubelet"
"""A selector of nodes."""

_MAX_REASON: Final = 300
"""Characters."""

_USAGE: Final = 2
"""The exit code of nodeleak for wrong usage."""

_ADDRESS: Final = 5
"""The column of the internal address, after name, status, roles, age and version."""


class Agent(NamedTuple):
    """The pod of the DaemonSet on a node."""

    node: str
    """Empty: the pod is not scheduled yet."""
    namespace: str
    pod: str
    container: str
    ready: bool = True
    not_running: str | None = None
    """Why no command can be run in it; None: one can."""

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.pod}"


class Target(NamedTuple):
    """A node that a command is for."""

    node: str
    status: str
    """As `kubectl get nodes` prints it, such as `Ready,SchedulingDisabled`."""
    agent: Agent | None

    @property
    def unreachable(self) -> str | None:
        """Why no command can be run on this node; None: one can."""
        if self.agent is None:
            return "no agent pod on this node"
        if self.agent.not_running is None:
            return None
        return f"agent pod {self.agent.name} is not running: {self.agent.not_running}"


def agents_in(pods: Iterable[KubeObject]) -> list[Agent]:
    """Return the agents, as `targets` needs them. An update may leave several on a node."""
    return [_agent(pod) for pod in sorted(pods, key=_usability)]


def _agent(pod: KubeObject) -> Agent:
    container = _container(pod)
    return Agent(
        node=pod["spec"].get("nodeName", ""),
        namespace=pod["metadata"]["namespace"],
        pod=pod["metadata"]["name"],
        container=container,
        ready=_is_ready(pod),
        not_running=_not_running(pod, container),
    )


def _usability(pod: KubeObject) -> tuple[object, ...]:
    """Return a key by which the pod that can answer best comes last."""
    metadata = pod["metadata"]
    return (
        _not_running(pod, _container(pod)) is None,
        "deletionTimestamp" not in metadata,
        _is_ready(pod),
        metadata["creationTimestamp"],
        metadata["name"],
    )


def agent_container(containers: Sequence[KubeObject]) -> KubeObject:
    """Return the agent's container: another one is a sidecar. Raises IndexError without any."""
    named = (container for container in containers if container["name"] == "nodeleak")
    return next(named, containers[0])


def _container(pod: KubeObject) -> str:
    name: str = agent_container(pod["spec"]["containers"])["name"]
    return name


def _is_ready(pod: KubeObject) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _not_running(pod: KubeObject, container: str) -> str | None:
    """Return why no command can be run in the container, or None. A sidecar may wait meanwhile."""
    status = pod.get("status") or {}
    state = container_state(status, container)
    phase: str | None = status.get("phase")
    if "waiting" in state:
        return str(state["waiting"]["reason"])
    if "running" in state or phase == "Running":
        return None
    return phase or "no status yet"


def container_state(status: KubeObject, container: str) -> KubeObject:
    """Return the state of a container, from the status of its pod; empty: it has none yet."""
    states = {each["name"]: each["state"] for each in status.get("containerStatuses") or ()}
    state: KubeObject = states.get(container, {})
    return state


def targets(node_lines: str, agents: Iterable[Agent]) -> list[Target]:
    """Combine `kubectl get nodes --no-headers` with the agents; the last of a node is used."""
    by_node = {agent.node: agent for agent in agents}
    nodes: list[Target] = []
    for line in node_lines.splitlines():
        name, status, *_ = line.split()
        nodes.append(Target(name, status, by_node.get(name)))
    return nodes


def nodes_by_address(node_lines: str) -> dict[str, str]:
    """Read `kubectl get nodes --no-headers --output=wide`: the node of each internal address."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for line in node_lines.splitlines():
        fields = line.split()
        if len(fields) > _ADDRESS:
            names[fields[_ADDRESS]].append(fields[0])
    # The object of a node that was replaced may still exist, with the same address.
    return {address: nodes[0] for address, nodes in names.items() if len(nodes) == 1}


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a key by which worker-2 comes before worker-10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    ]


@dataclass(frozen=True)
class Answer:
    """What a command on a node printed."""

    node: str
    exit_code: int | None
    """Of the command on the node. None: it is not known that the command ran to its end."""
    output: str = ""
    error: str = ""
    """What it, or kubectl, printed to standard error; or why there is no answer."""
    lost: bool = False
    """Whether kubectl reported success, and the output shows that it is none."""

    @property
    def reason(self) -> str:
        """The error on one line: the last of a traceback, or of kubectl's warnings."""
        if lines := [line for line in self.error.splitlines() if line.strip()]:
            # Of wrong usage, the first line is the mistake, and hints follow.
            line = lines[0] if self.exit_code == _USAGE else lines[-1]
            return truncate(line, _MAX_REASON)
        if self.exit_code:
            return f"exit code {self.exit_code} without a message"
        return "its output is not the expected document"

    @cached_property
    def document(self) -> Document | None:
        """The JSON document, which can be written as JSON again; None if there is none."""
        try:
            tree = json.loads(self.output)
            json.dumps(tree, allow_nan=False)  # Python reads NaN and 1e999, and nobody else does
        except (ValueError, RecursionError):
            return None

        if not isinstance(tree, dict) or is_deeper(tree, MAX_LEVELS):
            return None
        return tree

    def entry(self) -> Document:
        """Return its part of a merged document."""
        entry: Document = {"node": self.node, "exit_code": self.exit_code}
        if self.exit_code is None or self.document is None:
            return entry | {"error": self.reason}
        return entry | {"document": self.document}


def answer_of(node: str, code: int, output: str, errors: str) -> Answer:
    """Make an answer of a `kubectl exec` that ended: its exit code may be kubectl's own."""
    lines = errors.splitlines()
    # The command on the node can write the same line, but it cannot change kubectl's own exit code.
    last = f"command terminated with exit code {code}"
    if code and last not in lines:
        error = errors.strip() or f"kubectl exec ended with exit code {code}"
        return Answer(node, None, error=error)

    error = "\n".join(line for line in lines if line != last).strip()
    answer = Answer(node, code, output, error)
    # Every command prints something, and only a document begins with a brace.
    is_whole = bool(output.strip())
    if output.startswith("{"):
        is_whole = answer.document is not None
    if code or is_whole:
        return answer

    # kubectl ends with 0 if the connection breaks, and 1.30 to 1.33 can lose what arrives at once.
    error = (
        "kubectl exec ended without the whole output: the connection was lost, or kubectl lost it"
    )
    return Answer(node, None, error=error, lost=True)


def merged(command: str, entries: Iterable[Document]) -> Document:
    """Return the document of a command on several nodes. `entries`: their parts of it."""
    return {"schema": FLEET_SCHEMA, "command": command, "nodes": list(entries)}
