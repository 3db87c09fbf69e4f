"""The page: valid, escaped, nothing from elsewhere, and blind where the agent is."""

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html import unescape
from xml.etree.ElementTree import Element

import html5lib
import pytest
from hypothesis import given, settings

from agent.checks.registry import DETECTORS
from agent.cleanup.journal import Entry
from agent.cleanup.release import RESERVATION, FileImage
from agent.exporters import timeline
from agent.exporters.web import page_view
from agent.exporters.web.page import Page
from agent.exporters.web.page_map import in_short
from agent.exporters.web.server import LINKS
from agent.exporters.web.status import Status
from agent.exporters.web.status import node_status as verdict_of
from agent.model.finding import Gap
from agent.model.registration import DELETION_CANDIDATE, Taint
from agent.model.release import Verdict
from agent.model.report import Report
from agent.model.snapshot import Address, Snapshot, Unavailable
from tests.builders import (
    GONE,
    INSTANCE,
    KVM,
    NOW,
    OLD,
    cni_result,
    dark_node,
    device_plugins,
    node,
    plugin_socket,
    registered,
    reservation,
    sandbox,
    scanned,
    unrecognized,
    without,
    without_api,
    worker,
)
from tests.exporters.cleanings import UNMANAGED, cleaning, refused, released
from tests.strategies import nodes

LOST = reservation("10.244.1.9")
EVIL = "<script>alert('x')</script>&\"<b onclick=x>"
RELEASED = Entry("e1", NOW, "run", GONE, "shop/cart", (FileImage(RESERVATION, "kubenet", "10.244.1.8", b"", 0o644, 0, 0, 7, 0),), Verdict.RELEASED)  # fmt: skip # noqa: E501


def page(*entries: Entry) -> Page:
    return Page(lambda: (entries, ()), LINKS)


def drawn(report: Report | None, *entries: Entry, alive: bool = True, refreshing: bool = True) -> str:
    return page(*entries).draw(report, alive=alive, refreshing=refreshing).decode()


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
            elif child.tag in {"td", "th", "b"}:
                child.tail = f" {child.tail or ''}"
    return " ".join("".join(tree.itertext()).split())


def marks(text: str) -> dict[str, str]:
    """Return the class of each cell of the map by what its tooltip begins with."""
    found = re.findall(r'<g class="m-(\w+)"><title>([^<]*)</title>', text)
    return {unescape(title).split(": ")[0]: mark for mark, title in found}


# What is drawn


def test_a_healthy_node_is_green_and_says_so() -> None:
    text = drawn(scanned(node()))
    assert 'class="verdict status-well"' in text
    said = words(text)
    assert "nodeleak on worker-1" in said
    assert "All is in order" in said
    assert "Of the 253 addresses of kubenet 251 are free." in said
    assert "Last look: 2026-03-26 20:00:00 UTC" in said
    assert "Findings None." in said


def test_what_is_good_to_know_is_no_trouble() -> None:
    scaling_down = worker(Taint(DELETION_CANDIDATE), provider_id=INSTANCE)
    report = scanned(node(node=[scaling_down]))
    assert (len(report.findings), report.troubles) == (1, ())
    text = drawn(report)
    assert 'class="verdict status-well"' in text
    assert "Nothing is wrong, and 1 finding to know of" in words(text)
    with_a_leak = drawn(scanned(node(LOST, node=[scaling_down])))
    assert 'class="verdict status-trouble"' in with_a_leak
    assert "Something is wrong: 1 finding" in words(with_a_leak)


def test_a_leak_is_shown_with_its_pod_its_age_and_what_to_do() -> None:
    text = drawn(scanned(node(LOST, cni_result(GONE, "shop/cart", "10.244.1.0/24"))))
    assert 'class="verdict status-trouble"' in text
    assert marks(text)["10.244.1.9"] == "leaked"
    assert "<title>10.244.1.9: leaked\nshop/cart\nreserved 2h ago\n" in text
    said = words(text)
    assert "Something is wrong: 1 finding" in said
    assert "1 × leaked reservation." in said  # noqa: RUF001 (times)
    assert "10.244.1.9 is reserved for container 999999999999 of pod shop/cart, which no longer exists" in said
    assert "Do: nothing is broken while addresses are free." in said
    assert "nodeleak explain leaked_reservation" in said
    assert "Not plainly in use" in said


