"""The whole command beside the shell one-liner that people copy, on the same store and docker.

The one-liner lists what docker does not know; `scan` reads checkpoints, libcni's cache and the process table too, and
network namespaces where a reservation has no owner. What it finds it looks at again after `--confirm-after`; that
pause is in its time, but for the rows with `--confirm-after=0s`.
The one-liner is hundreds of short processes and suffers most from
whatever else runs: on a busy machine these ratios flatter the scan, so look at the load above.
"""

import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests import processes
from tests.bench.measure import Figure, interleaved, middle, ratio
from tests.bench.surroundings import fake_node
from tests.fakes.host import Host

_ONE_LINER = (
    r"""all_containers=$(docker ps -a -q);for ip in $(ls /var/lib/cni/networks/kubenet/ """
    r"""|grep -v -E "last_reserved_ip.0|lock");do """
    r"""docker_id=$(head -n 1 /var/lib/cni/networks/kubenet/$ip| sed 's/\r//');  """
    r"""if [ -z "${docker_id}" -o -z "$(echo ${all_containers} | grep "${docker_id:0:8}")" ];then echo $ip;fi;done"""
)
"""Its reading half, letter for letter but for the path of the store."""
_SIZES = {125: (7, 0.7), 1_000: (3, 0.15)}
"""Reservations; how often each command is run; the target."""
_ENGINE = "unix:///var/run/docker.sock"


@dataclass(frozen=True, slots=True)
class _Case:
    what: str
    engine: str
    leaked: int
    """Reservations that both have to find."""
    with_target: str
    """The options of the scan that the target is for."""
    beside: str
    """The options of another scan of the same."""


def figures(bin_: Path) -> Iterator[Figure]:
    if not (shutil.which("docker") and shutil.which("bash")):
        yield Figure("not measured: the one-liner needs bash and the docker command", "-")
        return
    real = _answers(_ENGINE)
    for size, (rounds, most) in _SIZES.items():
        with fake_node(size, "10.64.0.0/20") as (host, _), fake_node(1, "10.9.0.0/24") as (stranger, _):
            api = f"--kubeconfig={host.kubeconfig}"
            case = _Case(f"{size:,} in use", f"unix://{host.docker_socket}", 0, "--api=off", api)
            yield from _compare(bin_, host, case, rounds, most)
            # An engine that knows none of these ids: the one that runs here, or another node's fake.
            engine = _ENGINE if real else f"unix://{stranger.docker_socket}"
            _forget_checkpoints(host)
            case = _Case(f"{size:,} leaked", engine, size, "--api=off", "--api=off --confirm-after=0s")
            yield from _compare(bin_, host, case, rounds, most)


def _compare(bin_: Path, host: Host, case: _Case, rounds: int, most: float) -> Iterator[Figure]:
    env = processes.environment(DOCKER_HOST=case.engine)
    one_liner = ["bash", "-c", _ONE_LINER.replace("/var/lib/cni/networks/kubenet", str(host.store))]
    scan = [str(bin_ / "nodeleak"), "scan", "--node=worker-1", *host.options, f"--docker-host={case.engine}"]
    found = 1 if case.leaked else 0
    times = middle(
        interleaved(
            {
                "one-liner": partial(_list_leaks, one_liner, env, case.leaked),
                case.with_target: partial(_run, [*scan, "--exit-code", *case.with_target.split()], env, found),
                case.beside: partial(_run, [*scan, "--exit-code", *case.beside.split()], env, found),
            },
            rounds,
        )
    )
    engine = "real docker" if case.engine == _ENGINE else "docker a fake"
    for options, target in ((case.with_target, most), (case.beside, None)):
        shown = "with the API server" if options.startswith("--kubeconfig") else f"`{options}`"
        yield ratio(f"{case.what}, {engine}: scan {shown}", times[options], times["one-liner"], target)


def _forget_checkpoints(host: Host) -> None:
    for checkpoint in host.checkpoints.iterdir():
        checkpoint.unlink()


def _list_leaks(command: Sequence[str], env: Mapping[str, str], expected: int) -> None:
    if (found := len(_run(command, env, 0).splitlines())) != expected:
        raise OSError(f"the one-liner found {found} leaks, not {expected}")


def _run(command: Sequence[str], env: Mapping[str, str], expected: int) -> str:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != expected:
        raise OSError(f"{command[0]} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _answers(engine: str) -> bool:
    asked = subprocess.run(
        ["docker", "version"],  # noqa: S607 (the one that the one-liner finds)
        env=processes.environment(DOCKER_HOST=engine),
        capture_output=True,
        check=False,
    )
    return asked.returncode == 0
