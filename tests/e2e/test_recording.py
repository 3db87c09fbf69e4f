"""A recording gives the same report on another machine."""

import json
from pathlib import Path

import pytest

from .node import STORE, Cluster, Pods, eventually, run
from .nodeleak import NODELEAK, Nodeleak, Report

pytestmark = pytest.mark.e2e


def test_a_recording_replays_without_access_to_the_node(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak, tmp_path: Path
) -> None:
    pods(2)
    cluster.leak()
    cluster.reserve(1)
    pods.running()

    def both() -> tuple[Report, str]:
        """The API server may list the pods as they were a moment ago."""
        live = nodeleak.scan("--grace=0s")
        assert sorted(set(live.states.values())) == ["in_use", "leaked"]
        recording = nodeleak.record("--grace=0s")
        assert nodeleak.scan("--grace=0s").verdicts == live.verdicts
        return live, recording

    live, recording = eventually(both)

    # Elsewhere: no network, no other processes, empty directories in place of the node's.
    hidden = (STORE.parents[1], Path("/var/lib/dockershim"), Path("/run"), cluster.admin.parent)
    hiding = " && ".join(
        f"mount -t tmpfs none {directory}" for directory in hidden if directory.is_dir()
    )
    isolated = ("unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc")
    elsewhere = (
        *isolated,
        "/bin/sh",
        "-c",
        f'{hiding} && exec "$@"',
        "sh",
        "env",
        "-i",
        NODELEAK,
        "scan",
        "-o",
        "json",
    )
    nothing = run(*elsewhere, "--api=off", codes=[3], cwd=tmp_path).stdout
    assert Report(3, json.loads(nothing)).unavailable >= {"containers"}
    there = Report(
        0, json.loads(run(*elsewhere, "--recording=-", text=recording, cwd=tmp_path).stdout)
    )

    assert (there.verdicts, there.pods) == (live.verdicts, live.pods)
