"""The page in a real browser: legible, complete by itself, and usable by keyboard, whatever it shows."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, sync_playwright
from playwright.sync_api import Page as BrowserPage
from prometheus_client import CollectorRegistry

from agent.exporters.web.page import Page
from agent.exporters.web.server import (
    LINKS,
    CleanupFacts,
    Documents,
    HttpExporter,
    Transport,
)
from agent.model.assessment import State
from agent.model.report import Report
from tests.builders import cni_result, dark_node, node, reservation, scanned, without
from tests.exporters.cleanings import UNMANAGED, cleaning, refused, released
from tests.wire import needs

from .node import Cluster, Pods, eventually
from .nodeleak import Nodeleak

pytestmark = pytest.mark.e2e

STILL = "/?refresh=off"
CHROMIUM: Final = Path("/usr/bin/chromium")

_CONTRASTS: Final = """
() => {
  const numbers = (text) => (text.match(/rgba?\\([^)]*\\)/g) || []).map((one) => one.match(/[\\d.]+/g).map(Number));
  const luminance = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const seen = (colour) => colour.length < 4 || colour[3] === 1;
  const hatch = !document.querySelector('.ground') ? [] : ['.ground', '.line'].map((name) => {
    const style = getComputedStyle(document.querySelector(name));
    return numbers(name === '.line' ? style.stroke : style.fill)[0];
  });
  const behind = (element) => {
    const cell = element.closest('svg g');
    if (cell) {
      const fill = getComputedStyle(cell.querySelector('rect')).fill;
      return fill.startsWith('url') ? hatch : numbers(fill);
    }
    for (let one = element; one; one = one.parentElement) {
      const style = getComputedStyle(one);
      const colours = numbers(style.backgroundImage + style.backgroundColor).filter(seen);
      if (colours.length) return colours;
    }
    return [[255, 255, 255]];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, words = walker.currentNode.data.trim();
    if (!words || ['STYLE', 'title'].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    const colour = numbers(element.closest('svg') ? style.fill : style.color)[0];
    found.push([Math.min(...behind(element).map((other) => ratio(colour, other))), words]);
  }
  return found.sort(([one], [other]) => one - other);
}
"""
"""Each text with its lowest contrast to its background (WCAG 2), the lowest first."""

_FOCUSED: Final = """
() => { const one = document.activeElement; return one === document.body ? null
  : one.tagName.toLowerCase() + ': ' + (one.getAttribute('aria-label') || one.textContent).trim(); }
