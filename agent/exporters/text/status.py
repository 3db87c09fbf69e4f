"""The status of a node as text, for people; and in one line, for a log."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

from agent.exporters.text.table import explain, grid, lines_as_text
from agent.model.status import NodeState
from agent.model.text import format_age, format_number

_YEAR: Final = 365 * 86400
"""Seconds. What calls itself a daemon may answer any age."""


def status_table(document: dict[str, Any]) -> str:
    return lines_as_text(_lines(document))


def status_line(document: dict[str, Any]) -> str:
    return lines_as_text([_no_report(document) if _missing(document) else _line(document)])


def _line(document: dict[str, Any]) -> str:
    unavailable = [one["source"] for one in document["unavailable"]]
    missing = f" (unavailable: {', '.join(dict.fromkeys(unavailable))})" if unavailable else ""
    return f"{document['report']['taken_at']} {document['node']} {document['state']}: {document['headline']}{missing}"


def _lines(document: dict[str, Any]) -> Iterator[str]:
    if _missing(document):
        yield _no_report(document)
        return
    yield from _head(document)
    if document["networks"]:
        yield ""
        yield from grid([["NETWORK", "USABLE", "FREE", "LEAKED", "UNKNOWN"], *map(_network, document["networks"])])
    if document["findings"]:
        yield ""
        yield from grid([["FINDING", "SEVERITY", "COUNT", "SINCE"], *map(_finding, document["findings"])])
    if document["unavailable"]:
        yield ""
        yield "Unavailable (nothing is concluded from these sources):"
        yield from (f"  {one['source']}: {one['why']}" for one in document["unavailable"])
    yield ""
    yield from _cleanup(document["cleanup"])
    yield ""
    yield f"For more: {', '.join(_more(document))}"


def _missing(document: dict[str, Any]) -> bool:
    return bool(document["state"] == NodeState.NO_REPORT)


def _no_report(document: dict[str, Any]) -> str:
    return f"No status: {document['why']}; 'nodeleak scan' checks this node without a daemon"


def _head(document: dict[str, Any]) -> Iterator[str]:
    report = document["report"]
    age, interval = _duration(report["age_seconds"]), _duration(report["interval_seconds"])
    yield f"Node {document['node']}, checked {age} ago (every {interval}), nodeleak {document['version']}"
    if document["state"] == NodeState.STALLED:
        yield f"Stalled: the daemon has stopped checking this node; what follows is {age} old"
    yield document["headline"]


def _duration(seconds: float) -> str:
    return format_age(timedelta(seconds=min(seconds, _YEAR))) if seconds >= 1 else f"{seconds:.1f}s"


def _network(network: dict[str, Any]) -> Sequence[str]:
    return [network["name"], *(format_number(network[name]) for name in ("usable", "free", "leaked", "unknown"))]


def _finding(finding: dict[str, Any]) -> Sequence[str]:
    return [finding["detector"], finding["severity"], format_number(finding["count"]), finding["oldest"]]


def _cleanup(cleanup: dict[str, Any]) -> Iterator[str]:
    networks = ", ".join(cleanup["networks"]) or "none"
    yield f"Cleanup by the daemon: {cleanup['mode']}. Networks that may be cleaned: {networks}."
    match cleanup["release_possible"]:
        case True:
            yield "Releases are possible here. Each address is checked before its release."
        case False:
            yield "No release is possible here now:"
        case _:
            yield "It is not known whether releases are possible here:"
    yield from (f"  {why}" for why in cleanup["why_not"])


def _more(document: dict[str, Any]) -> Iterator[str]:
    yield "`nodeleak scan`"
    # People copy this line, and any process could have written the document.
    if words := [one["detector"] for one in document["findings"] if one["detector"].isidentifier()]:
        yield explain(words)
