"""A source becomes unavailable or returns nonsense: dependent states are unknown, and nothing is reported as leaked."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from .docker_without_containers import docker_without_containers
from .node import STORE, Cluster, Pods, eventually, moved_away, reservations, throughout
from .nodeleak import DROPPED, Daemon, Nodeleak

pytestmark = pytest.mark.e2e

_OF_ADDRESSES = {
    "leaked_reservation", "unreserved_pod_ip", "shared_ip", "unmanaged_address", "stuck_teardown", "exhausted_range",
}  # fmt: skip
QUICK = (
    "--interval=500ms",
    "--confirm-after=1s",
    "--grace=1s",
    "--docker-timeout=1s",
    "--stale-after=4s",
)


@pytest.fixture
def owners(pods: Pods) -> dict[str, str]:
    return pods(2)


@pytest.fixture
def leak(cluster: Cluster) -> str:
    """One leaked address that the daemon knows before a source fails."""
    (ip,) = cluster.reserve(1)
    return ip


@pytest.fixture
def daemon(nodeleak: Nodeleak, owners: dict[str, str], leak: str) -> Iterator[Daemon]:
    with nodeleak.running(*QUICK) as daemon:
        eventually(lambda: _knows(daemon, owners, leak))
        yield daemon


def test_when_docker_is_stopped_everything_is_unknown_until_it_is_back(
    cluster: Cluster, pods: Pods, daemon: Daemon, leak: str
) -> None:
    with cluster.stopped("docker"):
        # The kubelet may have torn down containers that the engine stopped.
        _stays_unavailable(daemon, "containers", reservations)
        assert leak in reservations()
        assert (
            daemon.metrics().get("findings", detector="leaked_reservation", phase="confirmed")
            is None
        )
    eventually(lambda: _knows(daemon, pods.running(), leak))
    _only_leak_ever_was(daemon, leak)


def test_when_docker_hangs_everything_is_unknown_until_it_answers(
    cluster: Cluster, daemon: Daemon, owners: dict[str, str], leak: str
) -> None:
    with cluster.frozen("docker"):
        _stays_unavailable(daemon, "containers", reservations)
    eventually(lambda: _knows(daemon, owners, leak))
    _only_leak_ever_was(daemon, leak)


def test_when_the_api_server_is_stopped_its_dependents_are_unknown_until_it_is_back(
    cluster: Cluster, daemon: Daemon, owners: dict[str, str], leak: str
) -> None:
    def only_docker_speaks() -> None:
        metrics, report = daemon.metrics(), daemon.report()
        assert (metrics.up("pods"), metrics.up("node"), metrics.up("containers")) == (0, 0, 1)
        assert report.states == dict.fromkeys(owners, "in_use") | {leak: "unknown"}
        assert metrics.get("findings", detector="leaked_reservation", phase="confirmed") is None

    with cluster.stopped("apiserver"):
        eventually(only_docker_speaks)
        throughout(only_docker_speaks, 3)
    eventually(lambda: _knows(daemon, owners, leak))
    assert daemon.metrics().total("watch_restarts_total")
    _only_leak_ever_was(daemon, leak)


def test_a_directory_that_is_missing_or_a_file_is_not_an_empty_directory(
    nodeleak: Nodeleak, daemon: Daemon, owners: dict[str, str], leak: str
) -> None:
    with moved_away(STORE):
        _stays_unavailable(daemon, "reservations", dict)
        metrics = daemon.metrics()
        assert not metrics.by("state", "reservations")
        # Detectors with other sources still work.
        assert not _OF_ADDRESSES & set(metrics.by("detector", "findings"))
    eventually(lambda: _knows(daemon, owners, leak))
    _only_leak_ever_was(daemon, leak)

    with moved_away(STORE), ExitStack() as later:
        STORE.touch()
        later.callback(STORE.unlink)
        scan = nodeleak.scan("--grace=0s", codes=[3])
    assert scan.unavailable == {"reservations"}
    assert (scan.states, scan.findings, scan.network["reserved"]) == ({}, [], None)


def test_an_unreadable_directory_is_not_an_empty_directory(
    nodeleak: Nodeleak, owners: dict[str, str], leak: str
) -> None:
    mode = STORE.stat().st_mode
    # Without capabilities, file modes apply to root; the kubelet is not affected.
    with nodeleak.running(*QUICK, wrapped=DROPPED) as daemon:
        eventually(lambda: _knows(daemon, owners, leak))
        STORE.chmod(0)
        try:
            _stays_unavailable(daemon, "reservations", dict)
        finally:
            STORE.chmod(mode)
        eventually(lambda: _knows(daemon, owners, leak))
        _only_leak_ever_was(daemon, leak)


def test_an_empty_docker_list_while_pods_run_releases_no_pod_address(
    nodeleak: Nodeleak, owners: dict[str, str], leak: str, tmp_path: Path
) -> None:
    with docker_without_containers(tmp_path / "docker.sock") as url:
        arguments = ("--grace=0s", f"--docker-host={url}")
        scan = nodeleak.scan(*arguments, codes=[3])
        assert scan.unavailable == {"containers"}
        assert (scan.states, scan.findings) == (dict.fromkeys([*owners, leak], "unknown"), [])

        with_checkpoints = nodeleak.scan(*arguments, "--api=off")
        assert with_checkpoints.states == dict.fromkeys(owners, "unmanaged") | {leak: "leaked"}
        without = nodeleak.scan(
            *arguments, "--api=off", f"--checkpoint-dir={tmp_path}"
        )  # an empty directory
        assert without.states == dict.fromkeys(owners, "unmanaged") | {leak: "leaked"}

        with nodeleak.running(*QUICK, f"--docker-host={url}") as daemon:
            _stays_unavailable(daemon, "containers", reservations)
            assert not daemon.events("finding.opened")


def _knows(daemon: Daemon, owners: dict[str, str], leak: str) -> None:
    report = daemon.report()
    assert report.states == dict.fromkeys(owners, "in_use") | {leak: "leaked"}
    assert report.unavailable == set()
    assert not [
        source for source, up in daemon.metrics().by("source", "source_up").items() if not up
    ]


def _stays_unavailable(daemon: Daemon, source: str, unknown: Callable[[], dict[str, str]]) -> None:
    """Only this source is unavailable, and in the same sync all reservations (`unknown`) are unknown."""

    def check() -> None:
        metrics, report = daemon.metrics(), daemon.report()
        assert (metrics.up(source), report.unavailable) == (0, {source})
        assert report.states == dict.fromkeys(unknown(), "unknown")
        assert _about_addresses(report.findings) == []

    def nothing_is_known() -> None:
        """The kubelet may release some of them in between."""
        report = daemon.report()
        assert set(report.states.values()) <= {"unknown"}
        assert _about_addresses(report.findings) == []
        assert report.unavailable == {source}

    eventually(check)
    throughout(nothing_is_known, 3)


def _about_addresses(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all but one that is true at some time of an outage: that the Node is not Ready."""
    return [finding for finding in findings if finding["detector"] != "waiting_pods"]


def _only_leak_ever_was(daemon: Daemon, leak: str) -> None:
    """The leak was found once, before the outage; nothing else was found, and no finding was closed."""
    assert daemon.process.poll() is None
    assert daemon.opened("leaked_reservation").keys() == {f"kubenet/{leak}"}
    opened = _about_addresses(daemon.events("finding.opened"))
    assert {line["detector"] for line in opened} == {"leaked_reservation"}
    assert _about_addresses(daemon.events("finding.closed")) == []
    assert daemon.metrics().leaks_confirmed == {"unknown": 1}
    assert len(daemon.events("agent.started")) == 1
