"""The page on `/`: rendered on request, without scripts or foreign resources."""

import os
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from os.path import commonprefix
from typing import TYPE_CHECKING, Final

from agent.cleanup.journal import Entry, Journal
from agent.exporters.advice import advice, description, runbook
from agent.exporters.json import Document
from agent.exporters.json.scan import scan_document
from agent.exporters.json.status import NodeState
from agent.exporters.range_map import LOOKS, by_severity, network_maps
from agent.exporters.release_here import release_here
from agent.exporters.rows import DEVICE_HEADS, WHEN_HALTED, device_rows, event_time
from agent.exporters.summary import (
    finding_lines,
    headline,
    incomplete,
    is_critical,
    state_of,
)
from agent.exporters.text.layout import age_cell
from agent.exporters.timeline import timeline_document
from agent.model.finding import total
from agent.model.ranges import IPAddress
from agent.model.report import NetworkSummary, Report
from agent.model.snapshot import (
    InsufficientData,
    NotRequested,
    Snapshot,
    SourceDisabled,
    Unavailable,
)
from agent.model.text import LONGEST_LIST, count_of, escape, format_number

if TYPE_CHECKING:
    from jinja2 import Template

MAX_LISTED: Final = 1000
"""Rows of the tables of all networks, of each kind: the page is bounded, `-o json` is not."""

_EVENTS: Final = 60
_REFRESH_SECONDS: Final = 30
_FIRST_REFRESH_SECONDS: Final = 3
"""Until there is a report."""

_LETTERS: Final = {mark: look.letter for mark, look in LOOKS.items()} | {
    "in_use": "",
    "unavailable": "",
}
"""On the squares; these two are a plain and a hatched one."""

_STATUS: Final = {
    NodeState.FINDINGS: "problem",
    NodeState.INCOMPLETE: "incomplete",
    NodeState.WAITING: "unconfirmed",
}
"""The look, unless something is critical; otherwise a problem that has not lasted, or healthy."""

_STYLE: Final = files("agent.exporters.web").joinpath("templates/page.css").read_text()
_STYLE_SHA256: Final = b64encode(sha256(_STYLE.encode()).digest()).decode()
_HEADERS: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_SHA256}'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
"""Load nothing, and run nothing."""

Releases = tuple["Iterable[Entry] | Unavailable", Iterable[str]]
"""The entries of the journal, and its damage."""


class Page:
    """The page, with what is the same for every report."""

    def __init__(self, links: tuple[str, ...] = (), version: str = "", mode: str = "") -> None:
        """`links`: the other paths of the port. `mode`: what the agent may do to the node."""
        self._about = {"links": links, "version": version, "mode": mode}

    def render(
        self, report: Report | None, releases: Releases, *, alive: bool, refreshing: bool
    ) -> tuple[bytes, dict[str, str]]:
        """Render a report, None before the first, and return the headers, too.

        `alive`: whether the daemon still takes snapshots.
        """
        view = None if report is None else _view(report, releases, alive=alive)
        headers = dict(_HEADERS)
        refresh = 0
        if refreshing:
            refresh = _FIRST_REFRESH_SECONDS if report is None else _REFRESH_SECONDS
            headers["Refresh"] = str(refresh)

        body = _template().render(view=view, style=_STYLE, refresh=refresh, **self._about)
        return body.encode(), headers


