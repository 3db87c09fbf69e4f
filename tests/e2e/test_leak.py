"""The known leak: the kubelet is stopped, `docker rm -f` takes every pod container, the kubelet starts."""

import json

import pytest

from .agent import NODELEAK, Daemon, Nodeleak
from .node import Cluster, Pods, eventually, run

pytestmark = pytest.mark.e2e


def test_a_leak_is_a_candidate_then_leaked_in_every_output(cluster: Cluster, pods: Pods, nodeleak: Nodeleak) -> None:
    old = pods(3)
    with nodeleak.running("--interval=1s", "--confirm-after=8s", "--grace=1s") as daemon:
        eventually(lambda: _says(daemon, dict.fromkeys(old, "in_use")))

        cluster.leak()
        new = pods.running()
        assert not old.keys() & new.keys()

        eventually(lambda: _says(daemon, dict.fromkeys(old, "candidate") | dict.fromkeys(new, "in_use")), 8)
        assert not daemon.metrics().leaks_confirmed
        eventually(lambda: _says(daemon, dict.fromkeys(old, "leaked") | dict.fromkeys(new, "in_use")), 20)

        report, metrics = daemon.report(), daemon.metrics()
        scan = nodeleak.scan("--grace=1s", "--exit-code", codes=[1])
        opened = daemon.opened("leaked_reservation")
        asking = ("env", f"NODELEAK_LISTEN=127.0.0.1:{daemon.port}")
        named = nodeleak.scan("--grace=1s", wrapped=asking)
        status = json.loads(run(*asking, NODELEAK, "status", "-o", "json").stdout)

    found = report.subjects("leaked_reservation")
    assert found.keys() == {f"kubenet/{ip}" for ip in old}
    assert {one["pod"] for one in found.values()} == set(old.values())
    assert {one["cause"] for one in found.values()} == {"kubelet_restart"}
    assert report.pods == old | new
    # A scan after the leak finds no pod names: kubenet passes none to libcni. The daemon remembers them.
    assert scan.verdicts == named.verdicts == report.verdicts
    assert {scan.pods[ip] for ip in old} == {None}
    assert named.pods == report.pods
    assert (status["state"], status["networks"][0]["leaked"]) == ("findings", len(old))
    assert [(one["detector"], one["count"]) for one in status["findings"]] == [("leaked_reservation", len(old))]
    assert {one["since"] for one in scan.findings} == {one["since"] for one in found.values()}

    assert opened.keys() == found.keys()
    assert {subject: (line["pod"], line["cause"]) for subject, line in opened.items()} == {
        subject: (one["pod"], one["cause"]) for subject, one in found.items()
    }

    assert metrics.by("state", "reservations") == report.network["states"]
    assert metrics.get("range_free_addresses", network="kubenet") == report.network["free"]
    assert metrics.get("findings", detector="leaked_reservation", severity="warning", phase="confirmed") == len(old)
    assert metrics.get("findings", detector="leaked_reservation", severity="warning", phase="candidate") is None
    assert metrics.leaks_confirmed == {"kubelet_restart": len(old)}
    assert run("promtool", "check", "metrics", text=metrics.text).stderr == ""


def test_only_reservations_older_than_the_grace_period_are_leaked(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    old = pods(2)
    cluster.leak()
    new = pods.running()

    patient, hasty = nodeleak.scan("--grace=1h", "--exit-code"), nodeleak.scan("--grace=0s")

    assert patient.states == dict.fromkeys(old, "candidate") | dict.fromkeys(new, "in_use")
    assert hasty.states == dict.fromkeys(old, "leaked") | dict.fromkeys(new, "in_use")


def _says(daemon: Daemon, states: dict[str, str]) -> None:
    assert daemon.report().states == states
