"""`kubectl nodeleak status --prometheus`: six queries instead of an exec in every pod."""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import UTC, datetime
from threading import Thread
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import requests

from agent.config import UsageError
from agent.exporters.json.status import SCHEMA, NodeState
from agent.fleet.kubectl import KubectlError
from agent.fleet.nodes import Target
from agent.fleet.session import Session
from agent.fleet.status import NodeStatus, status_of, unknown
from agent.model.finding import Severity
from agent.model.text import rfc3339, truncate

_PATH: Final = "/api/v1/query"
_VALUES: Final = "build_info|mode_info|last_sync_timestamp_seconds|range_addresses|range_free_addresses|reservations|cleanup_halted"  # noqa: E501
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
_LARGEST_ANSWER: Final = 128 * 1024 * 1024
"""Bytes: for 15,000 nodes, the largest answer has a third of it."""
_SLACK: Final = 1.0
"""Seconds more for a whole answer than for each read, whose message is the better one."""
_OF_A_METRIC: Final = {
    *("__name__", "network", "state", "detector", "severity", "phase", "source", "stage"),
    *("mode", "version", "commit", "python_version"),
}
_ORDER: Final = [
    severity.value for severity in (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
]


class Sample(NamedTuple):
    labels: Mapping[str, str]
    at: float
    value: float


class AgentSeries(NamedTuple):
    target: Mapping[str, str]
    of: defaultdict[str, list[Sample]]
    """The samples of one agent, by query, and those of the query `value` by metric."""

    @property
    def node(self) -> str:
        """The name of the node where relabeling adds it, or else its address."""
        instance = self.target.get("instance", "")
        host, _, port = instance.rpartition(":")
        return self.target.get("node") or (host if port.isdecimal() else instance).strip("[]")

    def label(self, name: str, label: str) -> str:
        return next((sample.labels.get(label, "") for sample in self.of[name]), "")


def statuses(arguments: argparse.Namespace, session: Session) -> list[NodeStatus]:
    """Return the status of each chosen node; raises KubectlError if Prometheus does not answer, and UsageError."""
    found, known = session.nodes(arguments.nodes)
    cluster = arguments.prometheus_cluster
    chosen = f"cluster={json.dumps(cluster)}" if cluster else ""
    queries = {name: query.replace("CLUSTER", chosen) for name, query in QUERIES.items()}
    try:
        answers = ((name, _ask(arguments, session, query)) for name, query in queries.items())
        agents = _by_agent(
            (name, sample) for name, answer in answers for sample in _samples(answer)
        )
    except ValueError as error:
        raise KubectlError(
            f"{arguments.prometheus or arguments.prometheus_service}: {error}"
        ) from error
    _check_clusters(agents, known)
    of_node: defaultdict[str, list[AgentSeries]] = defaultdict(list)
    for agent in agents:
        of_node[known.get(agent.node, "")].append(agent)
    return [_status(target, of_node[target.node]) for target in found]


def _ask(arguments: argparse.Namespace, session: Session, query: str) -> str:
    seconds = arguments.timeout.total_seconds()
    if not arguments.prometheus:
        namespace, _, service = arguments.prometheus_service.partition("/")
        path = f"/api/v1/namespaces/{namespace}/services/{service}/proxy{_PATH}?{urlencode({'query': query})}"
        return session.kubectl.output(
            "ask the API server", "get", "--raw", path, f"--request-timeout={seconds:g}s"
        )
    url = arguments.prometheus.rstrip("/")
    try:
        return _in_time(lambda: _get(f"{url}{_PATH}", query, seconds), seconds + _SLACK)
    except requests.RequestException as error:
        inner = error.args[0] if error.args else error
        why = truncate(str(getattr(inner, "reason", inner)))
        raise KubectlError(f"no answer from {url}: {why}") from error
    except (TimeoutError, ValueError) as error:
        raise KubectlError(f"no answer from {url}: {error}") from error


def _get(url: str, query: str, seconds: float) -> str:
    """Return the text of an answer, also of an error: it says what is wrong.

    Raises requests.RequestException, and ValueError for more than a Prometheus sends.
    """
    body = bytearray()
    with requests.get(url, params={"query": query}, timeout=seconds, stream=True) as response:
        for piece in response.iter_content(_PIECE):
            body += piece
            if len(body) > _LARGEST_ANSWER:
                raise ValueError(f"the response is larger than {_LARGEST_ANSWER:,} bytes")
    return body.decode(errors="replace")


def _in_time(get: Callable[[], str], seconds: float) -> str:
    """Return what another thread gets; raises TimeoutError, and whatever is raised there."""
    answer = Future[str]()

    def ask() -> None:
        try:
            answer.set_result(get())
        except BaseException as error:  # noqa: BLE001 (it is raised in the asking thread)
            answer.set_exception(error)

    # It does not keep the program alive: a server may send a byte now and then for ever.
    Thread(target=ask, daemon=True).start()
    wait([answer], seconds)
    if not answer.done():
        raise TimeoutError(f"no complete response within {seconds:g} s")
    return answer.result()


def _samples(answer: str) -> list[Sample]:
    """Read the answer of Prometheus' HTTP API; raises ValueError if it is none, or an error."""
    try:
        tree = json.loads(answer)
        # A warning, or the mark of VictoriaMetrics, says that a part is missing. No series would look like no finding.
        missing = tree.get("warnings") or (tree.get("isPartial") and "it is partial")
        if tree["status"] == "success" and not missing:
            return [_sample(result) for result in tree["data"]["result"]]
        why = (
            f"the answer is incomplete: {missing}"
            if missing
            else f"the query failed: {tree['error']}"
        )
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ValueError(
            "no answer of Prometheus' HTTP API: is this the address of a Prometheus?"
        ) from error
    raise ValueError(truncate(why))


def _sample(result: Mapping[str, Any]) -> Sample:
    at, value = result["value"]
    return Sample(
        {str(label): str(text) for label, text in result["metric"].items()}, float(at), float(value)
    )


def _by_agent(samples: Iterable[tuple[str, Sample]]) -> list[AgentSeries]:
    """Group samples by the agent that they are of; what no agent serves now is left out."""
    agents: dict[frozenset[tuple[str, str]], AgentSeries] = {}
    for query, sample in samples:
        for label in _OF_A_METRIC:
            if f"exported_{label}" in sample.labels:
                raise ValueError(
                    f"Prometheus gives the agents the label {label}, which hides the one of their metrics: "
                    "give it another name in the scrape configuration, or set honor_labels"
                )
        target = {key: value for key, value in sample.labels.items() if key not in _OF_A_METRIC}
        agent = agents.setdefault(frozenset(target.items()), AgentSeries(target, defaultdict(list)))
        name = (
            sample.labels.get("__name__", "").removeprefix("nodeleak_")
            if query == "value"
            else query
        )
        agent.of[name].append(sample)
    return [agent for agent in agents.values() if agent.of["build_info"]]


def _check_clusters(agents: Sequence[AgentSeries], known: Mapping[str, str]) -> None:
    """Another cluster can have nodes of the same names, but its Prometheus does not have most of this one's."""
    clusters = sorted({agent.target.get("cluster", "") for agent in agents})
    if len(clusters) > 1:
        names = truncate(", ".join(map(json.dumps, clusters[:5])))
        raise UsageError(
            f"this Prometheus has agents of several clusters ({names}): add --prometheus-cluster=NAME"
        )
    others = [agent.node for agent in agents if agent.node not in known]
    if others and 2 * len(others) >= len(agents):
        raise KubectlError(
            f"the status is unknown: {len(others)} of {len(agents)} agents in this Prometheus are on no node of this "
            f"cluster, such as {truncate(json.dumps(min(others)))}. Is it the Prometheus of another cluster? If it has "
            "several clusters, add --prometheus-cluster=NAME. If its series name no node, add the label node"
        )


def _status(target: Target, agents: Sequence[AgentSeries]) -> NodeStatus:
    if not agents:
        why = f"Prometheus has no metrics of its agent; to ask the agent itself: kubectl nodeleak status {target.node}"
        return unknown(target, "no metrics", why)
    if len(agents) > 1:
        which = sorted(
            truncate(f"{agent.target.get('job')} {agent.target.get('instance')}")
            for agent in agents
        )
        return unknown(
            target, "ambiguous", f"Prometheus has several agents of this node: {', '.join(which)}"
        )
    (agent,) = agents
    if not agent.of["last_sync_timestamp_seconds"]:
        return unknown(target, "no report", "no report: the agent has not finished its first sync")
    try:
        found = document(agent, target.node)
    except (ValueError, LookupError, OverflowError, OSError) as error:
        return unknown(target, "unreadable", f"cannot read its metrics: {truncate(repr(error))}")
    return status_of(target, found, {"node": target.node, "exit_code": 0, "document": found})


def document(agent: AgentSeries, node: str) -> dict[str, Any]:
    """Return `nodeleak.status/v1`; raises ValueError, LookupError, OverflowError, OSError for what no agent exports."""
    if not agent.of["sources"]:
        raise LookupError("Prometheus stores no nodeleak_source_up of it")
    last = agent.of["last_sync_timestamp_seconds"][-1]
    findings, unavailable = list(_findings(agent)), list(_unavailable(agent))
    halted = any(sample.value for sample in agent.of["cleanup_halted"])
    taken_at, age = datetime.fromtimestamp(last.value, UTC), max(0.0, last.at - last.value)
    mode, why = agent.label("mode_info", "mode"), "kubectl nodeleak scan says why" if halted else ""
    severe = halted or any(finding["severity"] != Severity.INFO.value for finding in findings)
    state = NodeState.FINDINGS if severe else NodeState.INCOMPLETE if unavailable else NodeState.OK
    return {
        "schema": SCHEMA,
        "version": agent.label("build_info", "version"),
        "node": node,
        "state": (NodeState.STALLED if agent.of["stalled"] else state).value,
        "headline": "Critical: cleanup halted" if halted else "",
        "report": {
            "taken_at": rfc3339(taken_at),
            "age_seconds": round(age, 1),
            "interval_seconds": None,
        },
        "cleanup": {
            "mode": mode,
            "networks": [],
            "release_possible": None,
            "why_not": [],
            "halted": why,
        },
        "networks": list(_networks(agent)),
        "findings": findings,
        "unavailable": unavailable,
    }


def _findings(agent: AgentSeries) -> Iterator[dict[str, Any]]:
    found = (
        (each.labels["severity"], each.labels["detector"], int(each.value))
        for each in agent.of["finding"]
    )
    for severity, detector, count in sorted(
        found, key=lambda each: (_ORDER.index(each[0]), each[1])
    ):
        yield {"severity": severity, "detector": detector, "count": count, "oldest": None}


def _unavailable(agent: AgentSeries) -> Iterator[dict[str, str]]:
    for source in sorted(sample.labels["source"] for sample in agent.of["unavailable"]):
        yield {"source": source, "why": "kubectl nodeleak scan says why"}
    if agent.of["failed"]:
        yield {
            "source": "a check",
            "why": "it failed within five minutes, kubectl nodeleak scan says why",
        }


def _networks(agent: AgentSeries) -> Iterator[dict[str, Any]]:
    def counts(name: str, state: str = "") -> dict[str, int]:
        of_state = [sample for sample in agent.of[name] if sample.labels.get("state", "") == state]
        return {sample.labels["network"]: int(sample.value) for sample in of_state}

    known = {
        "usable": counts("range_addresses"),
        "free": counts("range_free_addresses"),
        "leaked": counts("reservations", "leaked"),
        "unknown": counts("reservations", "unknown"),
    }
    for name in sorted(set().union(*known.values())):
        yield {"name": name, **{key: values.get(name) for key, values in known.items()}}
