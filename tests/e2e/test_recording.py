"""A recording gives the same report on another machine."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from .agent import NODELEAK, Nodeleak, Report
from .node import STORE, Cluster, Pods, run

pytestmark = pytest.mark.e2e


@pytest.fixture
def faulty_node(cluster: Cluster, pods: Pods) -> set[str]:
    """A node with leaks of two causes; return the names that must not appear."""
    names = set(pods(2).values())
    cluster.leak()
    cluster.reserve(1)
    return {*names, *pods.running().values(), cluster.node}


def test_a_recording_replays_without_access_to_the_node(
    cluster: Cluster, nodeleak: Nodeleak, faulty_node: set[str], tmp_path: Path
) -> None:
    live = nodeleak.scan("--grace=0s")
    recording = nodeleak.record("--grace=0s")
    here = run(NODELEAK, "scan", "-o", "json", "--recording=-", text=recording).stdout

    hidden = (STORE.parents[1], Path("/var/lib/dockershim"), Path("/run"), cluster.admin.parent)
    away = _Elsewhere(tmp_path / "empty", hidden)
    assert away.run("scan", "-o", "json", "--api=off", codes=[3]).unavailable >= {"containers"}
    there = away.run("scan", "-o", "json", "--recording=-", text=recording)

    assert sorted(set(live.states.values())) == ["in_use", "leaked"]
    assert faulty_node & set(filter(None, live.pods.values()))
    assert there.document == json.loads(here)
    assert there.verdicts == live.verdicts
    assert there.pods == live.pods


def test_an_anonymous_recording_has_the_same_findings_without_names(nodeleak: Nodeleak, faulty_node: set[str]) -> None:
    live = nodeleak.scan("--grace=0s")
    recording = nodeleak.record("--grace=0s", "--anonymous")

    report = Report(0, json.loads(run(NODELEAK, "scan", "-o", "json", "--recording=-", text=recording).stdout))

    assert sorted(report.states.values()) == sorted(live.states.values())
    assert sorted((one["detector"], one["cause"]) for one in report.findings) == sorted(
        (one["detector"], one["cause"]) for one in live.findings
    )
    leaked_names = [
        name
        for name in {*faulty_node, *live.states}
        for part in name.split("/")
        if part != "default" and part in recording
    ]
    assert leaked_names == []


class _Elsewhere:
    """An isolated environment: no network, no other processes, empty node directories."""

    def __init__(self, empty: Path, hidden: Iterable[Path]) -> None:
        empty.mkdir()
        self._cwd = empty
        self._hiding = " && ".join(f"mount -t tmpfs none {directory}" for directory in hidden if directory.is_dir())

    def run(self, *words: str, text: str = "", codes: Iterable[int] = (0,)) -> Report:
        isolated = ("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc")
        hidden = ("/bin/sh", "-c", f'{self._hiding} && exec "$@"', "sh", "env", "-i")
        done = run(*isolated, *hidden, NODELEAK, *words, text=text, codes=codes, cwd=self._cwd)
        return Report(done.returncode, json.loads(done.stdout))
