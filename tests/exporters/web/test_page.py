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

from agent.checks.registry import DETECTORS, Detector
from agent.cleanup.journal import RESERVATION, Entry, FileImage
from agent.exporters.advice import documented_advice
from agent.exporters.headline import Status, status_of
from agent.exporters.web.page import Page
from agent.exporters.web.runbooks import runbook
from agent.exporters.web.server import LINKS
from agent.model.finding import Gap, Severity
from agent.model.registration import DELETION_CANDIDATE, Taint
from agent.model.release import Verdict
from agent.model.report import Report
from agent.model.snapshot import Address, NetworkStore, NotRequested, Snapshot, Unavailable
from tests.builders import (
    GONE,
    INSTANCE,
    KVM,
    NOW,
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
from tests.deploy.monitoring import RUNBOOKS, alerts
from tests.exporters.cleanings import UNMANAGED, cleaning, refused, released
from tests.strategies import nodes

LOST = reservation("10.244.1.9")
EVIL = "<script>alert('x')</script>&\"<b onclick=x>"
RELEASED = Entry("e1", NOW, "run", GONE, "shop/cart", (FileImage(RESERVATION, "kubenet", "10.244.1.8", b"", 0o644, 0, 0, 7, 0),), Verdict.RELEASED)  # fmt: skip # noqa: E501


def page(*entries: Entry) -> Page:
    return Page(lambda: (entries, ()), LINKS, "0.1.0", "off")


def rendered(report: Report | None, *entries: Entry, alive: bool = True, refreshing: bool = True) -> str:
    return page(*entries).render(report, alive=alive, refreshing=refreshing).decode()


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
    text = rendered(scanned(node()))
    assert 'class="headline status-healthy"' in text
    shown = words(text)
    assert "nodeleak 0.1.0 on worker-1, cleanup: off" in shown
    assert "OK: no findings" in shown
    assert "kubenet: 251 of 253 addresses free." in shown
    assert "Last snapshot: 2026-03-26 20:00:00 UTC" in shown
    assert "Findings None." in shown


def test_informational_findings_are_no_problem() -> None:
    scaling_down = worker(Taint(DELETION_CANDIDATE), provider_id=INSTANCE)
    report = scanned(node(node=[scaling_down]))
    assert (len(report.findings), report.problems) == (1, ())
    text = rendered(report)
    assert 'class="headline status-healthy"' in text
    assert "OK: 1 informational finding" in words(text)
    with_a_leak = rendered(scanned(node(LOST, node=[scaling_down])))
    assert 'class="headline status-problem"' in with_a_leak
    assert "Warning: 1 leaked pod address on worker-1" in words(with_a_leak)


def test_a_leak_has_its_pod_its_age_and_what_to_do() -> None:
    text = rendered(scanned(node(LOST, cni_result(GONE, "shop/cart", "10.244.1.0/24"))))
    assert 'class="headline status-problem"' in text
    assert marks(text)["10.244.1.9"] == "leaked"
    assert "<title>10.244.1.9: leaked\nshop/cart\nreserved 2h ago\n" in text
    shown = words(text)
    assert "Warning: 1 leaked pod address on worker-1" in shown
    assert "10.244.1.9 is reserved for container 999999999999 of pod shop/cart, which no longer exists" in shown
    assert "Do: not urgent: 250 free addresses left" in shown
    assert "nodeleak explain leaked_reservation" in shown
    assert "Other addresses" in shown
    assert shown.index("Warning: leaked_reservation") < shown.index("Addresses in kubenet"), "findings come first"


def test_each_address_has_its_cell_and_color() -> None:
    found = marks(rendered(scanned(node(LOST, unrecognized("10.244.1.77", blocks=True)))))
    assert len(found) == 254
    assert {ip: mark for ip, mark in found.items() if mark != "free"} == {
        "10.244.1.1": "gateway",
        "10.244.1.2": "in_use",
        "10.244.1.3": "in_use",
        "10.244.1.9": "leaked",
        "10.244.1.77": "unrecognized",
    }


def test_a_large_range_is_drawn_in_blocks() -> None:
    snapshot = node(reservation("10.0.255.9"), cni_results=[cni_result("f" * 64, "", "10.0.0.0/16")], node=[])
    text = rendered(scanned(snapshot))
    assert text.count('<g class="m-') < 400
    assert "One cell per 256 addresses, marked by the most severe." in words(text)


def test_the_legend_counts_what_the_map_shows() -> None:
    shown = words(rendered(scanned(node(LOST))))
    for line in ("1 leaked", "2 in use", "1 gateway", "250 free"):
        assert line in shown


def test_unconfirmed_findings_are_marked() -> None:
    report = scanned(node(LOST))
    unconfirmed = replace(report, findings=tuple(replace(one, confirmed=False) for one in report.findings))
    shown = words(rendered(unconfirmed))
    assert status_of(unconfirmed) is Status.UNCONFIRMED
    assert "Unconfirmed: 1 leaked pod address on worker-1" in shown
    assert "(not confirmed yet)" in shown


def test_devices_have_their_delay() -> None:
    plugins = device_plugins(plugin_socket(), registered(KVM, "kvm0"))
    shown = words(rendered(scanned(node(device_plugins=plugins))))
    assert f"{KVM} 1 0 yes" in shown
    assert "kubevirt-kvm.sock" in shown


def test_unavailable_device_plugins_are_not_none() -> None:
    assert "Unavailable: device_plugins: it gave no word" in words(rendered(scanned(without(node(), "device_plugins"))))
    assert "This node has no device plugin." in words(rendered(scanned(node())))


def test_the_timeline_has_the_newest_first_and_the_releases() -> None:
    shown = words(rendered(scanned(node(LOST)), RELEASED))
    assert shown.index("10.244.1.8 of pod shop/cart was released by `run`, journal entry e1") < shown.index(
        "the node booted"
    )


def test_a_damaged_journal_is_reported() -> None:
    silent = Page(lambda: (Unavailable("journal", "it is damaged"), ("line 3",)), LINKS)
    shown = words(silent.render(scanned(node()), alive=True, refreshing=True).decode())
    assert "Events may be missing: journal: it is damaged" in shown
    assert "Events may be missing: journal: line 3" in shown


def test_a_long_timeline_is_cut_and_says_so() -> None:
    shown = words(rendered(scanned(node()), *(replace(RELEASED, name=f"e{n}") for n in range(100))))
    assert shown.count("was released by") == 60
    assert "44 older: nodeleak timeline" in shown


def test_the_last_cleanup_has_its_releases_and_refusals() -> None:
    report = replace(scanned(node(LOST)), cleaning=cleaning(released(), refused(UNMANAGED)))
    shown = words(rendered(report))
    assert "Cleanup in the last sync" in shown
    assert "10.244.1.9 shop/cart released" in shown
    assert f"refused {UNMANAGED.why}" in shown
    assert "Dry run" not in shown
    assert "Dry run" in words(rendered(replace(report, cleaning=cleaning(applied=False))))
    assert "Cleanup in the last sync" not in words(rendered(scanned(node())))


def test_halted_cleanup_is_a_problem_by_itself() -> None:
    report = replace(scanned(node()), cleaning=cleaning(halted="it was there again"))
    text = rendered(report)
    assert "status-problem" in text
    assert "Critical: cleanup halted: it was there again" in words(text)
    assert "Cleanup halted: it was there again." in words(text)


def test_every_detectors_advice_is_found() -> None:
    for detector in DETECTORS:
        assert len(documented_advice(detector.NAME)) > 20, detector.NAME


# Unavailable data


@pytest.mark.parametrize("source", ["reservations", "containers", "checkpoints", "pods", "device_plugins", "node"])
def test_with_an_unavailable_source_the_page_is_never_green(source: str) -> None:
    text = rendered(scanned(without(node(), source)))
    assert 'class="headline status-incomplete partly"' in text
    shown = words(text)
    assert "checks could not run: it gave no word" in shown
    assert f"Unavailable: {source}." in shown
    assert "Unavailable data" in shown
    assert "None in the data that could be read." in shown


def test_without_data_no_address_is_free() -> None:
    text = rendered(scanned(dark_node()))
    assert "m-free" not in text.partition("</style>")[2]
    shown = words(text)
    assert "The range of kubenet is unknown" in shown
    assert "kubenet: the number of free addresses is unknown." in shown


def test_a_network_that_is_not_in_use_has_its_reason_and_no_map() -> None:
    unused = NetworkStore("storage", NotRequested("reservations", "the pods use another"))
    text = rendered(scanned(replace(node(), reservations=(*node().reservations, unused))))
    assert "Network storage is not in use: the pods use another." in words(text)
    assert "storage: not in use." in words(text)
    assert "Addresses in storage" not in text
    assert set(marks(text).values()) == {"in_use", "gateway", "free"}


def test_unavailable_reservations_are_hatched_and_not_free() -> None:
    found = marks(rendered(scanned(without(node(), "reservations"))))
    assert set(found.values()) == {"unavailable", "gateway"}


def test_without_containers_reservations_are_unknown() -> None:
    found = marks(rendered(scanned(without(node(LOST), "containers"))))
    assert {found[ip] for ip in ("10.244.1.2", "10.244.1.3", "10.244.1.9")} == {"unknown"}


def test_a_problem_with_unavailable_data_says_both() -> None:
    partial = without(node(LOST), "device_plugins")
    text = rendered(scanned(partial))
    assert 'class="headline status-problem partly"' in text
    assert "of 16 checks could not run: it gave no word." in words(text)


def test_a_failed_detector_is_not_green() -> None:
    text = rendered(replace(scanned(node()), gaps=(Gap("shared_ip", "ZeroDivisionError", broken=True),)))
    assert "status-incomplete partly" in text
    assert "Failed checks: shared_ip." in words(text)


def test_a_stalled_agent_says_that_its_data_is_old() -> None:
    text = rendered(scanned(node()), alive=False)
    assert "status-incomplete partly" in text
    assert (
        "the nodeleak agent is up but has stopped scanning No sync has finished for too long: this page shows old data."
        in words(text)
    )


def test_the_node_name_is_escaped() -> None:
    # Without the API server a node has the host's own name, which need not be text.
    text = rendered(scanned(replace(node(), node_name="worker\udcff\x1b[31m")))
    assert r"nodeleak 0.1.0 on worker\udcff\x1b[31m" in words(text)


def test_a_disabled_api_server_is_reported_and_no_fault() -> None:
    text = rendered(scanned(without_api(node())))
    assert "status-healthy" in text
    assert "Checked without the API server (--api=off)" in words(text)


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
def test_the_page_is_valid_and_has_no_foreign_resources(report: Report | None, refreshing: bool) -> None:
    # A runbook is a link, which loads nothing until somebody follows it.
    linked = r'<a href="https://[^"]+/docs/runbooks/\w+\.md" rel="noreferrer">'
    text = re.sub(linked, "<a>", rendered(report, refreshing=refreshing))
    tree = parsed(text)
    tags = {element.tag for element in tree.iter()}
    assert not tags & {"script", "iframe", "img", "form", "object", "embed", "base"}
    for element in tree.iter():
        for name, value in element.attrib.items():
            assert not name.startswith("on"), element.tag
            assert name != "style", "the policy would pass it over"
            if name in {"href", "src"}:
                assert value.startswith(("/", "#", "data:image/svg+xml,")) and not value.startswith("//"), value  # noqa: PT018
    assert "//" not in text.replace("http://www.w3.org/2000/svg", "").replace("unix:///", "")
    assert "@import" not in text
    assert not re.findall(r"url\((?!#hatch\))", text)


def test_each_finding_has_a_link_to_its_runbook() -> None:
    tree = parsed(rendered(scanned(node(LOST))))
    (link,) = [one.attrib["href"] for one in tree.iter("a") if "".join(one.itertext()) == "Runbook"]
    assert link == "https://github.com/nodeleak/nodeleak/blob/main/docs/runbooks/NodeleakLeakedAddresses.md"


@pytest.mark.parametrize("detector", DETECTORS)
def test_every_detector_with_an_alert_has_a_runbook(detector: Detector) -> None:
    for severity in detector.SEVERITIES:
        name = runbook(detector.NAME, severity).rpartition("/")[2]
        assert bool(name) == (detector.NAME != "left_over_network")
        assert not name or (RUNBOOKS / name).is_file()
    alerts_of_it = {rule.alert for rule in alerts() if f'detector="{detector.NAME}"' in rule.expr}
    assert alerts_of_it <= {runbook(detector.NAME, one).rpartition("/")[2].removesuffix(".md") for one in Severity}


def test_a_critical_range_has_the_runbook_of_an_exhausted_one() -> None:
    assert runbook("exhausted_range", Severity.CRITICAL).endswith("/NodeleakRangeExhausted.md")


def test_foreign_names_are_only_text() -> None:
    text = rendered(scanned(strange_node()))
    assert EVIL not in text
    assert "<script" not in text
    shown = words(text)
    assert shown.count(EVIL) >= 4, "in the tables, the findings, the devices and the timeline"
    assert "\x1b" not in text


def test_ids_are_unique_and_labels_lead_to_them() -> None:
    tree = parsed(rendered(scanned(node(LOST, reservation("10.9.0.2", "5" * 64, network="storage")))))
    ids = [element.attrib["id"] for element in tree.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    links = [element.attrib["href"] for element in tree.iter("a")]
    assert "#timeline" in links
    assert {link[1:] for link in links if link.startswith("#")} <= set(ids)
    assert {element.attrib["aria-labelledby"] for element in tree.iter() if "aria-labelledby" in element.attrib} <= {
        *ids
    }


def test_the_page_is_bounded() -> None:
    many = [reservation(f"10.{n >> 8 & 255}.{n & 255}.9", f"{n:064x}") for n in range(3000)]
    text = rendered(scanned(node(*many, cni_results=[cni_result("f" * 64, "", "10.0.0.0/8")], node=[])))
    assert len(text) < 2_500_000
    shown = words(text)
    assert "Other addresses: 3000" in shown
    assert "… and 2000 more: nodeleak scan -o json lists all." in shown
    assert "All 3002 entries of kubenet" in shown
    assert "… and 2002 more: nodeleak scan -o json lists all." in shown


def test_before_the_first_sync_the_page_says_so() -> None:
    assert "Waiting for the first snapshot" in words(rendered(None))
    assert dict(page().headers(None, refreshing=True))["Refresh"] == "3"


# As it is served


def test_the_policy_allows_the_style_and_nothing_else() -> None:
    text = rendered(scanned(node()))
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    policy = dict(page().headers(None, refreshing=False))["Content-Security-Policy"]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{b64encode(sha256(style.encode()).digest()).decode()}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def test_it_refreshes_until_paused() -> None:
    report = scanned(node())
    assert dict(page().headers(report, refreshing=True))["Refresh"] == "30"
    assert "Refresh" not in dict(page().headers(report, refreshing=False))
    assert 'href="/?refresh=off">Pause' in rendered(report)
    assert 'href="/">Refresh every 30 s' in rendered(report, refreshing=False)
