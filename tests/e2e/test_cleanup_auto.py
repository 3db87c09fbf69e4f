"""`nodeleak run --cleanup=...` on a real node: modes, budget, halting, and concurrent cleaners."""

import json
import shutil
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from .node import (
    BRIDGE_PORTS,
    CHECKPOINTS,
    CNI_CACHE,
    STORE,
    Cluster,
    Pods,
    eventually,
    reservations,
    run,
    traces,
)
from .nodeleak import BOLD, Daemon, Nodeleak

pytestmark = pytest.mark.e2e

QUICK = ("--interval=1s", "--confirm-after=0s", "--grace=0s")
AUTO = ("--cleanup=auto", *QUICK, "--settle=0s")


def test_off_reports_nothing_dry_run_reports_releases_and_auto_obeys_its_limits(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    old = pods(3)
    cluster.leak()
    new = pods.running()
    # The kernel ends the namespaces of killed pods later. An address that answers a probe until
    # then is left alone for minutes.
    eventually(lambda: len([*BRIDGE_PORTS.iterdir()]), equal=len(new))
    before = traces(STORE, CNI_CACHE)

    with ExitStack() as processes:
        off = processes.enter_context(nodeleak.running(*QUICK, "--settle=0s"))
        trying = processes.enter_context(
            nodeleak.running("--cleanup=dry-run", *QUICK, "--settle=0s")
        )
        settling = processes.enter_context(nodeleak.running("--cleanup=auto", *QUICK))
        eventually(
            lambda: _logged(off, "finding.opened", "subject"),
            equal=Counter(f"kubenet/{ip}" for ip in old),
        )
        eventually(lambda: _logged(trying, "release.dry_run"), equal=Counter([*old]))
        eventually(lambda: _logged(settling, "release.refused"), equal=Counter([*old]))
        _lets_syncs_pass(off, trying, settling)

        modes = [{*daemon.metrics().by("mode", "mode_info")} for daemon in (off, trying, settling)]
        assert modes == [{"observe"}, {"dry-run"}, {"clean"}]
        assert _tells_nothing_of_releases(off)
        assert off.metrics().total("releases_refused_total") == 0
        assert _tells_nothing_of_releases(trying, but="release.dry_run")
        assert _tells_nothing_of_releases(settling, but="release.refused")
        assert {line["reason"] for line in settling.events("release.refused")} == {"unsettled"}
        assert _refused(settling).keys() == {
            "not_confirmed",
            "unsettled",
        }  # by one snapshot, and by all after it
        assert not any(one.metrics().total("releases_total") for one in (off, trying, settling))
        for line in trying.events("release.dry_run"):
            assert (line["network"], line["container"]) == ("kubenet", reservations()[line["ip"]])
    assert traces(STORE, CNI_CACHE) == before
    assert not (nodeleak.state_dir / "journal").exists()

    frugal = (*AUTO, "--max-per-sync=1", "--max-per-hour=2")
    with nodeleak.running(*frugal) as daemon:
        eventually(lambda: len(daemon.events("address.released")), equal=2)
        _lets_syncs_pass(daemon)
        metrics = daemon.metrics()
        released = {line["ip"]: line for line in daemon.events("address.released")}
        last = set(old) - set(released)
        # The second release waited for the next sync; the third exceeded the hourly budget.
        _, second = released
        assert _refused_for(daemon, "over_budget") == {second, *last}

    assert reservations().keys() == last | set(new)
    assert metrics.by("network", "releases_total") == {"kubenet": 2}
    assert metrics.get("lock_held_seconds_count") == metrics.get("lock_wait_seconds_count") == 2
    assert metrics.by("reason", "release_failures_total").keys() >= {
        "busy",
        "changed",
        "failed",
        "gone",
    }
    assert metrics.total("release_failures_total") == 0
    assert metrics.get("cleanup_halted") == 0
    assert run("promtool", "check", "metrics", text=metrics.text).stderr == ""
    entries = nodeleak.journal()
    assert {entry["entry"]: (entry["by"], entry["container_id"]) for entry in entries} == {
        line["entry"]: ("run", line["container"]) for line in released.values()
    }

    # The hourly budget is kept in the journal, so a restart does not reset it.
    with nodeleak.running(*frugal) as daemon:
        eventually(lambda: _refused_for(daemon, "over_budget"), equal=last)
        _lets_syncs_pass(daemon)
        assert _tells_nothing_of_releases(daemon, but="release.refused")
        assert all("--max-per-hour" in line["why"] for line in daemon.events("release.refused"))
    assert reservations().keys() == last | set(new)
    assert nodeleak.clean("--apply", *BOLD).verdicts == dict.fromkeys(last, "released")


def test_the_daemon_releases_the_leak_and_halts_when_a_released_container_reappears(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak, tmp_path: Path
) -> None:
    old = pods(2)
    reserved_before = reservations()
    back, _ = old
    checkpoint = CHECKPOINTS / reserved_before[back]
    for file in (STORE / back, checkpoint):
        shutil.copy2(file, tmp_path)
    # The kernel ends the namespaces of killed pods later; an address that answers a probe is left alone for minutes.
    with nodeleak.running(*AUTO, "--confirm-after=5s") as daemon:
        cluster.leak()
        new = pods.running()
        eventually(_held, equal=set(new))
        eventually(lambda: _logged(daemon, "address.released"), equal=Counter([*old]))
        assert {(line["ip"], line["pod"]) for line in daemon.events("address.released")} == set(
            old.items()
        )
        assert not [
            path
            for path in CNI_CACHE.iterdir()
            if any(reserved_before[ip] in path.name for ip in old)
        ]

        # A reservation without a record is that of a plugin that outlived its sandbox.
        shutil.copy2(tmp_path / back, STORE)
        eventually(lambda: _released_again(daemon, back, len(old) + 1))
        _lets_syncs_pass(daemon)
        assert daemon.metrics().get("cleanup_halted") == 0

        with cluster.frozen("kubelet"):  # it would complete the teardown of the checkpoint
            shutil.copy2(tmp_path / checkpoint.name, CHECKPOINTS)
            shutil.copy2(tmp_path / back, STORE)
            eventually(
                lambda: (
                    len(daemon.events("cleanup.halted")),
                    daemon.metrics().get("cleanup_halted"),
                ),
                equal=(1, 1),
            )
            (halted,) = daemon.events("cleanup.halted")
            assert reserved_before[back][:12] in halted["why"]
            cleaning = nodeleak.clean("--apply", *BOLD, "--confirm-after=100ms")
            assert cleaning.verdicts == {back: "halted"}
            assert reserved_before[back][:12] in cleaning.document["halted"]

            (leaked,) = cluster.reserve(1)
            eventually(lambda: _refused_for(daemon, "halted"), equal={leaked})
            (STORE / back).unlink()
            checkpoint.unlink()
        _lets_syncs_pass(daemon)
        assert daemon.metrics().get("cleanup_halted") == 1
        assert _refused(daemon)["halted"] > 0
        assert daemon.metrics().by("network", "releases_total") == {"kubenet": len(old) + 1}
        assert len(daemon.events("cleanup.halted")) == 1
        assert _held() == {leaked, *new}

    with nodeleak.running(*AUTO) as daemon:
        _lets_syncs_pass(daemon)
        assert _held() == {leaked, *new}
        assert reserved_before[back][:12] in nodeleak.resume()
        eventually(_held, equal=set(new))


def _released_again(daemon: Daemon, ip: str, times: int) -> None:
    state = daemon.report().states.get(ip)
    because = f"{ip}: file there: {(STORE / ip).exists()}; reported as {state}"
    assert len(daemon.events("address.released")) == times, because


def test_two_cleaners_beside_the_daemon_release_each_address_once(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    owners = pods(1)
    leaked = cluster.reserve(60)
    reserved_before = reservations()
    at_work = (
        "--cleanup=auto",
        "--interval=300ms",  # so that it has not released all before the others start
        "--confirm-after=0s",
        "--grace=0s",
        "--settle=0s",
        "--max-per-sync=1",
        "--probe=off",  # it would give each of them its turn
    )

    with nodeleak.running(*at_work) as daemon:
        cleaners = [
            nodeleak.cleaning(
                "--apply",
                *BOLD,
                "--confirm-after=0s",
                "--probe=off",
                "--lock-timeout=1m",  # on a busy machine the others hold the cleaner's lock for long
                f"--max={most}",
            )
            for most in (10, 15, 1)  # and some are left to the daemon
            for _ in "12"
        ]
        cleaning = [json.loads(one.communicate()[0]) for one in cleaners]
        eventually(_held, equal=set(owners))

        assert [one.returncode for one in cleaners] == [0] * len(cleaners)
        by_clean = [
            one["ip"]
            for each in cleaning
            for one in each["addresses"]
            if one["verdict"] == "released"
        ]
        eventually(
            lambda: len(daemon.events("address.released")), equal=len(leaked) - len(by_clean)
        )
        by_run = [line["ip"] for line in daemon.events("address.released")]
        eventually(
            lambda: daemon.metrics().by("network", "releases_total"),
            equal={"kubenet": len(by_run)},
        )

    assert by_clean
    assert by_run
    assert Counter(by_clean + by_run) == Counter(leaked)
    entries = nodeleak.journal()
    assert Counter(entry["container_id"] for entry in entries) == Counter(
        reserved_before[ip] for ip in leaked
    )
    assert Counter(entry["by"] for entry in entries) == {"clean": len(by_clean), "run": len(by_run)}
    assert {entry["outcome"] for entry in entries} == {"released"}


def _logged(daemon: Daemon, event: str, field: str = "ip") -> Counter[str]:
    """Return how often an event was logged for each of its subjects."""
    return Counter(line[field] for line in daemon.events(event))


def _refused_for(daemon: Daemon, reason: str) -> set[str]:
    return {line["ip"] for line in daemon.events("release.refused") if line["reason"] == reason}


def _tells_nothing_of_releases(daemon: Daemon, but: str = "") -> bool:
    events = {line["event"] for line in daemon.lines()}
    return not {one for one in events if one.startswith(("release.", "address.", "cleanup."))} - {
        but
    }


def _lets_syncs_pass(*processes: Daemon) -> None:
    """Wait for three more syncs of each daemon, and one for the sync in progress."""
    before = [daemon.syncs() + 4 for daemon in processes]
    eventually(
        lambda: [daemon.syncs() >= syncs for daemon, syncs in zip(processes, before, strict=True)],
        equal=[True] * len(processes),
    )


def _refused(daemon: Daemon) -> dict[str, float]:
    return {
        reason: times
        for reason, times in daemon.metrics().by("reason", "releases_refused_total").items()
        if times
    }


def _held() -> set[str]:
    return set(reservations())
