"""What is known about each node, which of them is worst, and the table. Pure: from documents `nodeleak.status/v1`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Any, Final, NamedTuple

from agent.exporters.json.status import SCHEMA, Malformed, NodeState, checked
from agent.exporters.text.layout import as_text, grid
from agent.fleet.nodes import Answer, Target, natural
from agent.model.text import count_of, format_age, format_number, truncate

_LONGEST: Final = 100
"""Characters of a cell: the longest one widens the rows of all nodes."""
_YEAR: Final = 365 * 86400
"""Seconds. An agent may answer any age."""
_WIDE: Final = {"STATUS", "POD", "UNKNOWN", "CLEANUP"}
"""Columns of `-o wide` only."""


class Rank(IntEnum):
    CRITICAL = 0
    UNKNOWN = 1
    """No agent, no answer, or an incomplete or old report: this node may be as bad as any."""
    WARNING = 2
    INFO = 3
    OK = 4


_RANKS: Final = {rank.name.lower(): rank for rank in (Rank.CRITICAL, Rank.WARNING, Rank.INFO)}


class NodeStatus(NamedTuple):
    target: Target
    rank: Rank
    agent: str
    """Its version, or what is wrong with it."""
    text: str
    """Findings, or why there are none."""
    entry: Mapping[str, Any]
    document: Mapping[str, Any] | None = None
    """What its agent reported; None: it gave no report."""
    complete: bool = False
    """Whether the agent read everything, recently."""

    @property
    def networks(self) -> Sequence[Mapping[str, Any]]:
        return self.document["networks"] if self.document else ()


def unknown(
    target: Target, agent: str, why: str, entry: Mapping[str, Any] | None = None
) -> NodeStatus:
    return NodeStatus(
        target, Rank.UNKNOWN, agent, why, entry or Answer(target.node, None, error=why).entry()
    )


def node_status(target: Target, answer: Answer) -> NodeStatus:
    if target.unreachable:
        return unknown(target, "not running" if target.agent else "missing", target.unreachable)
    document, entry = answer.document, answer.entry()
    if answer.exit_code is None or document is None:
        node = "" if target.status.startswith("Ready") else f" (node {target.status})"
        return unknown(target, "no answer", f"{answer.reason}{node}", entry)
    if (schema := document.get("schema")) != SCHEMA:
        why = f'its agent answers with schema "{truncate(schema)}", this command reads {SCHEMA}: use one version'
        return unknown(target, "unknown schema", why, entry)
    if document.get("state") == NodeState.NO_REPORT:
        return unknown(target, "no report", f"no report: {truncate(document.get('why'))}", entry)
    try:
        return status_of(target, checked(document), entry)
    except Malformed as error:
        return unknown(target, "unreadable", f"cannot read its {SCHEMA}: {truncate(error)}", entry)


def status_of(target: Target, document: Mapping[str, Any], entry: Mapping[str, Any]) -> NodeStatus:
    complete = (
        document["state"] in {NodeState.OK, NodeState.FINDINGS} and not document["unavailable"]
    )
    version, ready = (
        truncate(document["version"], _LONGEST),
        target.agent is None or target.agent.ready,
    )
    rank, agent = _rank(document, complete=complete), version if ready else f"{version} not ready"
    text = "; ".join([*_problems(document), *map(_finding, document["findings"])])
    return NodeStatus(target, rank, agent, text, entry, document, complete)


def _rank(document: Mapping[str, Any], *, complete: bool) -> Rank:
    ranks = [_RANKS.get(finding["severity"], Rank.UNKNOWN) for finding in document["findings"]]
    if document["cleanup"]["halted"]:
        ranks.append(Rank.CRITICAL)
    if not complete or (document["state"] == NodeState.FINDINGS and not ranks):
        ranks.append(Rank.UNKNOWN)
    return min(ranks, default=Rank.OK)


def _problems(document: Mapping[str, Any]) -> list[str]:
    """Say why the findings may not be all, and what is no finding."""
    halted = document["cleanup"]["halted"]
    said = [f"critical: cleanup halted: {halted}"] if halted else []
    if document["state"] == NodeState.STALLED:
        return [*said, f"stalled: the last report is {_age(document)} old"]
    why = [
        f"{missing['source']} unavailable: {truncate(missing['why'])}"
        for missing in document["unavailable"]
    ]
    if document["state"] == NodeState.INCOMPLETE:
        return [*said, f"incomplete: {', '.join(why) or 'the agent gives no reason'}"]
    return [*said, *why]


def _finding(finding: Mapping[str, Any]) -> str:
    count = "" if finding["count"] == 1 else f"{format_number(finding['count'])} "
    return f"{finding['severity']}: {count}{finding['detector']}"


def _age(document: Mapping[str, Any]) -> str:
    return format_age(timedelta(seconds=min(max(document["report"]["age_seconds"], 0), _YEAR)))


def _cleanup(cleanup: Mapping[str, Any]) -> str:
    words = {True: "can release", False: "cannot release", None: "unknown"}
    why = ", ".join(cleanup["why_not"])
    return f"{cleanup['mode']}, {words[cleanup['release_possible']]}{f': {why}' if why else ''}"


def worst_first(statuses: Iterable[NodeStatus]) -> list[NodeStatus]:

    def sort_key(status: NodeStatus) -> tuple[object, ...]:
        free = min(
            (found["free"] for found in status.networks if found["free"] is not None),
            default=float("inf"),
        )
        leaked = sum(network["leaked"] or 0 for network in status.networks)
        return status.rank, free, -leaked, natural(status.target.node)

    return sorted(statuses, key=sort_key)


@as_text
def status_table(statuses: Sequence[NodeStatus], *, wide: bool) -> list[str]:
    """Write the nodes in the given order, one row for each of their networks. `wide`: with more columns."""
    lines = summary(statuses)
    if statuses:
        rows = [
            _row(status, network) for status in statuses for network in (status.networks or (None,))
        ]
        heads = [head for head in rows[0] if wide or head not in _WIDE]
        lines += [
            "",
            *grid([heads, *([_cell(row, head, wide=wide) for head in heads] for row in rows)]),
        ]
    return lines


def _row(status: NodeStatus, network: Mapping[str, Any] | None) -> dict[str, str]:
    document = status.document
    return {
        "NODE": status.target.node,
        "STATUS": status.target.status,
        "POD": status.target.agent.name if status.target.agent else "-",
        "AGENT": status.agent,
        "NETWORK": network["name"] if network else "-",
        "FREE": f"{format_number(network['free'])}/{format_number(network['usable'])}"
        if network
        else "-",
        "LEAKED": format_number(network["leaked"]) if network else "-",
        "UNKNOWN": format_number(network["unknown"]) if network else "-",
        "AGE": _age(document) if document else "-",
        "CLEANUP": _cleanup(document["cleanup"]) if document else "-",
        "FINDINGS": status.text or "none",
    }


def _cell(row: Mapping[str, str], head: str, *, wide: bool) -> str:
    return row[head] if wide and head in {"CLEANUP", "FINDINGS"} else truncate(row[head], _LONGEST)


def summary(statuses: Sequence[NodeStatus]) -> list[str]:
    """Count the nodes by rank, and name the versions if they differ."""
    ranks = Counter(status.rank for status in statuses)
    counts = [f"{format_number(ranks[rank])} {rank.name.lower()}" for rank in Rank if ranks[rank]]
    lines = [f"{count_of(len(statuses), 'node')}: {', '.join(counts)}" if counts else "no nodes"]
    versions = Counter(
        truncate(status.document["version"], _LONGEST) for status in statuses if status.document
    )
    if len(versions) > 1:
        found = ", ".join(
            f"{version} ({format_number(n)})" for version, n in sorted(versions.items())
        )
        lines.append(f"The agents have different versions: {found}")
    return lines
