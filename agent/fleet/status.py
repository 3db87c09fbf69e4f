"""What is known about each node, and which of them is worst. Pure: from the documents `nodeleak.status/v1`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from types import NoneType
from typing import Any, Final

from agent.fleet.answers import Answer
from agent.fleet.inventory import Target, natural
from agent.model.text import format_age, format_number, truncate

SCHEMA: Final = "nodeleak.status/v1"
_LONGEST: Final = 100
"""Characters of a name: the longest one widens the rows of all nodes."""
_UNKNOWN_COMMAND: Final = 'unknown command "status"'


class Rank(IntEnum):
    """How bad a node is; the worst first."""

    CRITICAL = 0
    UNKNOWN = 1
    """No agent, no answer, or an incomplete or old report: this node may be as bad as any."""
    WARNING = 2
    INFO = 3
    OK = 4


_RANKS: Final = {rank.name.lower(): rank for rank in (Rank.CRITICAL, Rank.WARNING, Rank.INFO)}
"""By severity."""


@dataclass(frozen=True, slots=True)
class Network:
    name: str = "-"
    usable: int | None = None
    free: int | None = None
    leaked: int | None = None
    unknown: int | None = None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node, ready to be shown."""

    target: Target
    answer: Answer | None
    rank: Rank
    agent: str
    """Its version, or what is wrong with it."""
    text: str
    """Findings, or why there are none."""
    complete: bool = False
    """Whether the agent read everything, recently."""
    version: str = ""
    age: str = "-"
    cleanup: str = "-"
    networks: Sequence[Network] = field(default=(Network(),))


def node_status(target: Target, answer: Answer | None) -> NodeStatus:
    """Interpret an answer. None: the node was not asked."""
    if target.unreachable or answer is None:
        agent = "not running" if target.agent else "missing"
        return NodeStatus(target, answer, Rank.UNKNOWN, agent, target.unreachable)
    return answered(target, answer)


