"""The known leak: the kubelet is stopped, `docker rm -f` takes every pod container, the kubelet starts."""

import json
from collections.abc import Mapping

import pytest

from .node import Cluster, Pods, eventually, run
from .nodeleak import NODELEAK, Nodeleak, Report

pytestmark = pytest.mark.e2e


def test_a_leak_is_a_candidate_then_leaked_in_every_output(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    old = pods(3)
    options = ("--interval=1s", "--grace=1s")
    with (
        nodeleak.running(*options, "--confirm-after=1h") as slow,
        nodeleak.running(*options, "--confirm-after=8s") as daemon,
    ):
        eventually(lambda: slow.report().states, equal=dict.fromkeys(old, "in_use"))
        eventually(lambda: daemon.report().states, equal=dict.fromkeys(old, "in_use"))

        cluster.leak()
        new = pods.running()
        assert not old.keys() & new.keys()
        in_use = dict.fromkeys(new, "in_use")
        eventually(lambda: slow.report().states, equal=dict.fromkeys(old, "candidate") | in_use)
        assert not slow.metrics().leaks_confirmed
        eventually(lambda: daemon.report().states, equal=dict.fromkeys(old, "leaked") | in_use)

        report, metrics = daemon.report(), daemon.metrics()

        def scanned(*wrapped: str) -> Report:
            """The API server may list the pods as they were a moment ago."""
            scan = nodeleak.scan("--grace=1s", "--exit-code", codes=[1], wrapped=wrapped)
            assert scan.verdicts == report.verdicts
            return scan

        scan = eventually(scanned)
        opened = daemon.opened("leaked_reservation")
        asking = ("env", f"NODELEAK_LISTEN=127.0.0.1:{daemon.port}")
        named = eventually(lambda: scanned(*asking))
        status = json.loads(run(*asking, NODELEAK, "status", "-o", "json").stdout)

    found = report.subjects("leaked_reservation")
    assert found.keys() == {f"kubenet/{ip}" for ip in old}
    assert {finding["pod"] for finding in found.values()} == set(old.values())
    assert {finding["cause"] for finding in found.values()} == {"kubelet_restart"}
    assert report.pods == old | new
    # A scan after the leak finds no pod names: kubenet passes none to libcni. The daemon remembers them.
    assert {scan.pods[ip] for ip in old} == {None}
    assert named.pods == report.pods
    assert (status["state"], status["networks"][0]["leaked"]) == ("findings", len(old))
    assert [(entry["detector"], entry["count"]) for entry in status["findings"]] == [
        ("leaked_reservation", len(old))
    ]
    assert {finding["since"] for finding in scan.findings} == {
        finding["since"] for finding in found.values()
    }
    assert opened.keys() == found.keys()
    for subject, line in opened.items():
        assert (line["pod"], line["cause"]) == (found[subject]["pod"], found[subject]["cause"])

    # A state without a reservation has a series only if an alert compares it.
    assert _positive(metrics.by("state", "reservations")) == _positive(report.network["states"])
    assert metrics.get("range_free_addresses", network="kubenet") == report.network["free"]
    counted = {"detector": "leaked_reservation", "severity": "warning"}
    assert metrics.get("findings", **counted, phase="confirmed") == len(old)
    assert metrics.get("findings", **counted, phase="candidate") is None
    assert metrics.leaks_confirmed == {"kubelet_restart": len(old)}
    assert run("promtool", "check", "metrics", text=metrics.text).stderr == ""


def _positive(counts: Mapping[str, float]) -> dict[str, float]:
    return {name: count for name, count in counts.items() if count}
