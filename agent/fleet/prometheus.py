"""`kubectl nodeleak status --prometheus`: six queries instead of an exec in every pod."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import requests

from agent.config import UsageError
from agent.deadline import Deadline
from agent.exporters.json import Document
from agent.exporters.json.status import SCHEMA, NodeState
from agent.fleet.kubectl import Kubectl, KubectlError
from agent.fleet.nodes import Target
from agent.fleet.status import NodeStatus, status_of, unknown
from agent.model.finding import WAITING_PODS, Severity
from agent.model.text import rfc3339, truncate

_PATH: Final = "/api/v1/query"
_VALUES: Final = (
    "build_info|mode_info|last_sync_timestamp_seconds|range_addresses|range_free_addresses"
    "|reservations|releasable_addresses|cleanup_halted|brake"
)
QUERIES: Final[Mapping[str, str]] = {
    "value": f'{{__name__=~"nodeleak_({_VALUES})",state=~"(leaked|unknown)?",CLUSTER}}',
    "finding": 'nodeleak_findings{phase="confirmed",CLUSTER} > 0',
    "unavailable": "nodeleak_source_up{CLUSTER} == 0",
    "sources": "count without (source) (nodeleak_source_up{CLUSTER})",
    "failed": 'increase(nodeleak_sync_failures_total{stage="check",CLUSTER}[5m]) > 0',
    # Progress and not age, because the clocks of the node and of Prometheus may differ.
    "stalled": "changes(nodeleak_last_sync_timestamp_seconds{CLUSTER}[10m]) == 0"
    " and nodeleak_last_sync_timestamp_seconds offset 10m",
}
"""All of them, for the whole fleet. `CLUSTER`: a matcher of the cluster, if one is chosen."""

_PIECE: Final = 64 * 1024  # bytes
_MAX_RESPONSE: Final = 128 * 1024 * 1024
"""Bytes: for 15,000 nodes, the largest response has a third of it."""

_EXTRA_SECONDS: Final = 1.0
"""For a whole response, more than for each read, whose message is the better one."""

_METRIC_LABELS: Final = {
    "__name__",
    "network",
    "state",
    "detector",
    "severity",
    "phase",
    "source",
    "stage",
    "mode",
    "version",
    "commit",
    "python_version",
}
"""The labels that the agent sets. All others are those of the scrape target."""

_SEVERITIES: Final = [Severity.CRITICAL, Severity.WARNING, Severity.INFO]


class Sample(NamedTuple):
    """One value of a series."""

    labels: Mapping[str, str]
    at: float
    """When Prometheus evaluated the query, by its clock: Unix time."""
    value: float


class AgentSeries(NamedTuple):
    """What Prometheus has of one agent."""

    target: Mapping[str, str]
    """The labels of the scrape target."""
    samples: defaultdict[str, list[Sample]]
    """By query, and those of the query `value` by metric."""

    @property
    def node(self) -> str:
        """The name of the node where relabeling adds it, or else its address."""
        instance = self.target.get("instance", "")
        host, _, port = instance.rpartition(":")
        return self.target.get("node") or (host if port.isdecimal() else instance).strip("[]")

    def label(self, name: str, label: str) -> str:
        """Return a label of the first sample of a metric; empty without one."""
        return next((sample.labels.get(label, "") for sample in self.samples[name]), "")


class Server(NamedTuple):
    """A Prometheus."""

    address: str
    query: Callable[[str], str]
    """Returns the response to a query; raises KubectlError."""


def by_url(address: str, seconds: float) -> Server:
    """Return the Prometheus at a URL. `seconds`: how long it may be silent."""
    url = address.rstrip("/")
    deadline = Deadline(url, seconds + _EXTRA_SECONDS)

    def query(text: str) -> str:
        try:
            return deadline(lambda: _get(f"{url}{_PATH}", text, seconds))
        except requests.RequestException as error:
            inner = error.args[0] if error.args else error
            reason = truncate(str(getattr(inner, "reason", inner)))
            raise KubectlError(f"no answer from {url}: {reason}") from error
        except ValueError as error:
            raise KubectlError(f"no answer from {url}: {error}") from error
        except TimeoutError as error:
            raise KubectlError(f"no answer from {error}") from error

    return Server(address, query)


def through_api_server(service: str, kubectl: Kubectl, seconds: float) -> Server:
    """Return a Prometheus in the cluster, reached through the API server's proxy.

    `service`: such as `monitoring/prometheus:9090`. `seconds`: for a response.
    """
    namespace, _, name = service.partition("/")
    proxy = f"/api/v1/namespaces/{namespace}/services/{name}/proxy{_PATH}"
    timeout = f"--request-timeout={seconds:g}s"

    def query(text: str) -> str:
        path = f"{proxy}?{urlencode({'query': text})}"
        return kubectl.output("ask the API server", "get", "--raw", path, timeout)

    return Server(service, query)


def _get(url: str, query: str, seconds: float) -> str:
    """Return the text of a response, also of an error: it says what is wrong.

    Raises requests.RequestException, and ValueError for more than a Prometheus sends.
    """
    body = bytearray()
    with requests.get(url, params={"query": query}, timeout=seconds, stream=True) as response:
        for piece in response.iter_content(_PIECE):
            body += piece
            if len(body) > _MAX_RESPONSE:
                raise ValueError(f"the response is larger than {_MAX_RESPONSE:,} bytes")
    return body.decode(errors="replace")


def statuses(
    server: Server, cluster: str, chosen: Sequence[Target], node_of: Mapping[str, str]
) -> list[NodeStatus]:
    """Return the status of each chosen node; raises KubectlError and UsageError.

    `cluster`: the value of the label `cluster`; empty: any. `node_of`: the nodes of this cluster by
    name and address.
    """
    matcher = f"cluster={json.dumps(cluster)}" if cluster else ""
    samples: list[tuple[str, Sample]] = []
    try:
        for name, query in QUERIES.items():
            response = server.query(query.replace("CLUSTER", matcher))
            samples += ((name, sample) for sample in _samples(response))
        agents = _by_agent(samples)
    except ValueError as error:
        raise KubectlError(f"{server.address}: {error}") from error

    _check_clusters(agents, node_of)
    by_node: defaultdict[str, list[AgentSeries]] = defaultdict(list)
    for agent in agents:
        by_node[node_of.get(agent.node, "")].append(agent)
    return [_status(target, by_node[target.node]) for target in chosen]


def _samples(response: str) -> list[Sample]:
    """Read a response of Prometheus' HTTP API; raises ValueError if it is none, or an error."""
    try:
        tree = json.loads(response)
        # A warning, or the mark of VictoriaMetrics, says that a part is missing. No series would
        # look like no finding.
        if missing := tree.get("warnings") or (tree.get("isPartial") and "it is partial"):
            failure = f"the answer is incomplete: {missing}"
        elif tree["status"] == "success":
            return [_sample(result) for result in tree["data"]["result"]]
        else:
            failure = f"the query failed: {tree['error']}"
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        raise ValueError(
            "no answer of Prometheus' HTTP API: is this the address of a Prometheus?"
        ) from None
    raise ValueError(truncate(failure))


