"""The page on `/`: drawn from the last report when somebody looks, once a report, and with nothing from elsewhere."""

from base64 import b64encode
from collections.abc import Callable, Iterable
from functools import cached_property
from hashlib import sha256
from importlib.resources import files
from threading import Lock
from typing import Final

from agent.exporters import timeline
from agent.model.report import Report
from agent.model.snapshot import Unavailable

_SECONDS: Final = 30
"""How often the page asks for a newer one, unless it is told to stand still."""
_SECONDS_BEFORE: Final = 3
"""The same before there is anything to show."""

Releases = Callable[[], tuple[Iterable[timeline.Release] | Unavailable, Iterable[str]]]
"""Reads the journal: its entries, and what is damaged in it."""


class Page:
    """The drawings of the last report. Any thread may ask; one draws at a time, and the others wait for it."""

    def __init__(self, releases: Releases, links: tuple[str, ...] = ()) -> None:
        self._releases, self._links = releases, links
        self._lock = Lock()
        self._drawn_of: Report | None = None
        self._drawings: dict[tuple[bool, bool], bytes] = {}

    def draw(self, report: Report | None, *, alive: bool, refreshing: bool) -> bytes:
        """Draw a report, or what to say before there is one. `unmanaged`: whether rounds go on."""
        with self._lock:
            if report is not self._drawn_of:
                self._drawn_of, self._drawings = report, {}
            if (drawing := self._drawings.get((alive, refreshing))) is None:
                drawing = self._drawings[alive, refreshing] = self._draw(report, alive=alive, refreshing=refreshing)
            return drawing

    def headers(self, report: Report | None, *, refreshing: bool) -> tuple[tuple[str, str], ...]:
        """Return what a browser is told: to load nothing, run nothing, and (unless it is paused) to come again."""
        policy = (
            f"default-src 'none'; style-src '{self._style_hash}'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        again = (("Refresh", str(_every(report))),) if refreshing else ()
        return ("Content-Security-Policy", policy), ("Referrer-Policy", "no-referrer"), *again

    def _draw(self, report: Report | None, *, alive: bool, refreshing: bool) -> bytes:
        # With the first view: see html.py.
        from agent.exporters.web import html, page_view  # noqa: PLC0415

        view = None
        if report is not None:
            view = page_view.build_view(report, timeline.build_timeline(report, *self._releases()), alive=alive)
        refresh = _every(report) if refreshing else 0
        return html.page(view, self._style, refresh=refresh, links=self._links).encode()

    @cached_property
    def _style(self) -> str:
        return files("agent.exporters.web").joinpath("templates/page.css").read_text()

    @cached_property
    def _style_hash(self) -> str:
        return f"sha256-{b64encode(sha256(self._style.encode()).digest()).decode()}"


def _every(report: Report | None) -> int:
    return _SECONDS_BEFORE if report is None else _SECONDS