def answered(target: Target, answer: Answer) -> NodeStatus:
    """Interpret what the agent answered, or a Prometheus in its place."""
    document = None if answer.exit_code is None else answer.document
    if document is None:
        return _without_document(target, answer)
    if (schema := document.get("schema")) != SCHEMA:
        why = f'its agent answers with schema "{truncate(schema)}", this command reads {SCHEMA}: use one version'
        return NodeStatus(target, answer, Rank.UNKNOWN, "unknown schema", why)
    try:
        return _of_document(target, answer, document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = f"cannot read its {SCHEMA}: {truncate(repr(error))}"
        return NodeStatus(target, answer, Rank.UNKNOWN, "unreadable", why)


def _without_document(target: Target, answer: Answer) -> NodeStatus:
    if _UNKNOWN_COMMAND in answer.error:
        why = "its agent is too old and has no command 'status': update the DaemonSet's image"
        return NodeStatus(target, answer, Rank.UNKNOWN, "too old", why)
    if answer.output.startswith("{"):
        return NodeStatus(target, answer, Rank.UNKNOWN, "unreadable", f"cannot read its {SCHEMA}: no valid JSON")
    node = "" if target.status.startswith("Ready") else f" (node {target.status})"
    return NodeStatus(target, answer, Rank.UNKNOWN, "no answer", f"{answer.reason}{node}")


def _of_document(target: Target, answer: Answer, document: Mapping[str, Any]) -> NodeStatus:
    state = str(document["state"])
    version = truncate(document.get("version") or "", _LONGEST)
    if state == "no_report":
        why = f"no report: {document.get('why') or document.get('headline') or 'the agent gives no reason'}"
        return NodeStatus(target, answer, Rank.UNKNOWN, version or "no report", why, version=version)
    findings, unavailable = document["findings"], document["unavailable"]
    severities = [str(one["severity"]) for one in findings]
    headline = _unlisted(state, str(document["headline"]), severities)
    complete = state in {"ok", "findings"} and not unavailable
    not_ready = "" if target.agent is None or target.agent.ready else " not ready"
    return NodeStatus(
        target=target,
        answer=answer,
        rank=_rank([*severities, *map(_severity, headline)], complete=complete),
        agent=f"{version}{not_ready}",
        text="; ".join([*headline, *_problems(state, document["report"], unavailable), *map(_finding, findings)]),
        complete=complete,
        version=version,
        age=_age(document["report"]),
        cleanup=_cleanup(document["cleanup"]),
        networks=[_network(one) for one in document["networks"]] or [Network()],
    )


def _unlisted(state: str, headline: str, severities: Sequence[str]) -> list[str]:
    """Return the headline if no finding is as severe: a cleanup that halted is no finding."""
    if _severity(headline) in _RANKS:
        return [] if _severity(headline) in severities else [headline]
    return [headline] if state == "findings" and not severities else []


def _severity(headline: str) -> str:
    return headline.partition(":")[0].lower()


def _rank(severities: Iterable[str], *, complete: bool) -> Rank:
    ranks = [_RANKS.get(severity, Rank.UNKNOWN) for severity in severities]
    return min(ranks if complete else [*ranks, Rank.UNKNOWN], default=Rank.OK)


def _problems(state: str, report: Mapping[str, Any] | None, unavailable: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say why the findings may not be all."""
    if state == "stalled":
        return [f"stalled: the last report is {_age(report)} old"]
    why = [f"{one['source']} unavailable: {truncate(one['why'])}" for one in unavailable]
    if state == "incomplete":
        return [f"incomplete: {', '.join(why) or 'the agent gives no reason'}"]
    return why if state in {"ok", "findings"} else [f'unknown state "{truncate(state)}"', *why]


def _finding(finding: Mapping[str, Any]) -> str:
    count = "" if finding["count"] == 1 else f"{format_number(int(finding['count']))} "
    return f"{finding['severity']}: {count}{finding['detector']}"


def _age(report: Mapping[str, Any] | None) -> str:
    return format_age(timedelta(seconds=float(report["age_seconds"]))) if report else "-"


def _cleanup(cleanup: Mapping[str, Any]) -> str:
    possible = cleanup["release_possible"]
    if possible:
        return f"{truncate(cleanup['mode'])}, can release"
    why = ", ".join(truncate(one) for one in cleanup["why_not"])
    text = f"{cleanup['mode']}, {'unknown' if possible is None else 'cannot release'}{f': {why}' if why else ''}"
    return truncate(text, 10 * _LONGEST)


def _network(network: Mapping[str, Any]) -> Network:
    usable, free, leaked, unknown = (network[key] for key in ("usable", "free", "leaked", "unknown"))
    return Network(truncate(network["name"], _LONGEST), *map(_count, (usable, free, leaked, unknown)))


def _count(number: object) -> int | None:
    """Raises TypeError for a text: it can have more digits than can be shown."""
    if not isinstance(number, (int, float, NoneType)):
        raise TypeError(f"{truncate(repr(number))} is no number")
    return None if number is None else int(number)


def worst_first(statuses: Iterable[NodeStatus]) -> list[NodeStatus]:
    """Sort by rank; then the fewest free addresses, then the most leaks, then by name."""
    return sorted(statuses, key=lambda one: (one.rank, _free(one), -_leaked(one), natural(one.target.node)))


def _free(status: NodeStatus) -> float:
    return min((one.free for one in status.networks if one.free is not None), default=float("inf"))


def _leaked(status: NodeStatus) -> int:
    return sum(one.leaked or 0 for one in status.networks)


def summary(statuses: Sequence[NodeStatus]) -> list[str]:
    """Count the nodes by rank, and name the versions if they differ."""
    ranks = Counter(one.rank for one in statuses)
    counts = [f"{format_number(ranks[rank])} {rank.name.lower()}" for rank in Rank if ranks[rank]]
    nodes = "1 node" if len(statuses) == 1 else f"{format_number(len(statuses))} nodes"
    lines = [f"{nodes}: {', '.join(counts)}" if counts else "no nodes"]
    versions = Counter(one.version for one in statuses if one.version)
    if len(versions) > 1:
        found = ", ".join(f"{version} ({format_number(n)})" for version, n in sorted(versions.items()))
        lines.append(f"The agents have different versions: {found}")
    return lines