def _view(report: Report, releases: Releases, *, alive: bool) -> Document:
    """Return what the template shows of a report."""
    document = scan_document(report)
    pods = report.snapshot.pods

    return {
        "document": document,
        "cleaning": report.cleaning,
        "timeline": timeline_document(report, *releases),
        "status": _status(report, alive=alive),
        "partly": bool(report.unavailable) or not report.complete or not alive,
        "headline": headline(report, alive=alive),
        "details": list(_details(report, alive=alive)),
        "not_evaluated": [gap for gap in report.gaps if not gap.chosen],
        "api_disabled": pods.why if isinstance(pods, NotRequested) else "",
        "findings": list(_findings(report, releases[0])),
        "networks": list(_networks(report, document)),
        "most": max(1, MAX_LISTED // max(1, len(report.networks))),
        "devices": _devices(report.snapshot),
    }


def _status(report: Report, *, alive: bool) -> str:
    """Return the look of the headline."""
    state = state_of(report, alive=alive)
    if state is NodeState.FINDINGS and is_critical(report):
        return "critical"
    return _STATUS.get(state, "unconfirmed" if report.problems else "healthy")


def _details(report: Report, *, alive: bool) -> Iterator[str]:
    """Yield what stands below the headline: what is missing, and how many addresses are free."""
    if not alive:
        yield "No sync has finished for too long: this page shows old data."
    missing = incomplete(report)
    if missing and (not alive or state_of(report) is not NodeState.INCOMPLETE):
        yield f"Incomplete: {missing}."

    if sources := dict.fromkeys(source.source for source in report.unavailable):
        yield f"Unavailable: {', '.join(sources)}."
    if failed := [gap.detector for gap in report.gaps if gap.broken]:
        yield f"Failed checks: {', '.join(failed)}."

    yield from map(_free_addresses, report.networks)


def _free_addresses(network: NetworkSummary) -> str:
    if network.not_in_use:
        return f"{network.name}: not in use."
    if network.free is None or network.usable is None:
        return f"{network.name}: the number of free addresses is unknown."
    usable = count_of(network.usable, "address", "addresses")
    return f"{network.name}: {format_number(network.free)} of {usable} free."


def _findings(report: Report, entries: "Iterable[Entry] | Unavailable") -> Iterator[Document]:
    """Group the findings by detector; the group with the most urgent finding comes first."""
    journal = Journal() if isinstance(entries, Unavailable) else Journal(tuple(entries))
    release = replace(release_here(os.environ), journal=journal)

    for detector, lines in finding_lines(report).items():
        findings = [each for each in report.findings if each.finding.detector == detector]
        severity = lines[0].severity
        yield {
            "detector": detector,
            "severity": severity,
            "count": total(findings),
            "description": description(detector),
            "lines": lines,
            "do": advice(detector, report, release),
            "runbook": runbook(detector, severity),
        }


def _networks(report: Report, document: Document) -> Iterator[Document]:
    """Add to each network of the document its grids, and the rows that they refer to."""
    for network, network_map in zip(document["networks"], network_maps(report), strict=True):
        rows = {
            row["ip"]: row for row in document["reservations"] if row["network"] == network["name"]
        }
        yield network | {
            "maps": network_map.maps,
            "counts": network_map.counts,
            "rows": rows,
            "elsewhere": [rows[entry.name] for entry in network_map.elsewhere],
        }


def _devices(snapshot: Snapshot) -> Document:
    """Return the rows of the table, or why there are none, and whether that is by configuration."""
    try:
        return {"rows": device_rows(snapshot), "why": "", "disabled": False}
    except InsufficientData as missing:
        return {"rows": [], "why": str(missing), "disabled": isinstance(missing, SourceDisabled)}


@cache
def _template() -> "Template":
    # Imported with the first request, so that other daemons do not load Jinja.
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=PackageLoader("agent.exporters.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )

    environment.filters |= {
        "number": format_number,
        "age": age_cell,
        "code": _code,
        "time": event_time,
        "labels": _row_labels,
        "summary": _summary,
        "by_severity": by_severity,
    }

    environment.globals |= {
        "looks": LOOKS,
        "letters": _LETTERS,
        "device_heads": DEVICE_HEADS,
        "when_halted": WHEN_HALTED,
        "longest_list": LONGEST_LIST,
        "most_rows": MAX_LISTED,
        "most_events": _EVENTS,
    }

    return environment.get_template("page.html")


def _printable(value: object) -> object:
    """Escape control characters in what the template prints; autoescape does the rest."""
    return escape(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _code(text: str) -> str:
    """Mark up what stands between backticks; a single one is part of a foreign message."""
    from markupsafe import Markup  # noqa: PLC0415 (of Jinja)

    parts = [Markup.escape(part) for part in escape(text).split("`")]
    if len(parts) % 2 == 0:
        return Markup.escape(escape(text))
    for n in range(1, len(parts), 2):
        parts[n] = Markup("<code>{}</code>").format(parts[n])
    return Markup().join(parts)


def _summary(counts: Counter[str]) -> str:
    """Say what is in a cell: one address, or how many of each mark."""
    if counts.total() == 1:
        (mark,) = counts
        return LOOKS[mark].label
    labels = (f"{format_number(count)} {LOOKS[mark].label}" for mark, count in by_severity(counts))
    return ", ".join(labels)


def _row_labels(rows: Iterable[IPAddress]) -> list[str]:
    """Shorten addresses by what all have in common: the range's name says it."""
    names = list(map(str, rows))
    common = commonprefix(names)  # noqa: RUF071 (not paths)
    start = max(common.rfind("."), common.rfind(":"))
    if start < 0:
        return names
    # An IPv6 address that ends with `::` ends with 0.
    return [name[start:] if name[start + 1 :] else f"{name[start:]}0" for name in names]
