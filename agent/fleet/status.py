"""The status of each node, and the table of all. Pure: from documents `nodeleak.status/v1`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from agent.exporters.json import Document
from agent.exporters.json.status import SCHEMA, Malformed, NodeState, checked
from agent.exporters.text.layout import as_text, bounded_age, grid
from agent.fleet.nodes import Answer, Target, natural_order
from agent.model.text import count_of, format_number, truncate

_MAX_CELL: Final = 100
"""Characters of a cell: the longest one widens the rows of all nodes."""

_COLUMNS: Final = (
    "NODE",
    "STATUS",
    "POD",
    "AGENT",
    "NETWORK",
    "FREE",
    "LEAKED",
    "RELEASABLE",
    "UNKNOWN",
    "AGE",
    "CLEANUP",
    "FINDINGS",
)
_WIDE_COLUMNS: Final = {"STATUS", "POD", "UNKNOWN", "CLEANUP"}
"""Columns of `-o wide` only."""

_UNLIMITED_COLUMNS: Final = {"CLEANUP", "FINDINGS"}
"""Columns that `-o wide` does not shorten."""


class Rank(IntEnum):
    """How bad the status of a node is, the worst first."""

    CRITICAL = 0
    UNKNOWN = 1
    """No agent, no answer, or an incomplete or old report: this node may be as bad as any."""
    WARNING = 2
    INFO = 3
    OK = 4


_RANKS: Final = {rank.name.lower(): rank for rank in (Rank.CRITICAL, Rank.WARNING, Rank.INFO)}


class NodeStatus(NamedTuple):
    """What is known of a node, which the table has in a row for each of its networks."""

    target: Target
    rank: Rank
    agent: str
    """Its version, or what is wrong with it."""
    text: str
    """Findings, or why there are none."""
    entry: Document
    """Its part of the merged document."""
    document: Document | None = None
    """What its agent reported; None: it gave no report."""
    complete: bool = False
    """Whether the agent read everything, recently."""

    @property
    def networks(self) -> Sequence[Document]:
        """The numbers of its networks; none: it gave no report."""
        return self.document["networks"] if self.document else ()


def unknown(target: Target, agent: str, reason: str, entry: Document | None = None) -> NodeStatus:
    """Return the status of a node that gave no report.

    `agent`: what is wrong with its agent. `entry`: its part of the merged document; None: one that
    has the reason.
    """
    if entry is None:
        entry = Answer(target.node, None, error=reason).entry()
    return NodeStatus(target, Rank.UNKNOWN, agent, reason, entry)


def node_status(target: Target, answer: Answer) -> NodeStatus:
    """Return the status of a node from what its agent answered."""
    if target.unreachable:
        return unknown(target, "not running" if target.agent else "missing", target.unreachable)

    document = answer.document
    entry = answer.entry()
    if answer.exit_code is None or document is None:
        node = "" if target.status.startswith("Ready") else f" (node {target.status})"
        return unknown(target, "no answer", f"{answer.reason}{node}", entry)

    if (schema := document.get("schema")) != SCHEMA:
        reason = (
            f'its agent answers with schema "{truncate(schema)}", this command reads {SCHEMA}: '
            "use one version"
        )
        return unknown(target, "unknown schema", reason, entry)
    if document.get("state") == NodeState.NO_REPORT:
        return unknown(target, "no report", f"no report: {truncate(document.get('why'))}", entry)

    try:
        return status_of(target, checked(document), entry)
    except Malformed as error:
        return unknown(target, "unreadable", f"cannot read its {SCHEMA}: {truncate(error)}", entry)


def status_of(target: Target, document: Document, entry: Document) -> NodeStatus:
    """Return the status of a node from the document of its agent, which is well formed."""
    state = document["state"]
    agent = truncate(document["version"], _MAX_CELL)
    if target.agent and not target.agent.ready:
        agent += " not ready"

    judged = {NodeState.OK, NodeState.WAITING, NodeState.FINDINGS}
    is_complete = state in judged and not document["unavailable"]
    ranks = [_RANKS.get(finding["severity"], Rank.UNKNOWN) for finding in document["findings"]]
    if document["cleanup"]["halted"]:
        ranks.append(Rank.CRITICAL)
    if state == NodeState.WAITING:
        ranks.append(Rank.INFO)
    if not is_complete or (state == NodeState.FINDINGS and not ranks):
        ranks.append(Rank.UNKNOWN)

    return NodeStatus(
        target,
        rank=min(ranks, default=Rank.OK),
        agent=agent,
        text="; ".join([*_problems(document), *map(_finding, document["findings"])]),
        entry=entry,
        document=document,
        complete=is_complete,
    )


def _problems(document: Document) -> Iterator[str]:
    """Yield why the findings may not be all, and what is no finding."""
    if halted := document["cleanup"]["halted"]:
        yield f"critical: cleanup halted: {halted}"
    if document["state"] == NodeState.STALLED:
        age = bounded_age(document["report"]["age_seconds"])
        yield f"stalled: the last report is {age} old"
        return

    reasons = [
        f"{missing['source']} unavailable: {truncate(missing['why'])}"
        for missing in document["unavailable"]
    ]
    if document["state"] == NodeState.INCOMPLETE:
        yield f"incomplete: {', '.join(reasons) or 'the agent gives no reason'}"
    else:
        yield from reasons
    if document["state"] == NodeState.WAITING and not document["findings"]:
        yield truncate(document["headline"])


def _finding(finding: Document) -> str:
    count = "" if finding["count"] == 1 else f"{format_number(finding['count'])} "
    return f"{finding['severity']}: {count}{finding['detector']}"


def _cleanup(cleanup: Document) -> str:
    words = {True: "can release", False: "cannot release", None: "unknown"}
    text = f"{cleanup['mode']}, {words[cleanup['release_possible']]}"
    reasons = ", ".join(cleanup["why_not"])
    return f"{text}: {reasons}" if reasons else text


def worst_first(statuses: Iterable[NodeStatus]) -> list[NodeStatus]:
    return sorted(statuses, key=_badness)


def _badness(status: NodeStatus) -> tuple[object, ...]:
    """Return a key by which worse nodes come first; an unknown number counts as a good one."""
    free = (network["free"] for network in status.networks if network["free"] is not None)
    leaked = sum(network["leaked"] or 0 for network in status.networks)
    fewest_free = min(free, default=float("inf"))
    return status.rank, fewest_free, -leaked, natural_order(status.target.node)


@as_text
def status_table(statuses: Sequence[NodeStatus], *, wide: bool) -> Iterator[str]:
    """Return the table of the nodes in this order, with a row for each of their networks.

    `wide`: with more columns, and without limits of their width.
    """
    yield from summary(statuses)
    if not statuses:
        return

    rows = [
        _row(status, network) for status in statuses for network in (status.networks or (None,))
    ]
    heads = [head for head in _COLUMNS if wide or head not in _WIDE_COLUMNS]
    cells = [[_cell(row, head, wide=wide) for head in heads] for row in rows]
    yield ""
    yield from grid([heads, *cells])


def _row(status: NodeStatus, network: Document | None) -> dict[str, str]:
    """Return the cells by column. `network`: one of the node's; None: it has none, or no report."""
    row = dict.fromkeys(_COLUMNS, "-")
    row["NODE"] = status.target.node
    row["STATUS"] = status.target.status
    row["AGENT"] = status.agent
    row["FINDINGS"] = status.text or "none"

    if status.target.agent:
        row["POD"] = status.target.agent.name
    if status.document:
        row["AGE"] = bounded_age(status.document["report"]["age_seconds"])
        row["CLEANUP"] = _cleanup(status.document["cleanup"])

    if network:
        row["NETWORK"] = network["name"]
        row["FREE"] = f"{format_number(network['free'])}/{format_number(network['usable'])}"
        row["LEAKED"] = format_number(network["leaked"])
        row["UNKNOWN"] = format_number(network["unknown"])
        if network["releasable"] is not None:  # it may release, and has counted them
            row["RELEASABLE"] = format_number(network["releasable"])
    return row


