"""The page in a real browser: legible, complete by itself, and usable by keyboard, whatever it shows."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from playwright.sync_api import Browser
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
from tests.browser import chromium, looking_at
from tests.builders import cni_result, dark_node, node, reservation, scanned, without
from tests.exporters.cleanings import UNMANAGED, cleaning, refused, released

from .node import Cluster, Pods, eventually
from .nodeleak import Nodeleak

pytestmark = pytest.mark.e2e

STILL = "/?refresh=off"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as launched:
        yield launched


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
        view.open_details()
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
            assert "div: Leaked addresses in kubenet" in order
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