def test_each_address_has_its_cell_and_its_colour() -> None:
    found = marks(drawn(scanned(node(LOST, unrecognized("10.244.1.77", blocks=True)))))
    assert len(found) == 254
    assert {ip: mark for ip, mark in found.items() if mark != "free"} == {
        "10.244.1.1": "gateway",
        "10.244.1.2": "in_use",
        "10.244.1.3": "in_use",
        "10.244.1.9": "leaked",
        "10.244.1.77": "unrecognized",
    }


def test_a_large_range_is_drawn_in_blocks_by_the_rule_it_tells() -> None:
    snapshot = node(reservation("10.0.255.9"), cni_results=[cni_result("f" * 64, "", "10.0.0.0/16")], node=[])
    text = drawn(scanned(snapshot))
    assert text.count('<g class="m-') < 400
    assert "A cell is 256 addresses, shown by the worst." in words(text)


def test_the_legend_counts_what_the_map_shows() -> None:
    said = words(drawn(scanned(node(LOST))))
    for line in ("1 leaked", "2 in use", "1 gateway, never given out", "250 free"):
        assert line in said


def test_what_is_not_confirmed_yet_is_a_suspicion() -> None:
    report = scanned(node(LOST))
    doubtful = replace(report, findings=tuple(replace(one, confirmed=False) for one in report.findings))
    said = words(drawn(doubtful))
    assert verdict_of(doubtful, alive=True).status is Status.DOUBT
    assert "1 suspicion, none confirmed yet" in said
    assert "(not confirmed yet)" in said


def test_devices_are_shown_with_how_late_they_were() -> None:
    plugins = device_plugins(plugin_socket(), registered(KVM, "kvm0"))
    said = words(drawn(scanned(node(device_plugins=plugins))))
    assert f"{KVM} 1 0 yes" in said
    assert "kubevirt-kvm.sock" in said


def test_device_plugins_that_were_not_read_are_not_none() -> None:
    assert "Not read: device_plugins: it gave no word" in words(drawn(scanned(without(node(), "device_plugins"))))
    assert "No device plugin is known on this node." in words(drawn(scanned(node())))


def test_the_timeline_has_the_newest_first_and_the_releases() -> None:
    said = words(drawn(scanned(node(LOST)), RELEASED))
    assert said.index("10.244.1.8 of pod shop/cart was released by `run`, entry e1") < said.index("the node booted")


def test_a_journal_that_cannot_be_read_is_told() -> None:
    silent = Page(lambda: (Unavailable("journal", "it is damaged"), ("line 3",)), LINKS)
    said = words(silent.draw(scanned(node()), alive=True, refreshing=True).decode())
    assert "May lack events: journal: it is damaged" in said
    assert "May lack events: journal: line 3" in said


def test_a_long_timeline_is_cut_and_says_so() -> None:
    said = words(drawn(scanned(node()), *(replace(RELEASED, name=f"e{n}") for n in range(100))))
    assert said.count("was released by") == 60
    assert "44 older: nodeleak timeline" in said


def test_the_last_rounds_releases_are_shown_with_why_not() -> None:
    report = replace(scanned(node(LOST)), cleaning=cleaning(released(), refused(UNMANAGED)))
    said = words(drawn(report))
    assert "Releases of the last round" in said
    assert "10.244.1.9 shop/cart released" in said
    assert f"refused {UNMANAGED.why}" in said
    assert "Dry run" not in said
    assert "Dry run" in words(drawn(replace(report, cleaning=cleaning(applied=False))))
    assert "Releases of the last round" not in words(drawn(scanned(node())))


def test_cleaning_that_has_stopped_is_trouble_by_itself() -> None:
    report = replace(scanned(node()), cleaning=cleaning(halted="it was there again"))
    text = drawn(report)
    assert "status-trouble" in text
    assert "Something is wrong: cleaning has stopped itself" in words(text)
    assert "Cleaning has stopped itself: it was there again." in words(text)


