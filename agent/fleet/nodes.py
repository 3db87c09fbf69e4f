"""Which nodes there are, which agent each of them has, and what it answered. Pure: from what kubectl prints."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from agent.model.documents import MAX_LEVELS, is_deeper
from agent.model.text import truncate

FLEET_SCHEMA: Final = "nodeleak.fleet/v1"
_LONGEST: Final = 300
_USAGE: Final = 2
LABELS: Final = "app.kubernetes.io/name=nodeleak,app.kubernetes.io/component=agent"
"""As in deploy/base."""
WITHOUT_AGENT: Final = "kubernetes.io/os!=windows,type!=virtual-kubelet"
"""A selector of the nodes that can run an agent."""
_ADDRESS: Final = 5
"""After name, status, roles, age and version."""


class Agent(NamedTuple):
    node: str
    namespace: str
    pod: str
    container: str
    ready: bool = True
    not_running: str = ""
    """Why no command can be run in it; empty: one can."""

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.pod}"


class Target(NamedTuple):
    node: str
    status: str
    """As `kubectl get nodes` prints it, such as `Ready,SchedulingDisabled`."""
    agent: Agent | None

    @property
    def unreachable(self) -> str:
        """Why this node cannot be asked; empty: it can."""
        if self.agent is None:
            return "no agent pod on this node"
        return (
            self.agent.not_running
            and f"agent pod {self.agent.name} is not running: {self.agent.not_running}"
        )


def agents_in(pods: Iterable[Mapping[str, Any]]) -> list[Agent]:
    """Return the agents. Of several on one node, as in an update or after an eviction, the last one is to be asked."""
    agents = []
    for pod in pods:
        metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
        names = [container["name"] for container in spec["containers"]]
        container = "nodeleak" if "nodeleak" in names else names[0]
        conditions = {
            condition["type"]: condition["status"] for condition in status.get("conditions") or ()
        }
        ready, not_running = conditions.get("Ready") == "True", _not_running(status, container)
        order = (
            not not_running,
            "deletionTimestamp" not in metadata,
            ready,
            metadata["creationTimestamp"],
        )
        node, namespace, name = spec.get("nodeName", ""), metadata["namespace"], metadata["name"]
        agents.append((order, Agent(node, namespace, name, container, ready, not_running)))
    return [agent for _, agent in sorted(agents)]


def _not_running(status: Mapping[str, Any], container: str) -> str:
    """Say why no command can be run in the container; empty if one can. A sidecar may wait while the agent runs."""
    states = {found["name"]: found["state"] for found in status.get("containerStatuses") or ()}
    state, phase = states.get(container, {}), status.get("phase")
    if "waiting" in state:
        return str(state["waiting"]["reason"])
    return "" if "running" in state or phase == "Running" else phase or "no status yet"


def targets(node_lines: str, found: Iterable[Agent]) -> list[Target]:
    """Combine `kubectl get nodes --no-headers` with the agents' pods; of several on one node, the last one is asked."""
    agents = {agent.node: agent for agent in found}
    nodes = (line.split() for line in node_lines.splitlines())
    return [Target(name, status, agents.get(name)) for name, status, *_ in nodes]


def addresses(node_lines: str) -> dict[str, str]:
    """Read `kubectl get nodes --no-headers --output=wide`: the node of each internal address."""
    nodes = [fields for line in node_lines.splitlines() if len(fields := line.split()) > _ADDRESS]
    # A node that was replaced may still have its object, with the same address: neither is known by it.
    times = Counter(fields[_ADDRESS] for fields in nodes)
    return {fields[_ADDRESS]: fields[0] for fields in nodes if times[fields[_ADDRESS]] == 1}


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key by which worker-2 comes before worker-10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    ]


@dataclass(frozen=True)
class Answer:
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
        """The error on one line: Python's traceback and kubectl's warnings end with what matters."""
        if lines := [line for line in self.error.splitlines() if line.strip()]:
            # Of wrong usage, the first line is the mistake, and hints follow.
            return truncate(lines[0 if self.exit_code == _USAGE else -1], _LONGEST)
        missing = "its output is not the expected document"
        return f"exit code {self.exit_code} without a message" if self.exit_code else missing

    @cached_property
    def document(self) -> dict[str, Any] | None:
        """The JSON document; None if there is none. Whatever is in it can be written as JSON again."""
        try:
            tree = json.loads(self.output)
            json.dumps(tree, allow_nan=False)  # Python reads NaN and 1e999, and nobody else does
        except (ValueError, RecursionError):
            return None
        return tree if isinstance(tree, dict) and not is_deeper(tree, MAX_LEVELS) else None

    def entry(self) -> dict[str, Any]:
        known: dict[str, Any] = {"node": self.node, "exit_code": self.exit_code}
        if self.exit_code is None or self.document is None:
            return known | {"error": self.reason}
        return known | {"document": self.document}


def answer_of(node: str, code: int, output: str, errors: str) -> Answer:
    """Make an answer of a `kubectl exec` that ended: its exit code may be kubectl's own."""
    lines = errors.splitlines()
    # The command on the node can write the same line, but it cannot change kubectl's own exit code.
    last = f"command terminated with exit code {code}"
    if code and last not in lines:
        return Answer(node, None, "", errors.strip() or f"kubectl exec ended with exit code {code}")
    answer = Answer(node, code, output, "\n".join(line for line in lines if line != last).strip())
    # Every command prints something, and only a document begins with a brace.
    if code or (answer.document is not None if output.startswith("{") else output.strip()):
        return answer
    # kubectl ends with 0 if the connection breaks, and 1.30 to 1.33 can lose what arrives at once.
    why = "kubectl exec ended without the whole output: the connection was lost, or kubectl lost it"
    return Answer(node, None, "", why, lost=True)


def merged(command: str, entries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {"schema": FLEET_SCHEMA, "command": command, "nodes": list(entries)}
