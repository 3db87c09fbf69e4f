"""A docker upgrade that moves its directory leaves a process in an unmanaged namespace."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .agent import Nodeleak
from .node import Cluster, Pods, docker, eventually, running_sandboxes

pytestmark = pytest.mark.e2e


def test_an_address_of_a_process_unknown_to_docker_is_unmanaged_until_it_ends(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    ((ip, pod),) = pods(1).items()
    (sandbox,) = running_sandboxes().values()
    with _process_in_the_namespace_of(sandbox) as survivor:
        cluster.leak()
        new = pods.running()
        assert ip not in new

        scan = nodeleak.scan("--grace=0s", "--exit-code", codes=[1])
        assert scan.states == {ip: "unmanaged"} | dict.fromkeys(new, "in_use")
        (finding,) = scan.findings
        assert (finding["detector"], finding["subject"]) == ("unmanaged_address", f"kubenet/{ip}")
        assert f"process {survivor.pid} (sleep)" in finding["message"]
        assert sandbox[:12] in finding["message"]

        alone = nodeleak.scan("--grace=0s", "--api=off")
        assert alone.verdicts == scan.verdicts

    def ended() -> None:
        assert nodeleak.scan("--grace=0s").states == {ip: "leaked"} | dict.fromkeys(new, "in_use")

    eventually(ended, 20)
    assert set(new.values()) == {pod}


@contextmanager
def _process_in_the_namespace_of(sandbox: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `sleep` where a container's network is: the namespace, its veth and its address live as long as it does."""
    pid = docker("inspect", "--format={{.State.Pid}}", sandbox).strip()
    command = ["nsenter", f"--target={pid}", "--net", "sleep", "600"]
    with subprocess.Popen(command) as process:  # noqa: S603 (spelled out above)
        try:
            yield process
        finally:
            process.kill()
