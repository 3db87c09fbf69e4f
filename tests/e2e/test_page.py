"""The page of the real agent in a real browser: a healthy node, the leak, and an agent without its sources."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright
from prometheus_client import CollectorRegistry

from agent.exporters.web.page import Page
from agent.exporters.web.server import LINKS, HttpExporter
from agent.model.assessment import State
from agent.model.report import Report
from tests.builders import cni_result, dark_node, node, reservation, scanned, without
from tests.exporters.cleanings import UNMANAGED, cleaning, refused, released
from tests.wire import needs

from .agent import Daemon, Nodeleak
from .browser import CHROMIUM, looking_at
from .node import Cluster, Pods, eventually

pytestmark = pytest.mark.e2e

QUICK = ("--interval=1s", "--confirm-after=2s", "--grace=1s")
STILL = "/?refresh=off"
SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    needs(CHROMIUM.exists(), "Debian's chromium, which hack/cluster build installs")
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


def check_as_a_document(browser: Browser, url: str) -> None:
    """Check every page: no external requests, no console messages, legible in both color schemes and on a phone."""
    for scheme in SCHEMES:
        with looking_at(browser, f"{url}{STILL}", color_scheme=scheme) as view:
            assert view.complaints == []
            assert [one for one in view.requested if not one.startswith("data:")] == [f"{url}{STILL}"]
            contrast, words = view.poorest_contrast()
            assert contrast >= 4.5, f"{scheme}: {words!r} has {contrast:.1f}"
    with looking_at(browser, f"{url}{STILL}", viewport={"width": 360, "height": 740}) as view:
        view.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert view.overflow() == 0


def test_a_healthy_node_is_ok_and_each_pod_is_on_the_map(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak, browser: Browser
) -> None:
    owners = pods(2)
    with nodeleak.running(*QUICK) as daemon:

        def check() -> None:
            with looking_at(browser, daemon.url + STILL) as view:
                assert view.headline == "OK: no findings"
                cells = view.cells()
                assert {cells[ip][0] for ip in owners} == {"in_use"}
                assert all(pod in cells[ip][1] for ip, pod in owners.items())
                assert cluster.node in view.page.locator(".node").inner_text()

        eventually(check, 15)
        check_as_a_document(browser, daemon.url)
        check_refreshing(browser, daemon.url)


def check_refreshing(browser: Browser, url: str) -> None:
    """Pause and resume the automatic refresh."""
    with looking_at(browser, f"{url}/") as view:
        view.page.get_by_role("link", name="Pause").click()
        assert view.page.url == f"{url}{STILL}"
        assert view.page.get_by_text("refreshes every").count() == 0
        view.page.get_by_role("link", name="Refresh every 30 s").click()
        assert view.page.get_by_text("refreshes every 30 s").count() == 1
        assert view.complaints == []


def test_a_leak_is_seen_and_reached_by_keyboard(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak, browser: Browser
) -> None:
    old = pods(2)
    with nodeleak.running(*QUICK) as daemon:
        eventually(lambda: _knows(daemon, old))
        cluster.leak()
        pods.running()

        def check() -> None:
            with looking_at(browser, daemon.url + STILL) as view:
                assert view.headline == f"Warning: 2 leaked pod addresses on {cluster.node}"
                marks = view.marks()
                assert {ip for ip, mark in marks.items() if mark == "leaked"} == set(old)
                findings = view.page.locator(".finding").inner_text()
                assert all(ip in findings for ip in old)
                assert "Do:" in findings

        eventually(check, 20)
        check_as_a_document(browser, daemon.url)
        check_keyboard(browser, daemon)


def check_keyboard(browser: Browser, daemon: Daemon) -> None:
    """Reach every link and list with the Tab key, in reading order."""
    with looking_at(browser, daemon.url + STILL) as view:
        order = view.tab_order()
        assert order[:2] == ["a: Refresh now", "a: Refresh every 30 s"]
        assert "div: Addresses in kubenet that are reserved but not in use" in order
        assert order[-len(LINKS) :] == [f"a: {link}" for link in LINKS]
        all_entries = view.page.locator("details", has_text="All 4 entries of kubenet")
        all_entries.locator("summary").focus()
        view.page.keyboard.press("Enter")
        assert all_entries.get_attribute("open") is not None
        assert all_entries.locator("tbody tr").count() == 4


def test_the_page_without_docker_is_incomplete(
    pods: Pods, nodeleak: Nodeleak, browser: Browser, tmp_path: Path
) -> None:
    owners = pods(1)
    with nodeleak.running(*QUICK, f"--docker-host=unix://{tmp_path}/nobody.sock") as daemon:
        with looking_at(browser, daemon.url + STILL) as view:
            assert view.headline.startswith("Incomplete: ")
            assert "status-incomplete" in str(view.page.locator("header").get_attribute("class"))
            assert "containers" in view.page.locator("section.unavailable").inner_text()
            marks = view.marks()
            assert {marks[ip] for ip in owners} == {"unknown"}
        check_as_a_document(browser, daemon.url)


def drawings() -> dict[str, Report | None]:
    """Return reports whose pages have every marker, status and warning."""
    lost = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(10, 10 + len(State))]
    seen = scanned(node(*lost, cni_results=[cni_result("f" * 64, "", "10.0.0.0/8", "10.244.0.0/16")], node=[]))
    pairs = zip(seen.assessment.reservations, cycle(State), strict=False)
    every_state = replace(seen.assessment, reservations=tuple(replace(one, state=state) for one, state in pairs))
    unconfirmed = tuple(replace(one, confirmed=False) for one in seen.findings)
    halted = cleaning(released(), refused(UNMANAGED), halted="it reappeared")
    return {
        "before the first snapshot": None,
        "every state": replace(seen, assessment=every_state, cleaning=halted),
        "unconfirmed": replace(seen, findings=unconfirmed),
        "findings and missing data": scanned(without(node(*lost), "device_plugins")),
        "no source available": scanned(dark_node()),
        "unavailable": scanned(without(node(), "reservations")),
    }


@pytest.mark.parametrize("name", drawings())
def test_every_marker_and_every_status_is_legible_in_both_color_schemes(browser: Browser, name: str) -> None:
    exporter = HttpExporter(("127.0.0.1", 0), CollectorRegistry(), lambda: True, Page(lambda: ((), ()), LINKS))
    exporter.start()
    try:
        if (report := drawings()[name]) is not None:
            exporter.export(report, 0.1)
        check_as_a_document(browser, f"http://127.0.0.1:{exporter.port}")
    finally:
        exporter.close()


def test_the_screenshots_of_the_documentation_can_be_taken(browser: Browser, tmp_path: Path) -> None:
    assert browser.is_connected()
    script = Path(__file__).parents[2] / "hack" / "screenshots"
    subprocess.run([script, f"--to={tmp_path}"], check=True, timeout=60)  # noqa: S603 (ours)
    made = {one.name: one.stat().st_size for one in tmp_path.iterdir()}
    assert made.keys() == {"page-healthy.png", "page-leak.png", "page-incomplete.png", "page-dark.png"}
    assert all(10_000 < size <= 200_000 for size in made.values())


def _knows(daemon: Daemon, pods: dict[str, str]) -> None:
    assert daemon.report().pods == pods