def test_every_detectors_advice_is_found() -> None:
    for detector in DETECTORS:
        assert len(page_view.advice(detector)) > 20, detector.NAME


# Blind


@pytest.mark.parametrize("source", ["reservations", "containers", "checkpoints", "pods", "device_plugins", "node"])
def test_an_agent_that_cannot_read_something_looks_blind_and_never_green(source: str) -> None:
    text = drawn(scanned(without(node(), source)))
    assert 'class="verdict status-blind partly"' in text
    said = words(text)
    assert "This agent cannot see everything" in said
    assert f"Not read: {source}." in said
    assert "Could not be read" in said
    assert "None, as far as could be read." in said


def test_in_the_dark_nothing_is_drawn_as_free() -> None:
    text = drawn(scanned(dark_node()))
    assert "m-free" not in text.partition("</style>")[2]
    said = words(text)
    assert "The range of kubenet is not known" in said
    assert "How many addresses of kubenet are free is not known." in said


def test_reservations_that_were_not_read_are_hatched_and_not_free() -> None:
    found = marks(drawn(scanned(without(node(), "reservations"))))
    assert set(found.values()) == {"unavailable", "gateway"}


def test_whose_container_is_unknown_is_unknown() -> None:
    found = marks(drawn(scanned(without(node(LOST), "containers"))))
    assert {found[ip] for ip in ("10.244.1.2", "10.244.1.3", "10.244.1.9")} == {"unknown"}


def test_what_was_found_in_the_twilight_is_trouble_that_may_be_more() -> None:
    blind = without(node(LOST), "device_plugins")
    text = drawn(scanned(blind))
    assert 'class="verdict status-trouble partly"' in text
    assert "There may be more, which could not be judged." in words(text)


def test_a_detector_that_failed_is_no_green_either() -> None:
    text = drawn(replace(scanned(node()), gaps=(Gap("shared_ip", "ZeroDivisionError", broken=True),)))
    assert "status-blind partly" in text
    assert "Failed: shared_ip." in words(text)


def test_an_agent_that_hangs_says_that_what_it_shows_is_old() -> None:
    text = drawn(scanned(node()), alive=False)
    assert "status-blind partly" in text
    assert "This agent hangs No round has ended for too long: what is shown is old." in words(text)


def test_a_host_may_be_called_anything() -> None:
    # Without the API server a node has the host's own name, which need not be text.
    text = drawn(scanned(replace(node(), node_name="worker\udcff\x1b[31m")))
    assert "nodeleak on worker\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}[31m" in words(text)


def test_what_was_left_alone_by_choice_is_said_and_no_fault() -> None:
    text = drawn(scanned(without_api(node())))
    assert "status-well" in text
    assert "Judged without the API server (--api=off)" in words(text)


@given(nodes(two_networks=True))
@settings(max_examples=60)
def test_green_is_only_who_has_read_all_and_found_no_trouble(snapshot: Snapshot) -> None:
    report = scanned(snapshot)
    well = verdict_of(report, alive=True).status is Status.WELL
    assert well == (report.complete and not report.unavailable and not report.troubles)
    text = drawn(report)
    assert ("status-well" in text.partition("</style>")[2]) == well
    parsed(text)


# As a document


def strange_node() -> Snapshot:
    """A node whose names are as bad as names can be."""
    return node(
        LOST,
        reservation("10.244.1.10", "8" * 64),
        Address("10.244.1.10", 7, EVIL),
        cni_result(GONE, EVIL, "10.244.1.0/24"),
        unrecognized(EVIL),
        unrecognized("\x1b[2J\udcff"),
        sandbox("7" * 64, EVIL),
        reservation("10.244.1.11", "7" * 64),
        device_plugins=device_plugins(plugin_socket(EVIL), registered(EVIL, "d0")),
    )


