"""`kubectl nodeleak status --prometheus`: a few queries to a Prometheus instead of an exec in every agent's pod."""

import argparse
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

import requests

from agent.config import UsageError
from agent.fleet.answers import Answer
from agent.fleet.inventory import Target
from agent.fleet.kubectl import KubectlError
from agent.fleet.series import AgentSeries, by_agent, document, queries, samples
from agent.fleet.session import Session
from agent.fleet.status import NodeStatus, Rank, answered
from agent.model.text import truncate

_PATH: Final = "/api/v1/query?"


def statuses(arguments: argparse.Namespace, session: Session) -> list[NodeStatus]:
    """Return the status of each chosen node; raises KubectlError if Prometheus does not answer."""
    found, known = session.nodes(arguments.nodes)
    ask = _asker(arguments, session)
    try:
        return read(found, known, ((name, ask(query)) for name, query in queries(arguments.prometheus_cluster).items()))
    except ValueError as error:
        raise KubectlError(f"{arguments.prometheus or arguments.prometheus_service}: {error}") from error


def read(found: Iterable[Target], known: Mapping[str, str], answers: Iterable[tuple[str, str]]) -> list[NodeStatus]:
    """Return the status of each node. `known`: every node by name and address. `answers`: each with its query's name.

    Raises ValueError for what is no answer, and KubectlError or UsageError for agents of other clusters.
    """
    agents = by_agent(one for name, answer in answers for one in samples(name, answer))
    check_clusters(agents)
    check_nodes(agents, known)
    of_node = _by_node(agents, known)
    return [_status(target, of_node.get(target.node, ())) for target in found]


def _asker(arguments: argparse.Namespace, session: Session) -> Callable[[str], str]:
    if arguments.prometheus:
        timeout = arguments.timeout.total_seconds()
        return lambda query: _fetch(f"{arguments.prometheus.rstrip('/')}{_PATH}{urlencode({'query': query})}", timeout)
    namespace, _, service = arguments.prometheus_service.partition("/")
    path = f"/api/v1/namespaces/{namespace}/services/{service}/proxy{_PATH}"
    return lambda query: session.kubectl.raw(f"{path}{urlencode({'query': query})}")


def _fetch(url: str, timeout: float) -> str:
    try:
        return requests.get(url, timeout=timeout).text  # also of an error, which says what is wrong
    except requests.RequestException as error:
        inner = error.args[0] if error.args else error
        why = truncate(str(getattr(inner, "reason", inner)))
        raise KubectlError(f"no answer from {url.partition(_PATH)[0]}: {why}") from error


def check_clusters(agents: Iterable[AgentSeries]) -> None:
    """Another cluster can have nodes of the same names."""
    clusters = sorted({one.target.get("cluster", "") for one in agents})
    if len(clusters) > 1:
        names = ", ".join(json.dumps(truncate(one)) for one in clusters[:5])
        raise UsageError(f"this Prometheus has agents of several clusters ({names}): add --prometheus-cluster=NAME")


def check_nodes(agents: Sequence[AgentSeries], known: Collection[str]) -> None:
    """The Prometheus of another cluster has some names or addresses of this one by chance, but not most."""
    others = [one.node for one in agents if one.node not in known]
    if others and 2 * len(others) >= len(agents):
        raise KubectlError(
            f"the status is unknown: {len(others)} of {len(agents)} agents in this Prometheus are on no node of this "
            f"cluster, such as {truncate(json.dumps(min(others)))}. Is it the Prometheus of another cluster? If it has "
            "several clusters, add --prometheus-cluster=NAME. If its series name no node, add the label node"
        )


def _by_node(agents: Iterable[AgentSeries], known: Mapping[str, str]) -> dict[str, list[AgentSeries]]:
    """Return the agents of each node. `known`: the node with this name, or address where no label names the node."""
    found: dict[str, list[AgentSeries]] = {}
    for one in agents:
        if one.node in known:
            found.setdefault(known[one.node], []).append(one)
    return found


def _status(target: Target, agents: Sequence[AgentSeries]) -> NodeStatus:
    if not agents:
        why = f"Prometheus has no metrics of its agent; to ask the agent itself: kubectl nodeleak status {target.node}"
        return NodeStatus(target, None, Rank.UNKNOWN, "no metrics", why)
    if len(agents) > 1:
        which = sorted(truncate(f"{one.target.get('job')} {one.target.get('instance')}") for one in agents)
        why = f"Prometheus has several agents of this node: {', '.join(which)}"
        return NodeStatus(target, None, Rank.UNKNOWN, "ambiguous", why)
    try:
        output = json.dumps(document(agents[0], target.node))
    except (ValueError, LookupError, OverflowError, OSError) as error:
        return NodeStatus(target, None, Rank.UNKNOWN, "unreadable", f"cannot read its metrics: {truncate(repr(error))}")
    return answered(target, Answer(target.node, 0, output))
