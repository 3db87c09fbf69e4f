"""A plugin that fails: each retry of a pod takes another address."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from agent.checks.addresses import failing_plugin, unexplained_exhaustion
from agent.cleanup.guards import decide
from agent.exporters.advice import advice
from agent.model.release import Reason
from agent.model.snapshot import Known, NetworkStore, NotRequested, SandboxFailure, Snapshot
from agent.sources.kube.client import ApiError
from agent.sources.kube.sandbox_failures import SandboxFailuresSource, read_failure
from tests.builders import (
    NOW,
    WORKER,
    cni_result,
    findings_of,
    guard_context,
    make_limits,
    node,
    pod,
    processes,
    reservation,
    scanned,
    with_waiting_pod,
)
from tests.cleanup.leaks import SECOND, leaks
from tests.sources.kube.connections import inquirer

MINUTE = timedelta(minutes=1)
DAEMON = make_limits(unattended=True)
IPTABLES = SandboxFailure("shop/web", NOW, 'exec: "iptables": not found', "portmap", "", "add")


def treadmill(count: int = 12, age: timedelta = 8 * MINUTE, **more: Any) -> Snapshot:
    return with_waiting_pod(node(*leaks(count, age), **more))


def saying(snapshot: Snapshot, *failures: SandboxFailure) -> Snapshot:
    return replace(snapshot, sandbox_failures=Known(failures))


def test_it_says_the_rate_and_without_events_that_a_plugin_fails() -> None:
    (finding,) = findings_of(failing_plugin, treadmill())
    assert finding.message == (
        "kubenet: a CNI plugin fails in ADD and DEL; 12 addresses leaked since 2026-03-26 19:52:01Z, 2 a minute: "
        "mend the plugin first, then release"
    )


def test_with_events_it_names_the_plugin_and_its_message() -> None:
    (finding,) = findings_of(failing_plugin, saying(treadmill(), IPTABLES))
    assert 'plugin portmap fails in ADD: exec: "iptables": not found' in finding.message
    (finding,) = findings_of(failing_plugin, saying(treadmill(), replace(IPTABLES, network="other")))
    assert "portmap" not in finding.message


def test_other_leaks_are_no_failing_plugin() -> None:
    completed = [cni_result(f"{n:064x}", "shop/gone", "10.244.1.0/24") for n in range(1, 13)]
    for why, snapshot in {
        "few": treadmill(4),
        "old": treadmill(age=timedelta(hours=1)),
        "before the runtime's start": treadmill(processes=[processes(docker=7 * MINUTE)]),
        "ADD was completed": treadmill(cni_results=completed),
        "start not known": treadmill(processes=[processes(docker=None)]),
        "no pod waits": node(*leaks(12, 8 * MINUTE)),
    }.items():
        assert findings_of(failing_plugin, snapshot) == [], why


def test_the_daemon_releases_nothing_and_a_person_may() -> None:
    unattended = guard_context(treadmill(), limits=DAEMON)
    refused = {refusal.reason for _, refusals in decide(unattended) for refusal in refusals}
    assert Reason.PLUGIN_FAILING in refused
    by_hand = {refusal.reason for _, refusals in decide(guard_context(treadmill())) for refusal in refusals}
    assert Reason.PLUGIN_FAILING not in by_hand
    mended = guard_context(treadmill(age=timedelta(hours=1)), limits=replace(DAEMON, release_host_ports=True))
    assert not any(refusals for _, refusals in decide(mended))


@pytest.mark.parametrize("held", [True, False], ids=["the range is full", "an address is free"])
def test_a_full_range_keeps_the_daemon_waiting(held: bool) -> None:
    last = 14 if held else 13
    taken = [reservation(f"10.244.1.{n}", f"{n:064x}", age=100 * MINUTE - n * SECOND) for n in range(4, last + 1)]
    snapshot = with_waiting_pod(node(*taken, node=[replace(WORKER, pod_cidrs=("10.244.1.0/28",))]))
    unattended = guard_context(snapshot, limits=DAEMON)
    refused = {refusal.reason for _, refusals in decide(unattended) for refusal in refusals}
    assert (Reason.PLUGIN_FAILING in refused) == held
    assert bool(findings_of(failing_plugin, snapshot)) == held


def test_the_advice_about_leaks_begins_with_the_plugin() -> None:
    report = scanned(treadmill())
    assert advice("leaked_reservation", report)[0].text.startswith("Mend the CNI plugin that fails first")
    assert "Mend" not in advice("leaked_reservation", scanned(node(reservation("10.244.1.99"))))[0].text


@pytest.mark.parametrize(
    ("message", "plugin", "network", "operation", "words"),
    [
        (
            ("Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "
            '"4f": plugin type="portmap" failed (add): failed to open iptables: not found'),
            "portmap", "", "add", "failed to open iptables: not found",
        ),
        (
            ("Failed to create pod sandbox: rpc error: code = Unknown desc = failed to create pod network sandbox "
            'k8s_a_b_c_0(4f): error adding pod b_a to CNI network "crio": plugin type="x" name="y" failed (add): boom'),
            "x", "y", "add", "boom",
        ),
        (
            ('failed to create pod network sandbox k8s_a(4f): error adding pod b_a to CNI network "crio": plugin '
            'type="missing" failed (add): failed to find plugin "missing" in path [/opt/cni/bin]'),
            "missing", "crio", "add", 'failed to find plugin "missing" in path [/opt/cni/bin]',
        ),
        (
            'networkPlugin cni failed to set up pod "web_shop" network: failed to find plugin "portmap" in path [/a]',
            "portmap", "", "", 'failed to find plugin "portmap" in path [/a]',
        ),
        (
            ('failed to setup network for sandbox "7a": plugin type="multus" name="multus-cni-network" failed (add): '
            '[default/s0/919b:storage]: error adding container to network "storage": plugin type="sbr" failed (add): '
            'failed to find plugin "sbr" in path [/opt/cni/bin /opt/cni/bin]'),
            "sbr", "storage", "add", 'failed to find plugin "sbr" in path [/opt/cni/bin /opt/cni/bin]',
        ),
        (
            'plugin type="multus-shim" name="m" failed (add): CmdAdd (shim): timeout',
            "multus-shim", "m", "add", "CmdAdd (shim): timeout",
        ),
        ("anything\x1b[31m", "", "", "", "anything\\x1b[31m"),
    ],
)  # fmt: skip
def test_the_words_of_each_runtime_are_parsed(
    message: str, plugin: str, network: str, operation: str, words: str
) -> None:
    failure = read_failure("shop/web", {"message": message, "lastTimestamp": "2026-03-26T20:00:00Z"})
    assert failure == SandboxFailure("shop/web", NOW, words, plugin, network, operation)


FULL = (
    'failed to setup network for sandbox "4f": plugin type="bridge" failed (add): failed to allocate for range 0: '
    "no IP addresses available in range set: {}"
)


def waits(ranges: str, minutes: int = 1) -> SandboxFailure:
    at = (NOW - minutes * MINUTE).isoformat()
    return read_failure("shop/web", {"message": FULL.format(ranges), "eventTime": at})


def test_pods_that_find_the_range_full_contradict_an_ok() -> None:
    (finding,) = findings_of(unexplained_exhaustion, saying(node(), waits("10.9.0.1-10.9.0.254")))
    assert "range set 10.9.0.1-10.9.0.254, and no network that was checked has this range" in finding.message
    (finding,) = findings_of(unexplained_exhaustion, saying(node(), waits("10.244.1.2-10.244.1.254")))
    assert "but kubenet has" in finding.message
    assert findings_of(unexplained_exhaustion, saying(node(), waits("10.9.0.1-10.9.0.254", 9))) == []
    assert findings_of(failing_plugin, saying(node(), waits("10.9.0.1-10.9.0.254"))) == []


def test_pods_that_find_the_range_full_contradict_an_ok_where_no_network_is_in_use() -> None:
    unused = NetworkStore("kubenet", NotRequested("reservations", "network kubenet uses calico-ipam"))
    snapshot = replace(saying(node(), waits("10.9.0.1-10.9.0.254")), reservations=(unused,))
    (finding,) = findings_of(unexplained_exhaustion, snapshot)
    assert "and no network that was checked has this range" in finding.message


def test_a_full_network_explains_no_exhaustion_of_another_range() -> None:
    taken = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(4, 15)]
    full = node(*taken, node=[replace(WORKER, pod_cidrs=("10.244.1.0/28",))])
    assert findings_of(unexplained_exhaustion, saying(full, waits("10.244.1.1-10.244.1.14"))) == []
    (finding,) = findings_of(unexplained_exhaustion, saying(full, waits("10.9.0.1-10.9.0.254")))
    assert "and no network that was checked has this range" in finding.message


class Server:
    def __init__(self, answer: bytes | Exception) -> None:
        self.answer, self.asked = answer, list[tuple[str, Any]]()

    def get(self, path: str, query: Any = ()) -> bytes:
        self.asked.append((path, dict(query)["fieldSelector"]))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self) -> None: ...


def test_events_of_waiting_pods_are_listed_once_a_minute() -> None:
    server, now = (
        Server(b'{"items": [{"message": "old"}, {"message": "new", "eventTime": "2026-03-26T20:00:00Z"}]}'),
        [0.0],
    )
    source = SandboxFailuresSource(inquirer(server.get), lambda: now[0])
    pods = [pod(f"shop/web-{n}") for n in range(9)]
    failures = source.read(pods)
    assert not isinstance(failures, NotRequested)
    assert {failure.message for failure in failures} == {"new"}
    assert len(server.asked) == 4
    assert server.asked[0] == (
        "/api/v1/namespaces/shop/events", f"involvedObject.uid={pods[0].uid},reason=FailedCreatePodSandBox"
    )  # fmt: skip
    source.read(pods[3:])
    assert len(server.asked) == 4
    now[0] = 61.0
    source.read(pods)
    assert len(server.asked) == 8


def test_a_full_range_does_not_hide_what_filled_it() -> None:
    broken = {"message": 'plugin type="portmap" failed (add): no iptables', "eventTime": "2026-03-26T19:50:00Z"}
    full = {"message": FULL.format("10.244.1.2-10.244.1.254"), "eventTime": "2026-03-26T19:59:00Z"}
    server = Server(json.dumps({"items": [broken, full]}).encode())
    source = SandboxFailuresSource(inquirer(server.get), lambda: 0.0)
    failures = source.read([pod("shop/web")])
    assert not isinstance(failures, NotRequested)
    first, last = failures
    assert (first.plugin, last.exhausted) == ("portmap", "10.244.1.2-10.244.1.254")
    (finding,) = findings_of(failing_plugin, saying(treadmill(), first, last))
    assert "plugin portmap fails" in finding.message


def test_without_the_right_events_are_not_requested() -> None:
    source = SandboxFailuresSource(inquirer(Server(ApiError(403, "forbidden")).get), lambda: 0.0)
    assert isinstance(source.read([pod("shop/web")]), NotRequested)