def _sample(result: Mapping[str, Any]) -> Sample:
    at, value = result["value"]
    labels = {str(label): str(text) for label, text in result["metric"].items()}
    return Sample(labels, at=float(at), value=float(value))


def _by_agent(samples: Iterable[tuple[str, Sample]]) -> list[AgentSeries]:
    """Group samples, each with its query, by agent. What no agent serves now is left out."""
    agents: dict[frozenset[tuple[str, str]], AgentSeries] = {}
    for query, sample in samples:
        labels = sample.labels
        for label in _METRIC_LABELS:
            if f"exported_{label}" in labels:
                raise ValueError(
                    f"Prometheus gives the agents the label {label}, which hides the one of their "
                    "metrics: give it another name in the scrape configuration, or set honor_labels"
                )

        target = {name: text for name, text in labels.items() if name not in _METRIC_LABELS}
        agent = agents.setdefault(frozenset(target.items()), AgentSeries(target, defaultdict(list)))
        metric = labels.get("__name__", "").removeprefix("nodeleak_")
        agent.samples[metric if query == "value" else query].append(sample)
    return [agent for agent in agents.values() if agent.samples["build_info"]]


def _check_clusters(agents: Sequence[AgentSeries], node_of: Mapping[str, str]) -> None:
    """Raise UsageError or KubectlError if these are not the agents of this cluster.

    Another cluster can have nodes of the same names, but its Prometheus does not have most of this
    one's.
    """
    clusters = sorted({agent.target.get("cluster", "") for agent in agents})
    if len(clusters) > 1:
        names = truncate(", ".join(map(json.dumps, clusters[:5])))
        raise UsageError(
            f"this Prometheus has agents of several clusters ({names}): "
            "add --prometheus-cluster=NAME"
        )

    strangers = [agent.node for agent in agents if agent.node not in node_of]
    if strangers and 2 * len(strangers) >= len(agents):
        example = truncate(json.dumps(min(strangers)))
        raise KubectlError(
            f"the status is unknown: {len(strangers)} of {len(agents)} agents in this Prometheus "
            f"are on no node of this cluster, such as {example}. Is it the Prometheus of another "
            "cluster? If it has several clusters, add --prometheus-cluster=NAME. If its series "
            "name no node, add the label node"
        )


