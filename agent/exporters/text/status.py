"""The status of a node as text, for people; and in one line, for a log."""

from collections.abc import Iterator
from typing import Final

from agent.exporters.json import Document
from agent.exporters.json.status import NodeState
from agent.exporters.text.layout import (
    as_text,
    bounded_age,
    command_list,
    explain_commands,
    fill,
    fill_each,
    grid,
    section,
)
from agent.model.text import format_number

_NO_STATUS: Final = "No status: {why}; 'nodeleak scan' checks this node without a daemon"
_READ_ONLY: Final = (
    "Releases: off here (read-only). 'nodeleak clean' says how to release leaked addresses."
)
_POSSIBLE: Final = {
    True: "Releases are possible here. Each address is checked before its release.",
    False: "No release is possible here now:",
    None: "It is not known whether releases are possible here:",
}


@as_text
def status_line(document: Document) -> Iterator[str]:
    """Write `nodeleak.status/v1` on one line: time, node, state, headline, what is unavailable."""
    if document["state"] == NodeState.NO_REPORT:
        yield _NO_STATUS.format(why=document["why"])
        return

    unavailable = dict.fromkeys(source["source"] for source in document["unavailable"])
    missing = f" (unavailable: {', '.join(unavailable)})" if unavailable else ""
    node = f"{document['report']['taken_at']} {document['node']} {document['state']}"
    yield f"{node}: {document['headline']}{missing}"


@as_text
def status_table(document: Document, columns: int | None) -> Iterator[str]:
    """Write `nodeleak.status/v1`, which is untrusted and well formed."""
    if document["state"] == NodeState.NO_REPORT:
        yield from fill(_NO_STATUS.format(why=document["why"]), columns)
        return
    yield from _head(document, columns)

    if document["networks"]:
        keys = ("usable", "free", "leaked", "unknown")
        rows = (
            [network["name"], *(format_number(network[key]) for key in keys)]
            for network in document["networks"]
        )
        yield ""
        yield from grid([["NETWORK", *map(str.upper, keys)], *rows])

    if document["findings"]:
        rows = (
            [row["detector"], row["severity"], format_number(row["count"]), row["oldest"]]
            for row in document["findings"]
        )
        yield ""
        yield from grid([["FINDING", "SEVERITY", "COUNT", "OLDEST SINCE"], *rows])

    texts = (f"{source['source']}: {source['why']}" for source in document["unavailable"])
    missing = fill_each(texts, columns)
    yield from section(missing, "Unavailable (nothing is concluded from these sources):")

    yield ""
    yield from _cleanup(document["cleanup"], columns)

    # People copy these lines, and any process could have written the document.
    words = (finding["detector"] for finding in document["findings"])
    commands = explain_commands(word for word in words if word.isidentifier())
    yield ""
    yield from command_list("For more:", ["nodeleak scan", *commands], indent="")


def _head(document: Document, columns: int | None) -> Iterator[str]:
    report = document["report"]
    age = _duration(report["age_seconds"])
    when = f"checked {age} ago (every {_duration(report['interval_seconds'])})"
    yield f"Node {document['node']}, {when}, nodeleak {document['version']}"
    if document["state"] == NodeState.STALLED:
        yield f"Stalled: the daemon has stopped checking this node; this report is {age} old"
    yield from fill(document["headline"], columns)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 1 else bounded_age(seconds)


def _cleanup(cleanup: Document, columns: int | None) -> Iterator[str]:
    """Yield whether addresses can be released from here, or why not."""
    networks = ", ".join(cleanup["networks"])
    possible = cleanup["release_possible"]
    is_off = cleanup["mode"] == "off" and not cleanup["halted"]
    # Without --cleanup-network, as where the agent only observes.
    if is_off and possible is False and not networks:
        yield from fill(_READ_ONLY, columns)
        return

    text = (
        f"Cleanup by the daemon: {cleanup['mode']}. "
        f"Networks that may be cleaned: {networks or 'none'}."
    )
    yield from fill(text, columns)
    if cleanup["brake"]:
        yield from fill(f"Brake: {cleanup['brake']}.", columns)
    yield _POSSIBLE[possible]
    yield from fill_each(cleanup["why_not"], columns)
