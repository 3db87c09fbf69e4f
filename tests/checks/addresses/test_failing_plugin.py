"""A plugin that fails: each retry of a pod takes another address."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.cleanup.guards import decide
from agent.exporters.text.scan import scan_table
from agent.model.release import Limits, Reason
from agent.model.snapshot import Known, NetworkStore, NotRequested, Snapshot
from agent.sources.kube.errors import ApiError
from agent.sources.kube.sandbox_failures import SandboxFailuresSource
from tests import builders as b
from tests.builders import (
    NOW,
    WORKER,
    findings_of,
    node,
    processes,
    reservation,
    scanned,
    waiting_pod,
    with_waiting_pod,
)
from tests.cleanup.leaks import SECOND, leaks
from tests.sources.kube.connections import inquirer

FAILING, UNEXPLAINED = "failing_plugin", "unexplained_exhaustion"
MINUTE = timedelta(minutes=1)
IPTABLES = 'plugin type="portmap" failed (add): exec: "iptables": not found'
FULL = (
    'failed to setup network for sandbox "4f": plugin type="bridge" failed (add): failed to allocate for range 0: '
    "no IP addresses available in range set: {}"
)


class Server:
    def __init__(self, answer: bytes | Exception) -> None:
        self.answer, self.asked = answer, list[tuple[str, Any]]()
        self.seconds = 0.0
        self.source = SandboxFailuresSource(inquirer(self.get), lambda: self.seconds)

    def get(self, path: str, query: Any = ()) -> bytes:
        self.asked.append((path, dict(query)["fieldSelector"]))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def failures(*events: tuple[str, timedelta]) -> Any:
    """Return what the API server says of a waiting pod: messages, and how long ago they were sent."""
    items = [{"message": message, "eventTime": (NOW - ago).isoformat()} for message, ago in events]
    return Server(json.dumps({"items": items}).encode()).source.read(node(waiting_pod("shop/web")))


def saying(snapshot: Snapshot, message: str, ago: timedelta = MINUTE) -> Snapshot:
    return replace(snapshot, sandbox_failures=Known(failures((message, ago))))


def treadmill(count: int = 12, age: timedelta = 8 * MINUTE, **more: Any) -> Snapshot:
    return with_waiting_pod(node(*leaks(count, age), **more))


def message(detector: str, snapshot: Snapshot) -> str:
    return b.the_finding(detector, snapshot).message


def refused(snapshot: Snapshot, limits: Limits | None = None) -> set[Reason]:
    return {
        refusal.reason
        for _, refusals in decide(b.guard_context(snapshot, limits=limits))
        for refusal in refusals
    }


def test_it_says_the_rate_and_with_events_the_plugin_and_its_message() -> None:
    assert message(FAILING, treadmill()) == (
        "kubenet: a CNI plugin fails in ADD and DEL; 12 addresses leaked since 2026-03-26 19:52:01Z, 2 a minute: "
        "repair the plugin first, then release"
    )
    named = message(FAILING, saying(treadmill(), IPTABLES))
    assert 'plugin portmap fails in ADD: exec: "iptables": not found' in named
    of_another_network = IPTABLES.replace('"portmap"', '"portmap" name="other"')
    assert "portmap" not in message(FAILING, saying(treadmill(), of_another_network))


def test_other_leaks_are_no_failing_plugin() -> None:
    completed = [
        b.cni_result(leak.container_id, "shop/gone", "10.244.1.0/24") for leak in leaks(12)
    ]
    for why, snapshot in {
        "few": treadmill(4),
        "old": treadmill(age=timedelta(hours=1)),
        "before the runtime's start": treadmill(processes=[processes(docker=7 * MINUTE)]),
        "ADD was completed": treadmill(cni_results=completed),
        "start not known": treadmill(processes=[processes(docker=None)]),
        "no pod waits": node(*leaks(12, 8 * MINUTE)),
    }.items():
        assert findings_of(FAILING, snapshot) == [], why
    assert b.gap_of(FAILING, b.without(treadmill(), "processes"))


def test_the_daemon_releases_nothing_and_a_person_may() -> None:
    daemon = b.make_limits(unattended=True)
    assert Reason.PLUGIN_FAILING in refused(treadmill(), daemon)
    assert Reason.PLUGIN_FAILING not in refused(treadmill())
    repaired = treadmill(age=timedelta(hours=1))
    assert refused(repaired, replace(daemon, release_host_ports=True)) == set()
    # A full range keeps it waiting as well.
    for last, waits in ((14, True), (13, False)):
        taken = [
            reservation(f"10.244.1.{n}", f"{n:064x}", age=100 * MINUTE - n * SECOND)
            for n in range(4, last + 1)
        ]
        snapshot = with_waiting_pod(
            node(*taken, node=[replace(WORKER, pod_cidrs=("10.244.1.0/28",))])
        )
        assert (Reason.PLUGIN_FAILING in refused(snapshot, daemon)) is waits
        assert bool(findings_of(FAILING, snapshot)) is waits
    # The advice about leaks begins with the plugin.
    repair = "Repair the CNI plugin that fails first"
    assert repair in " ".join(scan_table(scanned(treadmill())).split())
    assert repair not in " ".join(scan_table(scanned(node(reservation("10.244.1.99")))).split())


def test_the_words_of_each_runtime_are_parsed() -> None:
    containerd = 'rpc error: code = Unknown desc = failed to setup network for sandbox "4f": '
    crio = 'failed to create pod network sandbox k8s_a_b_c_0(4f): error adding pod b_a to CNI network "crio": '
    no_sbr, no_portmap = (
        f'failed to find plugin "{name}" in path [/opt/cni/bin /a]' for name in ("sbr", "portmap")
    )
    multus = 'plugin type="multus" name="m" failed (add): [default/s0/919b:storage]: error adding container to network '
    for text, expected in (
        (
            f'{containerd}plugin type="portmap" failed (add): no: iptables',
            ("portmap", "", "add", "no: iptables"),
        ),
        (f'{crio}plugin type="x" name="y" failed (add): boom', ("x", "y", "add", "boom")),
        (f'{crio}plugin type="sbr" failed (add): {no_sbr}', ("sbr", "crio", "add", no_sbr)),
        (
            f'networkPlugin cni failed to set up pod "web_shop" network: {no_portmap}',
            ("portmap", "", "", no_portmap),
        ),
        (
            f'{multus}"storage": plugin type="sbr" failed (add): {no_sbr}',
            ("sbr", "storage", "add", no_sbr),
        ),
        (
            'plugin type="multus-shim" name="m" failed (add): CmdAdd (shim): timeout',
            ("multus-shim", "m", "add", "CmdAdd (shim): timeout"),
        ),
        ("anything\x1b[31m", ("", "", "", "anything\\x1b[31m")),
        ("<html>\n  <body>", ("", "", "", "<html> <body>")),
        ("x" * 400, ("", "", "", "x" * 297 + "...")),
    ):
        (failure,) = failures((text, 0 * MINUTE))
        assert (failure.plugin, failure.network, failure.operation, failure.message) == expected
        assert (failure.pod, failure.at) == ("shop/web", NOW)


def test_pods_that_find_the_range_full_contradict_an_ok() -> None:
    elsewhere = FULL.format("10.9.0.1-10.9.0.254")
    unknown = "range set 10.9.0.1-10.9.0.254, and no network that was checked has this range"
    assert unknown in message(UNEXPLAINED, saying(node(), elsewhere))
    assert "but kubenet has" in message(
        UNEXPLAINED, saying(node(), FULL.format("10.244.1.2-10.244.1.254"))
    )
    assert findings_of(UNEXPLAINED, saying(node(), elsewhere, 9 * MINUTE)) == []
    assert findings_of(FAILING, saying(node(), elsewhere)) == []
    # No network is in use.
    unused = NetworkStore(
        "kubenet", NotRequested("reservations", "network kubenet uses calico-ipam")
    )
    assert unknown in message(
        UNEXPLAINED, replace(saying(node(), elsewhere), reservations=(unused,))
    )
    # A full network explains no exhaustion of another range.
    taken = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(4, 15)]
    full = node(*taken, node=[replace(WORKER, pod_cidrs=("10.244.1.0/28",))])
    assert findings_of(UNEXPLAINED, saying(full, FULL.format("10.244.1.1-10.244.1.14"))) == []
    assert unknown in message(UNEXPLAINED, saying(full, elsewhere))
    # A full range does not hide what filled it.
    first, last = failures(
        (IPTABLES, 10 * MINUTE), (FULL.format("10.244.1.2-10.244.1.254"), MINUTE)
    )
    assert (first.plugin, last.exhausted) == ("portmap", "10.244.1.2-10.244.1.254")
    snapshot = replace(treadmill(), sandbox_failures=Known((first, last)))
    assert "plugin portmap fails" in message(FAILING, snapshot)


def test_events_of_waiting_pods_are_listed_once_a_minute() -> None:
    server = Server(
        b'{"items": [{"message": "old"}, {"message": "new", "eventTime": "2026-03-26T20:00:00Z"}]}'
    )
    pods = [waiting_pod(f"shop/web-{n}", uid=f"uid-{n}") for n in range(9)]
    waiting = node(*pods)
    listed = server.source.read(waiting)
    assert not isinstance(listed, NotRequested)
    assert {failure.message for failure in listed} == {"new"}
    assert len(server.asked) == 4
    assert server.asked[0] == (
        "/api/v1/namespaces/shop/events", f"involvedObject.uid={pods[0].uid},reason=FailedCreatePodSandBox"
    )  # fmt: skip
    server.source.read(node(*pods[3:]))
    assert len(server.asked) == 4
    server.seconds = 61.0
    server.source.read(waiting)
    assert len(server.asked) == 8
    # Without the right, they are not requested.
    assert isinstance(
        Server(ApiError(403, "forbidden")).source.read(node(waiting_pod("shop/web"))), NotRequested
    )