@pytest.mark.parametrize(
    "report",
    [
        None,
        scanned(node()),
        scanned(strange_node()),
        scanned(dark_node()),
        replace(scanned(node(LOST)), cleaning=cleaning(released(), refused(UNMANAGED), halted=EVIL)),
    ],
    ids=["before", "healthy", "strange", "dark", "cleaning"],
)
@pytest.mark.parametrize("refreshing", [True, False])
def test_the_page_is_valid_and_has_nothing_from_elsewhere(report: Report | None, refreshing: bool) -> None:
    text = drawn(report, refreshing=refreshing)
    tree = parsed(text)
    tags = {element.tag for element in tree.iter()}
    assert not tags & {"script", "iframe", "img", "form", "object", "embed", "base"}
    for element in tree.iter():
        for name, value in element.attrib.items():
            assert not name.startswith("on"), element.tag
            assert name != "style", "the policy would pass it over"
            if name in {"href", "src"}:
                assert value.startswith(("/", "data:image/svg+xml,")) and not value.startswith("//"), value  # noqa: PT018
    assert "//" not in text.replace("http://www.w3.org/2000/svg", "").replace("unix:///", "")
    assert "@import" not in text
    assert not re.findall(r"url\((?!#hatch\))", text)


def test_names_of_others_are_text_and_nothing_else() -> None:
    text = drawn(scanned(strange_node()))
    assert EVIL not in text
    assert "<script" not in text
    said = words(text)
    assert said.count(EVIL) >= 4, "in the tables, the findings, the devices and the timeline"
    assert "\x1b" not in text


def test_ids_are_unique_and_labels_lead_to_them() -> None:
    tree = parsed(drawn(scanned(node(LOST, reservation("10.9.0.2", "5" * 64, network="storage")))))
    ids = [element.attrib["id"] for element in tree.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    assert {element.attrib["aria-labelledby"] for element in tree.iter() if "aria-labelledby" in element.attrib} <= {
        *ids
    }


def test_a_page_is_bounded_whatever_the_node_has() -> None:
    many = [reservation(f"10.{n >> 8 & 255}.{n & 255}.9", f"{n:064x}") for n in range(3000)]
    text = drawn(scanned(node(*many, cni_results=[cni_result("f" * 64, "", "10.0.0.0/8")], node=[])))
    assert len(text) < 2_500_000
    said = words(text)
    assert "3000 entries that are not plainly in use" in said
    assert "… and 2000 more: nodeleak scan -o json lists all." in said
    assert "All 3002 entries of kubenet" in said
    assert "… and 2002 more: nodeleak scan -o json lists all." in said


def test_before_the_first_round_there_is_a_friendly_word() -> None:
    assert "The first look is under way" in words(drawn(None))
    assert dict(page().headers(None, refreshing=True))["Refresh"] == "3"


# As it is served


def test_the_policy_knows_the_style_and_nothing_else() -> None:
    text = drawn(scanned(node()))
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    policy = dict(page().headers(None, refreshing=False))["Content-Security-Policy"]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def test_it_refreshes_itself_until_it_is_told_to_stand_still() -> None:
    report = scanned(node())
    assert dict(page().headers(report, refreshing=True))["Refresh"] == "30"
    assert "Refresh" not in dict(page().headers(report, refreshing=False))
    assert 'href="/?refresh=off">Stand still' in drawn(report)
    assert 'href="/">Refresh by itself' in drawn(report, refreshing=False)


def test_a_report_is_drawn_once() -> None:
    asked: list[str] = []

    def releases() -> tuple[tuple[timeline.Release, ...], tuple[str, ...]]:
        asked.append("asked")
        return (), ()

    one, report = Page(releases, LINKS), scanned(node())
    first = one.draw(report, alive=True, refreshing=True)
    assert one.draw(report, alive=True, refreshing=True) is first
    assert len(asked) == 1
    one.draw(report, alive=False, refreshing=True)
    one.draw(scanned(node()), alive=True, refreshing=True)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (90, "1m30s"), (600, "10m"), (7200, "2h"), (93600, "1d2h"), (-90, "-1m30s"),
     (86400 * 41, "41d")],
)  # fmt: skip
def test_spans_are_short(seconds: int, text: str) -> None:
    assert in_short(OLD / 7200 * seconds) == text
