"""`kubectl nodeleak status --prometheus`: a few queries to a Prometheus instead of an exec in every agent's pod."""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from http.client import HTTPException
from typing import Final
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

from agent.config import UsageError
from agent.fleet.answers import Answer
from agent.fleet.inventory import Target
from agent.fleet.kubectl import KubectlError
from agent.fleet.series import AgentSeries, by_agent, document, queries, samples
from agent.fleet.session import Session
from agent.fleet.status import NodeStatus, Rank, answered
from agent.model.input_limit import InputLimit
from agent.model.text import truncate

_LARGEST: Final[InputLimit] = 256 << 20
"""Bytes of an answer. That of 15,000 agents has 28 MiB."""
_PATH: Final = "/api/v1/query?"


def statuses(arguments: argparse.Namespace, session: Session) -> list[NodeStatus]:
    """Return the status of each chosen node; raises KubectlError if Prometheus does not answer."""
    found, addresses = session.nodes(arguments.nodes)
    ask = _asker(arguments, session)
    try:
        agents = by_agent(
            one for name, query in queries(arguments.prometheus_cluster).items() for one in samples(name, ask(query))
        )
    except ValueError as error:
        raise KubectlError(f"{arguments.prometheus or arguments.prometheus_service}: {error}") from error
    check_clusters(agents)
    of_node = _by_node(agents, {target.node for target in found}, addresses)
    return [_status(target, of_node.get(target.node, ())) for target in found]


def _asker(arguments: argparse.Namespace, session: Session) -> Callable[[str], str]:
    timeout = arguments.timeout.total_seconds()
    if arguments.prometheus:
        return lambda query: _fetch(f"{arguments.prometheus.rstrip('/')}{_PATH}{urlencode({'query': query})}", timeout)
    namespace, _, service = arguments.prometheus_service.partition("/")
    path = f"/api/v1/namespaces/{namespace}/services/{service}/proxy{_PATH}"
    return lambda query: session.kubectl.raw(f"{path}{urlencode({'query': query})}", timeout)


def _fetch(url: str, timeout: float) -> str:
    try:
        with urlopen(url, timeout=timeout) as answer:  # noqa: S310 (the options allow only http and https)
            return _text(answer.read(_LARGEST + 1))
    except HTTPError as error:  # its body says what is wrong with the query
        return _text(error.read(_LARGEST + 1))
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        why = truncate(str(reason) or repr(reason))
        raise KubectlError(f"no answer from {url.partition(_PATH)[0]}: {why}") from error


def _text(body: bytes) -> str:
    if len(body) > _LARGEST:
        raise KubectlError(f"the answer of Prometheus is longer than {_LARGEST >> 20} MiB: add --prometheus-cluster")
    return body.decode(errors="replace")


def check_clusters(agents: Iterable[AgentSeries]) -> None:
    """Another cluster can have nodes of the same names."""
    clusters = sorted({one.target.get("cluster", "") for one in agents})
    if len(clusters) > 1:
        names = ", ".join(json.dumps(truncate(one)) for one in clusters[:5])
        raise UsageError(f"this Prometheus has agents of several clusters ({names}): add --prometheus-cluster=NAME")


def _by_node(
    agents: Iterable[AgentSeries], nodes: Iterable[str], addresses: Mapping[str, str]
) -> dict[str, list[AgentSeries]]:
    """Return the agents of each node. `addresses`: the node with this address, where no label names the node."""
    known = {**addresses, **{node: node for node in nodes}}
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
