"""The page: valid, escaped, without foreign resources, and never green without data."""

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html import unescape
from xml.etree.ElementTree import Element

import html5lib
import pytest
from hypothesis import given, settings

from agent.exporters.headline import Status, status_of
from agent.exporters.web.page import Page
from agent.exporters.web.server import LINKS
from agent.model.finding import SkippedCheck
from agent.model.report import Report
from agent.model.snapshot import Snapshot
from tests.builders import cni_result, dark_node, node, reservation, scanned, without
from tests.exporters.built import EVIL, LOST, NODES, RELEASED
from tests.exporters.cleanings import UNMANAGED, cleaning, refused, released
from tests.strategies import nodes

PAGE = Page(lambda: ((RELEASED,), ()), LINKS, "0.1.0", "off")
CLEANED = replace(scanned(node(LOST)), cleaning=cleaning(released(), refused(UNMANAGED), halted=EVIL))


def rendered(report: Report | None, *, alive: bool = True, refreshing: bool = True, page: Page = PAGE) -> str:
    return page.render(report, alive=alive, refreshing=refreshing).decode()


def parsed(text: str) -> Element:
    """Parse as strictly as HTML5 has it."""
    tree: Element = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)
    return tree


def words(text: str) -> str:
    """Return what a reader reads, but for the drawings."""
    tree = parsed(text)
    for parent in tree.iter():
        for child in list(parent):
            if child.tag in {"style", "{http://www.w3.org/2000/svg}svg"}:
                child.clear()
    return " ".join(" ".join(tree.itertext()).split())


def marks(text: str) -> set[str]:
    return set(re.findall(r'<g class="m-(\w+)"><title>', text))


# Unavailable data


def test_with_an_unavailable_source_the_page_is_never_green() -> None:
    for source in ("reservations", "containers", "checkpoints", "pods", "device_plugins", "node"):
        text = rendered(scanned(without(node(), source)))
        assert 'class="headline status-incomplete partly"' in text
        assert f"Unavailable: {source}." in words(text)
        assert "None in the data that could be read." in words(text)
    assert 'class="headline status-problem partly"' in rendered(scanned(without(node(LOST), "device_plugins")))
    failed = rendered(replace(scanned(node()), gaps=(SkippedCheck("shared_ip", "ZeroDivisionError", broken=True),)))
    assert "status-incomplete partly" in failed
    assert "Failed checks: shared_ip." in words(failed)


def test_without_data_no_address_is_free() -> None:
    assert "m-free" not in rendered(scanned(dark_node())).partition("</style>")[2]
    assert marks(rendered(scanned(without(node(), "reservations")))) == {"unavailable", "gateway"}
    assert marks(rendered(scanned(without(node(LOST), "containers")))) == {"unknown", "gateway", "free"}
    assert "kubenet: the number of free addresses is unknown." in words(rendered(scanned(dark_node())))


def test_a_stalled_agent_says_that_its_data_is_old() -> None:
    text = rendered(scanned(node()), alive=False)
    assert "status-incomplete partly" in text
    assert "No sync has finished for too long: this page shows old data." in words(text)


def test_unconfirmed_findings_are_marked() -> None:
    report = scanned(node(LOST))
    report = replace(report, findings=tuple(replace(one, confirmed=False) for one in report.findings))
    assert "status-unconfirmed" in rendered(report)
    assert "(not confirmed yet)" in words(rendered(report))


@given(nodes(two_networks=True))
@settings(max_examples=60)
def test_green_means_all_data_and_no_problem(snapshot: Snapshot) -> None:
    report = scanned(snapshot)
    healthy = status_of(report) is Status.HEALTHY
    assert healthy == (report.complete and not report.unavailable and not report.problems)
    text = rendered(report)
    assert ("status-healthy" in text.partition("</style>")[2]) == healthy
    parsed(text)


# As a document


@pytest.mark.parametrize("refreshing", [True, False])
def test_the_page_is_valid_and_has_no_foreign_resources(refreshing: bool) -> None:
    for report in (None, scanned(node()), scanned(dark_node()), scanned(NODES["foreign-names"]), CLEANED):
        # A runbook is a link, which loads nothing until somebody follows it.
        linked = r'<a href="https://[^"]+/docs/runbooks/\w+\.md#\w+" rel="noreferrer">'
        text = re.sub(linked, "<a>", rendered(report, refreshing=refreshing))
        tree = parsed(text)
        assert not {one.tag for one in tree.iter()} & {"script", "iframe", "img", "form", "object", "embed", "base"}
        for element in tree.iter():
            for name, value in element.attrib.items():
                assert not name.startswith("on"), element.tag
                assert name != "style", "the policy would pass it over"
                if name in {"href", "src"}:
                    assert re.match("/(?!/)|#|data:image/svg.xml,", value), value
        assert "//" not in text.replace("http://www.w3.org/2000/svg", "").replace("unix:///", "")
        assert not re.findall(r"@import|url\((?!#hatch\))", text)


def test_foreign_names_are_only_text() -> None:
    text = rendered(scanned(replace(NODES["foreign-names"], node_name="worker\udcff\x1b[31m")))
    assert "<script" not in text
    assert "\x1b" not in text
    assert unescape(text).count("<script>alert('x')</script>&\"<b onclick=x>\\x1b[2J") >= 4
    assert r"on worker\udcff\x1b[31m" in text


def test_ids_are_unique_and_labels_lead_to_them() -> None:
    tree = parsed(rendered(scanned(node(LOST, reservation("10.9.0.2", "5" * 64, network="storage")))))
    ids = [element.attrib["id"] for element in tree.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    links = {element.attrib["href"][1:] for element in tree.iter("a") if element.attrib["href"].startswith("#")}
    labels = {element.attrib["aria-labelledby"] for element in tree.iter() if "aria-labelledby" in element.attrib}
    assert {"timeline"} <= links | labels <= {*ids}


def test_the_page_is_bounded() -> None:
    many = [reservation(f"10.{n >> 8 & 255}.{n & 255}.9", f"{n:064x}") for n in range(3000)]
    releases = [replace(RELEASED, name=f"e{n}") for n in range(100)]
    report = scanned(node(*many, cni_results=[cni_result("f" * 64, "", "10.0.0.0/8")], node=[]))
    text = rendered(report, page=Page(lambda: (releases, ())))
    assert len(text) < 2_500_000
    shown = words(text)
    assert "All 3002 entries of kubenet" in shown
    assert "… and 2002 more: nodeleak scan -o json lists all." in shown
    assert shown.count("was released by") == 60
    assert "older: nodeleak timeline" in shown


# As it is served


def test_the_policy_allows_the_style_and_nothing_else() -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", rendered(scanned(node())), re.DOTALL)
    assert dict(PAGE.headers(None, refreshing=False))["Content-Security-Policy"] == (
        f"default-src 'none'; style-src 'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def test_it_refreshes_until_paused_and_soon_before_the_first_sync() -> None:
    report = scanned(node())
    refreshes = [
        dict(PAGE.headers(one, refreshing=on)).get("Refresh") for one in (report, None) for on in (True, False)
    ]
    assert refreshes == ["30", None, "3", None]
    assert 'href="/?refresh=off">Pause' in rendered(report)
    assert 'href="/">Refresh every 30 s' in rendered(report, refreshing=False)
    assert "Waiting for the first snapshot" in words(rendered(None))