def _status(target: Target, agents: Sequence[AgentSeries]) -> NodeStatus:
    """Return the status of a node by the agents that Prometheus has on it: there should be one."""
    if not agents:
        reason = (
            "Prometheus has no metrics of its agent; to ask the agent itself: "
            f"kubectl nodeleak status {target.node}"
        )
        return unknown(target, "no metrics", reason)
    if len(agents) > 1:
        names = (f"{agent.target.get('job')} {agent.target.get('instance')}" for agent in agents)
        listed = ", ".join(sorted(map(truncate, names)))
        reason = f"Prometheus has several agents of this node: {listed}"
        return unknown(target, "ambiguous", reason)

    (agent,) = agents
    if not agent.samples["last_sync_timestamp_seconds"]:
        return unknown(target, "no report", "no report: the agent has not finished its first sync")
    try:
        status = document(agent, target.node)
    except (ValueError, LookupError, OverflowError, OSError) as error:
        return unknown(target, "unreadable", f"cannot read its metrics: {truncate(repr(error))}")
    return status_of(target, status, {"node": target.node, "exit_code": 0, "document": status})


def document(agent: AgentSeries, node: str) -> Document:
    """Return `nodeleak.status/v1`.

    Raises ValueError, LookupError, OverflowError, OSError for what no agent exports.
    """
    if not agent.samples["sources"]:
        raise LookupError("Prometheus stores no nodeleak_source_up of it")

    last_sync = agent.samples["last_sync_timestamp_seconds"][-1]
    findings = _findings(agent)
    unavailable = _unavailable(agent)

    is_halted = any(sample.value for sample in agent.samples["cleanup_halted"])
    if agent.samples["stalled"]:
        state = NodeState.STALLED
    elif is_halted or any(each["severity"] != Severity.INFO for each in findings):
        state = NodeState.FINDINGS
    elif unavailable:
        state = NodeState.INCOMPLETE
    elif any(each["detector"] == WAITING_PODS for each in findings):
        state = NodeState.WAITING
    else:
        state = NodeState.OK

    return {
        "schema": SCHEMA,
        "version": agent.label("build_info", "version"),
        "node": node,
        "state": state,
        "headline": "Critical: cleanup halted" if is_halted else "",
        "report": {
            "taken_at": rfc3339(datetime.fromtimestamp(last_sync.value, UTC)),
            "age_seconds": round(max(0.0, last_sync.at - last_sync.value), 1),
            "interval_seconds": None,
        },
        "cleanup": {
            "mode": agent.label("mode_info", "mode"),
            "networks": [],
            "release_possible": None,
            "why_not": [],
            "halted": "kubectl nodeleak scan says why" if is_halted else "",
            "brake": _brake(agent),
        },
        "networks": list(_networks(agent)),
        "findings": findings,
        "unavailable": unavailable,
    }


def _brake(agent: AgentSeries) -> str | None:
    """Return `on`, `off` or `unknown`; None: the agent reads no brake."""
    if any(each.labels.get("source") == "brake" for each in agent.samples["unavailable"]):
        return "unknown"
    readings = [sample.value for sample in agent.samples["brake"]]
    if not readings:
        return None
    return "on" if any(readings) else "off"


def _findings(agent: AgentSeries) -> list[Document]:
    """Return the confirmed findings, the most severe first. Raises ValueError, LookupError."""
    findings = [
        {
            "severity": sample.labels["severity"],
            "detector": sample.labels["detector"],
            "count": int(sample.value),
            "oldest": None,
        }
        for sample in agent.samples["finding"]
    ]
    return sorted(
        findings, key=lambda each: (_SEVERITIES.index(each["severity"]), each["detector"])
    )


def _unavailable(agent: AgentSeries) -> list[Document]:
    """Return the sources that were not read, and as `a check` that some check failed."""
    reason = "kubectl nodeleak scan says why"
    sources = sorted(sample.labels["source"] for sample in agent.samples["unavailable"])
    unavailable = [{"source": source, "why": reason} for source in sources]
    if agent.samples["failed"]:
        unavailable.append({"source": "a check", "why": f"it failed within five minutes, {reason}"})
    return unavailable


def _networks(agent: AgentSeries) -> Iterator[Document]:
    """Yield each network with its numbers; None: the agent does not export it."""

    def counts(metric: str, state: str = "") -> dict[str, int]:
        return {
            sample.labels["network"]: int(sample.value)
            for sample in agent.samples[metric]
            if sample.labels.get("state", "") == state
        }

    numbers = {
        "usable": counts("range_addresses"),
        "free": counts("range_free_addresses"),
        "leaked": counts("reservations", "leaked"),
        "unknown": counts("reservations", "unknown"),
        "releasable": counts("releasable_addresses"),
    }
    for name in sorted(set().union(*numbers.values())):
        yield {"name": name} | {key: counts.get(name) for key, counts in numbers.items()}