"""


@dataclass
class View:
    """One page in the browser."""

    page: BrowserPage
    complaints: list[str] = field(default_factory=list)  # Console errors and warnings
    requested: list[str] = field(default_factory=list)  # All requested URLs

    def poorest_contrast(self) -> tuple[float, str]:
        found: list[tuple[float, str]] = self.page.evaluate(_CONTRASTS)
        return found[0]

    def overflow(self) -> int:
        """Return how many pixels the page is wider than its window."""
        beyond: int = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )  # fmt: skip
        return beyond

    def tab_order(self) -> list[str]:
        """Press Tab from start to end and return the focused elements."""
        order: list[str] = []
        while len(order) < 60:
            self.page.keyboard.press("Tab")
            focused = self.page.evaluate(_FOCUSED)
            if focused is None or focused in order[:1]:
                break
            order.append(focused)
        return order


@contextmanager
def looking_at(browser: Browser, url: str, **how: Any) -> Iterator[View]:
    """Open a page without JavaScript."""
    context = browser.new_context(java_script_enabled=False, **how)
    page = context.new_page()
    view = View(page)
    page.on("console", lambda text: view.complaints.append(text.text))
    page.on("pageerror", lambda error: view.complaints.append(str(error)))
    page.on("request", lambda request: view.requested.append(request.url))
    page.goto(url)
    try:
        yield view
    finally:
        context.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    needs(CHROMIUM.exists(), "Debian's chromium, which hack/cluster build installs")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


def check_as_a_document(browser: Browser, url: str) -> None:
    """Check every page: no external requests, no console messages, legible in both color schemes and on a phone."""
    for scheme in ("light", "dark"):
        with looking_at(browser, f"{url}{STILL}", color_scheme=scheme) as view:
            assert view.complaints == []
            assert [found for found in view.requested if not found.startswith("data:")] == [
                f"{url}{STILL}"
            ]
            contrast, words = view.poorest_contrast()
            assert contrast >= 4.5, f"{scheme}: {words!r} has {contrast:.1f}"
    with looking_at(browser, f"{url}{STILL}", viewport={"width": 360, "height": 740}) as view:
        view.page.evaluate(
            "for (const found of document.querySelectorAll('details')) found.open = true"
        )
        assert view.overflow() == 0


def test_the_page_of_a_node_shows_its_leaks_and_is_reached_by_keyboard(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak, browser: Browser
) -> None:
    owners = pods(2)
    with nodeleak.running("--interval=1s", "--confirm-after=2s", "--grace=1s") as daemon:

        def headline() -> str:
            with looking_at(browser, daemon.url + STILL) as view:
                return view.page.locator("h1").inner_text()

        eventually(headline, equal="OK: no findings")
        leaked = cluster.reserve(2)
        eventually(headline, equal=f"Warning: 2 leaked pod addresses on {cluster.node}")
        with looking_at(browser, daemon.url + STILL) as view:
            findings = view.page.locator(".finding").inner_text()
            assert all(ip in findings for ip in leaked)
            assert "Do:" in findings
            cells = view.page.locator("svg.grid g title").evaluate_all(
                "all => all.map(title => title.textContent)"
            )
            assert {pod for pod in owners.values() if pod in "\n".join(cells)} == {*owners.values()}

            order = view.tab_order()
            assert order[:2] == ["a: Refresh now", "a: Refresh every 30 s"]
            assert "div: Addresses in kubenet that are reserved but not in use" in order
            assert order[-len(LINKS) :] == [f"a: {link}" for link in LINKS]
            entries = view.page.locator("details", has_text="All 4 entries of kubenet")
            entries.locator("summary").focus()
            view.page.keyboard.press("Enter")
            assert entries.get_attribute("open") is not None
            assert entries.locator("tbody tr").count() == 4

            view.page.get_by_role("link", name="Refresh every 30 s").click()
            assert view.page.get_by_text("refreshes every 30 s").count() == 1
            view.page.get_by_role("link", name="Pause").click()
            assert view.page.url == f"{daemon.url}{STILL}"
            assert view.page.get_by_text("refreshes every").count() == 0


def drawings() -> dict[str, Report | None]:
    """Return reports whose pages have every marker, status and warning."""
    lost = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(10, 10 + len(State))]
    seen = scanned(
        node(*lost, cni_results=[cni_result("f" * 64, "", "10.0.0.0/8", "10.244.0.0/16")], node=[])
    )
    pairs = zip(seen.assessment.reservations, cycle(State), strict=False)
    every_state = replace(
        seen.assessment, reservations=tuple(replace(found, state=state) for found, state in pairs)
    )
    unconfirmed = tuple(replace(finding, confirmed=False) for finding in seen.findings)
    halted = cleaning(released(), refused(UNMANAGED), halted="it reappeared")
    return {
        "before the first snapshot": None,
        "every state": replace(seen, assessment=every_state, cleaning=halted),
        "unconfirmed": replace(seen, findings=unconfirmed),
        "findings and missing data": scanned(without(node(*lost), "device_plugins")),
        "no source available": scanned(dark_node()),
        "unavailable": scanned(without(node(), "reservations")),
    }


def test_every_marker_and_every_status_is_legible_in_both_color_schemes(browser: Browser) -> None:
    for report in drawings().values():
        with serving(report) as url:
            check_as_a_document(browser, url)


@contextmanager
def serving(report: Report | None) -> Iterator[str]:
    exporter = HttpExporter(
        Transport(("127.0.0.1", 0)),
        CollectorRegistry(),
        Documents(
            alive=lambda: True,
            facts=lambda _: CleanupFacts({}, (), ()),
            status=lambda *_: {},
            page=Page(LINKS),
        ),
        report_bug=lambda bug: pytest.fail(bug.traceback),
        warn=pytest.fail,
    )
    exporter.start()
    try:
        if report is not None:
            exporter.export(report, 0.1)
        yield f"http://127.0.0.1:{exporter.port}"
    finally:
        exporter.close()


def test_the_screenshots_of_the_documentation_can_be_taken(
    browser: Browser, tmp_path: Path
) -> None:
    assert browser.is_connected()
    command = [sys.executable, "-m", "tests.screenshots", f"--to={tmp_path}"]
    subprocess.run(command, check=True, timeout=60, cwd=Path(__file__).parents[2])  # noqa: S603 (ours)
    made = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert made.keys() == {
        "page-healthy.png",
        "page-leak.png",
        "page-incomplete.png",
        "page-dark.png",
    }
    assert all(10_000 < size <= 200_000 for size in made.values())
