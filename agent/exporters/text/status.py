"""The status of a node as text, for people; and in one line, for a log."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from agent.exporters.json.status import NodeState
from agent.exporters.text.layout import as_text, explain, fill_each, grid, section
from agent.model.text import format_age, format_number

_YEAR: Final = 365 * 86400
"""Seconds. What calls itself a daemon may answer any age."""
_NO_STATUS: Final = "No status: {why}; 'nodeleak scan' checks this node without a daemon"
_POSSIBLE: Final = {
    True: "Releases are possible here. Each address is checked before its release.",
    False: "No release is possible here now:",
    None: "It is not known whether releases are possible here:",
}


@as_text
def status_line(document: dict[str, Any]) -> Iterator[str]:
    if document["state"] == NodeState.NO_REPORT:
        yield _NO_STATUS.format(why=document["why"])
        return
    unavailable = dict.fromkeys(source["source"] for source in document["unavailable"])
    missing = f" (unavailable: {', '.join(unavailable)})" if unavailable else ""
    node = f"{document['report']['taken_at']} {document['node']} {document['state']}"
    yield f"{node}: {document['headline']}{missing}"


@as_text
def status_table(document: dict[str, Any]) -> Iterator[str]:
    if document["state"] == NodeState.NO_REPORT:
        yield _NO_STATUS.format(why=document["why"])
        return
    yield from _head(document)
    if document["networks"]:
        keys = ("usable", "free", "leaked", "unknown")
        rows = (
            [network["name"], *(format_number(network[key]) for key in keys)]
            for network in document["networks"]
        )
        yield from ("", *grid([["NETWORK", *map(str.upper, keys)], *rows]))
    if found := document["findings"]:
        rows = (
            [row["detector"], row["severity"], format_number(row["count"]), row["oldest"]]
            for row in found
        )
        yield from ("", *grid([["FINDING", "SEVERITY", "COUNT", "SINCE"], *rows]))
    texts = (f"{source['source']}: {source['why']}" for source in document["unavailable"])
    yield from section(fill_each(texts), "Unavailable (nothing is concluded from these sources):")
    yield from ("", *_cleanup(document["cleanup"]))
    # People copy this line, and any process could have written the document.
    words = [finding["detector"] for finding in found if finding["detector"].isidentifier()]
    yield from ("", *explain(words, "For more:", "nodeleak scan", indent=""))


def _head(document: dict[str, Any]) -> Iterator[str]:
    report = document["report"]
    age, interval = _duration(report["age_seconds"]), _duration(report["interval_seconds"])
    yield f"Node {document['node']}, checked {age} ago (every {interval}), nodeleak {document['version']}"
    if document["state"] == NodeState.STALLED:
        yield f"Stalled: the daemon has stopped checking this node; this report is {age} old"
    yield document["headline"]


def _duration(seconds: float) -> str:
    return format_age(timedelta(seconds=min(seconds, _YEAR))) if seconds >= 1 else f"{seconds:.1f}s"


def _cleanup(cleanup: dict[str, Any]) -> Iterator[str]:
    if (
        cleanup["mode"] == "off"
        and not cleanup["halted"]
        and "--cleanup-network (" in "".join(cleanup["why_not"][:1])
    ):
        yield "Releases: off here (read-only). 'nodeleak clean' says how to release leaked addresses."
        return
    networks = ", ".join(cleanup["networks"]) or "none"
    yield f"Cleanup by the daemon: {cleanup['mode']}. Networks that may be cleaned: {networks}."
    yield _POSSIBLE[cleanup["release_possible"]]
    yield from fill_each(cleanup["why_not"])
