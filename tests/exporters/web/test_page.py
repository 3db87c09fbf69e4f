"""The page of every node of the golden files: valid, escaped, without foreign resources, never green without data."""

import re
from base64 import b64encode
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import html5lib
import pytest

from agent.model.bug import Bug
from agent.model.release import Cleaning
from agent.model.report import Report
from tests.builders import NOW, cni_result, dark_node, node, reservation, scanned, without
from tests.exporters.built import EVIL, LOST, NODES, write_journal
from tests.exporters.cleanings import UNMANAGED, cleaning, refused, released
from tests.exporters.served import Server, serving, status

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def pages(server: Server) -> list[tuple[Report, str]]:
    cleaned = cleaning(released(), refused(UNMANAGED), halted=EVIL)
    reports = [
        *(scanned(snapshot) for snapshot in NODES.values()),
        replace(scanned(node(LOST)), cleaning=cleaned),
        scanned(replace(NODES["foreign-names"], node_name="worker\udcff\x1b[31m")),
    ]
    return [(report, server.page(report)) for report in reports]


def test_every_page_is_valid_and_loads_nothing(pages: list[tuple[Report, str]]) -> None:
    for _, page in pages:
        tree = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)
        elements = list(tree.iter())
        assert not {one.tag for one in elements} & {
            "script",
            "iframe",
            "img",
            "form",
            "object",
            "embed",
            "base",
        }
        ids = [one.attrib["id"] for one in elements if "id" in one.attrib]
        assert len(ids) == len(set(ids))
        assert {
            one.attrib["aria-labelledby"] for one in elements if "aria-labelledby" in one.attrib
        } <= {*ids}
        attributes = [(name, value) for one in elements for name, value in one.attrib.items()]
        assert [name for name, _ in attributes if name.startswith("on") or name == "style"] == []
        for link in (value for name, value in attributes if name in {"href", "src"}):
            _, runbook, section = link.rpartition("/docs/runbooks/")
            path, _, anchor = section.partition("#")
            if runbook:  # it loads nothing until somebody follows it
                headings = re.findall(
                    "^## (.+)$", (ROOT / "docs/runbooks" / path).read_text(), re.MULTILINE
                )
                assert anchor in map(str.lower, headings), link
            else:
                assert link[1:] in ids or re.match("/(?!/)|data:image/svg.xml,", link), link
        assert not re.findall(r"@import|url\((?!#hatch\))", page)
        assert "\x1b" not in page


def test_a_page_is_green_only_if_everything_was_read_and_nothing_found(
    server: Server, pages: list[tuple[Report, str]]
) -> None:
    for report, page in pages:
        healthy = report.complete and not report.unavailable and status(report)["state"] == "ok"
        assert ('class="headline status-healthy' in page) == healthy
        assert (' partly"' in page) == (bool(report.unavailable) or not report.complete)
    unconfirmed = scanned(node(LOST))
    findings = tuple(replace(found, confirmed=False) for found in unconfirmed.findings)
    page = server.page(replace(unconfirmed, findings=findings))
    assert "status-unconfirmed" in page
    assert "(not confirmed yet)" in page


def test_an_age_that_cannot_be_is_no_age(server: Server) -> None:
    """The clock was set back, so that the file is younger than the snapshot."""
    page = server.page(scanned(node(reservation("10.244.1.9", age=timedelta(hours=-5)))))
    assert ("10.244.1.9" in page, "-5h" in page) == (True, False)
    assert not re.search(r"reserved\s+ago", page)


def test_without_data_no_address_is_free(server: Server) -> None:
    for snapshot, expected in (
        (without(node(), "reservations"), {"unavailable", "gateway"}),
        (without(node(LOST), "containers"), {"unknown", "gateway", "free"}),
        (dark_node(), set()),
    ):
        marks = re.findall(r'<g class="m-(\w+)"><title>', server.page(scanned(snapshot)))
        assert set(marks) == expected


def test_a_stalled_agent_says_that_its_data_is_old(tmp_path: Path) -> None:
    with serving(tmp_path, heart=SimpleNamespace(alive=False)) as server:
        page = server.page(scanned(node()))
    assert "status-incomplete partly" in page
    assert "No sync has finished for too long: this page shows old data." in page


def test_the_page_is_bounded(tmp_path: Path) -> None:
    write_journal(tmp_path)
    released_once = min((tmp_path / "journal").iterdir())
    for number in range(100):
        copy = released_once.with_name(f"{number}.json")
        copy.write_text(released_once.read_text().replace(released_once.stem, copy.stem))
    many = [reservation(f"10.{n >> 8}.{n & 255}.9", f"{n:064x}") for n in range(1100)]
    report = scanned(node(*many, cni_results=[cni_result("f" * 64, "", "10.0.0.0/8")], node=[]))
    with serving(tmp_path) as server:
        page = server.page(report)
    assert len(page) < 2_500_000
    assert "All 1102 entries of kubenet" in page
    assert "… and 102 more: <code>nodeleak scan -o json</code> lists all." in page
    assert (
        page.count('<td class="state">released</td>')
        + page.count('<td class="state">restored</td>')
        == 60
    )
    assert "older: <code>nodeleak timeline</code>" in page


def test_it_refreshes_until_paused_and_its_policy_allows_the_style_and_nothing_else(
    tmp_path: Path,
) -> None:
    with serving(tmp_path) as server:
        first = server.ask("/")
        server.export(scanned(node()), 0.1)
        running, paused = server.ask("/"), server.ask("/?a=b&refresh=off")
    assert [one.headers.get("Refresh") for one in (first, running, paused)] == ["3", "30", None]
    assert "Waiting for the first snapshot" in first.text
    assert 'href="/?refresh=off">Pause' in running.text
    assert 'href="/">Refresh every 30 s' in paused.text
    (style,) = re.findall(r"<style>(.*?)</style>", running.text, re.DOTALL)
    assert running.headers["Content-Security-Policy"] == (
        f"default-src 'none'; style-src 'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def test_a_cleanup_that_a_bug_ended_is_not_shown_as_one_with_nothing_to_do(tmp_path: Path) -> None:
    bug = Bug("cleaner", "after_snapshot", "KeyError: 'x'", "Traceback ...")
    failed = Cleaning(node="worker-1", taken_at=NOW, dry_run=False, bugs=(bug,))
    with serving(tmp_path) as server:
        page = server.page(replace(scanned(node()), cleaning=failed))
        assert "Cleanup failed:</b> bug in nodeleak: KeyError: &#39;x&#39;" in page
        assert "Nothing to release" not in page