def _cell(row: Mapping[str, str], head: str, *, wide: bool) -> str:
    return row[head] if wide and head in _UNLIMITED_COLUMNS else truncate(row[head], _MAX_CELL)


def _brakes(documents: Iterable[Document]) -> Iterator[str]:
    """Yield what the agents say of the brake, unless it is off."""
    brakes = Counter(document["cleanup"]["brake"] for document in documents)
    total = format_number(brakes.total())

    if brakes["on"]:
        yield (
            f"The brake is on for {format_number(brakes['on'])} of {total} agents, which release "
            "nothing: 'kubectl nodeleak brake' says why"
        )
    if brakes["unknown"]:
        yield (
            f"{format_number(brakes['unknown'])} of {total} agents cannot read the brake, and "
            "release nothing"
        )


def summary(statuses: Sequence[NodeStatus]) -> Iterator[str]:
    """Yield the number of nodes of each rank, and the versions if they differ."""
    ranks = Counter(status.rank for status in statuses)
    counts = [f"{format_number(ranks[rank])} {rank.name.lower()}" for rank in Rank if ranks[rank]]
    yield f"{count_of(len(statuses), 'node')}: {', '.join(counts)}" if counts else "no nodes"

    documents = [status.document for status in statuses if status.document]
    yield from _brakes(documents)
    versions = Counter(truncate(document["version"], _MAX_CELL) for document in documents)
    if len(versions) > 1:
        listed = (f"{version} ({format_number(n)})" for version, n in sorted(versions.items()))
        yield f"The agents have different versions: {', '.join(listed)}"
