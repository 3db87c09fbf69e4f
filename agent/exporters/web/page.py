"""The page on `/`: rendered on request, without scripts or foreign resources."""

from base64 import b64encode
from collections.abc import Callable, Iterable
from functools import cached_property
from hashlib import sha256
from importlib.resources import files
from typing import Final

from agent.exporters import timeline
from agent.model.report import Report
from agent.model.snapshot import Unavailable

_REFRESH_SECONDS: Final = 30
_FIRST_REFRESH_SECONDS: Final = 3
"""Until there is a report."""

Releases = Callable[[], tuple[Iterable[timeline.Release] | Unavailable, Iterable[str]]]
"""Reads the journal: its entries, and its damage."""


class Page:
    """The page of a report."""

    def __init__(self, releases: Releases, links: tuple[str, ...] = (), version: str = "", mode: str = "") -> None:
        """`mode`: that of cleanup."""
        self._releases, self._links, self._version, self._mode = releases, links, version, mode

    def headers(self, report: Report | None, *, refreshing: bool) -> tuple[tuple[str, str], ...]:
        """Return the headers: load nothing, run nothing, and refresh unless paused."""
        policy = (
            f"default-src 'none'; style-src '{self._style_hash}'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        refresh = (("Refresh", str(_interval(report))),) if refreshing else ()
        return ("Content-Security-Policy", policy), ("Referrer-Policy", "no-referrer"), *refresh

    def render(self, report: Report | None, *, alive: bool, refreshing: bool) -> bytes:
        """Render a report, None before the first. `alive`: whether the daemon still takes snapshots."""
        # Imported with the first request: see html.py.
        from agent.exporters.web import html, page_view  # noqa: PLC0415

        view = None
        if report is not None:
            view = page_view.build_view(report, timeline.build_timeline(report, *self._releases()), alive=alive)
        refresh = _interval(report) if refreshing else 0
        return html.page(
            view, self._style, refresh=refresh, links=self._links, version=self._version, mode=self._mode
        ).encode()

    @cached_property
    def _style(self) -> str:
        return files("agent.exporters.web").joinpath("templates/page.css").read_text()

    @cached_property
    def _style_hash(self) -> str:
        return f"sha256-{b64encode(sha256(self._style.encode()).digest()).decode()}"


def _interval(report: Report | None) -> int:
    return _FIRST_REFRESH_SECONDS if report is None else _REFRESH_SECONDS
