"""The whole command, compared with the shell one-liner that people copy, on the same store and docker.

The one-liner lists what docker does not know. `scan` also reads checkpoints, libcni's cache and the process table, and
network namespaces if a reservation has no owner. If it finds something, it takes a second snapshot after
`--confirm-after`; this pause is included. In a pod, the API server is reached over TLS; a kubeconfig is read by the
package `kubernetes`. The one-liner starts hundreds of short processes and suffers most from other
load: on a busy machine these ratios flatter `scan`.
"""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from tests import processes
from tests.bench.measure import Figure, alternating, ratio
from tests.bench.surroundings import fake_node
from tests.fakes.host import Host

_ONE_LINER = (
    r"""all_containers=$(docker ps -a -q);for ip in $(ls /var/lib/cni/networks/kubenet/ """
    r"""|grep -v -E "last_reserved_ip.0|lock");do """
    r"""docker_id=$(head -n 1 /var/lib/cni/networks/kubenet/$ip| sed 's/\r//');  """
    r"""if [ -z "${docker_id}" -o -z "$(echo ${all_containers} | grep "${docker_id:0:8}")" ];then echo $ip;fi;done"""
)
"""The reading part of it, unchanged except for the path of the store."""
_SIZES = {
    125: (7, 0.7),
    1_000: (3, 0.15),
}  # Number of reservations: runs of each command, target ratio
_API_LIMITS = {1_000: 0.12}


def figures(bin_: Path) -> Iterator[Figure]:
    if not (shutil.which("docker") and shutil.which("bash")):
        yield Figure("not measured: the one-liner needs bash and the docker command", "-")
        return
    for size, (rounds, limit) in _SIZES.items():
        with (
            fake_node(size, "10.64.0.0/20") as (host, _),
            fake_node(1, "10.9.0.0/24") as (stranger, _),
        ):
            scan = [str(bin_ / "nodeleak"), "scan", "--exit-code", "--node=worker-1", *host.options]
            yield _compare(f"{size:,} in use", host, host, [*scan, "--api=off"], rounds, limit)
            in_pod = [*host.in_pod(bin_ / "python"), *scan[1:]]
            api_limit = _API_LIMITS.get(size)
            what = f"{size:,} in use, with the API server"
            yield _compare(f"{what}, in a pod", host, host, in_pod, rounds, api_limit)
            kubeconfig = [*scan, f"--kubeconfig={host.kubeconfig}"]
            yield _compare(f"{what}, with a kubeconfig", host, host, kubeconfig, rounds, None)
            # The engine of another node knows none of these IDs. Without any checkpoint for its sandboxes, `scan`
            # would take them for another kubelet's.
            shutil.rmtree(host.checkpoints)
            shutil.copytree(stranger.checkpoints, host.checkpoints)
            leaked = [*scan, "--api=off", f"--docker-host=unix://{stranger.docker_socket}"]
            yield _compare(f"{size:,} leaked", host, stranger, leaked, rounds, limit)


def _compare(
    what: str, host: Host, engine: Host, scan: Sequence[str], rounds: int, limit: float | None
) -> Figure:
    env = processes.environment(
        DOCKER_HOST=f"unix://{engine.docker_socket}", **host.pod_environment
    )
    one_liner = ["bash", "-c", _ONE_LINER.replace("/var/lib/cni/networks/kubenet", str(host.store))]
    leaks = 0 if engine is host else len(list(host.store.iterdir())) - 2
    times = alternating(
        {
            "scan": partial(_run, scan, env, 1 if leaks else 0),
            "one-liner": partial(_run, one_liner, env, 0, leaks),
        },
        rounds,
    )
    return ratio(what, times["scan"], times["one-liner"], limit)


def _run(command: Sequence[str], env: dict[str, str], code: int, lines: int | None = None) -> None:
    """Run a command that must end with this code, and print so many lines."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != code or lines not in {None, len(done.stdout.splitlines())}:
        raise OSError(f"{command[0]} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
