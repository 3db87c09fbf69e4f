"""The whole command, compared with the shell one-liner that people copy, on the same store and docker.

The one-liner lists what docker does not know. `scan` also reads checkpoints, libcni's cache and the process table, and
network namespaces if a reservation has no owner. If it finds something, it takes a second snapshot after
`--confirm-after`; this pause is included, except in the rows with `--confirm-after=0s`. The one-liner starts hundreds
of short processes and suffers most from other load: on a busy machine these ratios flatter `scan`, so check the load
average above.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests import processes
from tests.bench.measure import Figure, interleaved, medians, ratio
from tests.bench.surroundings import fake_node
from tests.fakes.host import Host

_ONE_LINER = (
    r"""all_containers=$(docker ps -a -q);for ip in $(ls /var/lib/cni/networks/kubenet/ """
    r"""|grep -v -E "last_reserved_ip.0|lock");do """
    r"""docker_id=$(head -n 1 /var/lib/cni/networks/kubenet/$ip| sed 's/\r//');  """
    r"""if [ -z "${docker_id}" -o -z "$(echo ${all_containers} | grep "${docker_id:0:8}")" ];then echo $ip;fi;done"""
)
"""The reading part of it, unchanged except for the path of the store."""
SIZES = {125: (7, 0.7), 1_000: (3, 0.15)}
"""Number of reservations: runs of each command, target ratio."""
_ENGINE = "unix:///var/run/docker.sock"
_ONE, _LISTING = "the one-liner", "its list of pods"
WITHOUT_API = "`--api=off`"
OF_LEAKS = {
    WITHOUT_API: ["--api=off"],
    "`--api=off --confirm-after=0s`": ["--api=off", "--confirm-after=0s"],
}
"""The options of scans that find leaks, by what is shown."""


@dataclass(frozen=True, slots=True)
class Case:
    """Commands that are measured together. Each runs with `env`."""

    what: str
    leaked: int
    """Leaks that all of them must find."""
    one_liner: Sequence[str]
    scans: Mapping[str, Sequence[str]]
    """By what is shown. The first one has a target."""
    env: Mapping[str, str]
    listing: Sequence[str] = ()
    """What the one-liner lists the pods with, if its time is to be told apart."""


def figures(bin_: Path) -> Iterator[Figure]:
    if not (shutil.which("docker") and shutil.which("bash")):
        yield Figure("not measured: the one-liner needs bash and the docker command", "-")
        return
    real = _answers(_ENGINE)
    for size, (rounds, most) in SIZES.items():
        with fake_node(size, "10.64.0.0/20") as (host, _), fake_node(1, "10.9.0.0/24") as (stranger, _):
            fake = f"unix://{host.docker_socket}"
            options = {WITHOUT_API: ["--api=off"], "with the API server": [f"--kubeconfig={host.kubeconfig}"]}
            yield from compare(_case(bin_, host, (f"{size:,} in use", 0), fake, options), rounds, most)
            # An engine that knows none of these ids: the machine's own, or the fake of another node.
            engine = _ENGINE if real else f"unix://{stranger.docker_socket}"
            _replace_checkpoints(host, stranger)
            yield from compare(_case(bin_, host, (f"{size:,} leaked", size), engine, OF_LEAKS), rounds, most)


def _case(bin_: Path, host: Host, found: tuple[str, int], engine: str, options: Mapping[str, Sequence[str]]) -> Case:
    what, leaked = found
    scan = [str(bin_ / "nodeleak"), "scan", "--node=worker-1", *host.options, f"--docker-host={engine}"]
    return Case(
        f"{what}, {'real' if engine == _ENGINE else 'fake'} docker",
        leaked,
        ["bash", "-c", _ONE_LINER.replace("/var/lib/cni/networks/kubenet", str(host.store))],
        {shown: [*scan, *more] for shown, more in options.items()},
        processes.environment(DOCKER_HOST=engine),
    )


def compare(case: Case, rounds: int, most: float) -> Iterator[Figure]:
    """Compare each scan with the one-liner. `most`: the target."""
    calls: dict[str, Callable[[], object]] = {
        shown: partial(_scan, command, case.env, case.leaked) for shown, command in case.scans.items()
    }
    calls[_ONE] = partial(_list_leaks, case.one_liner, case.env, case.leaked)
    if case.listing:
        calls[_LISTING] = partial(_run, case.listing, case.env, 0)
    times = medians(interleaved(calls, rounds))
    first = next(iter(case.scans))
    for shown in case.scans:
        yield ratio(f"{case.what}: scan {shown}", times[shown], times[_ONE], most if shown == first else None)
    if case.listing:
        rest = times[_ONE] - times[_LISTING]
        yield ratio(f"{case.what}: scan {first}, against the one-liner without its list of pods", times[first], rest)


def _replace_checkpoints(host: Host, stranger: Host) -> None:
    """Leave only those of the other engine: without any for its sandboxes, `scan` takes them for another kubelet's."""
    for checkpoint in host.checkpoints.iterdir():
        checkpoint.unlink()
    for checkpoint in stranger.checkpoints.iterdir():
        shutil.copy(checkpoint, host.checkpoints)


def _scan(command: Sequence[str], env: Mapping[str, str], leaked: int) -> None:
    _run([*command, "--exit-code"], env, 1 if leaked else 0)


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
        ["docker", "version"],  # noqa: S607 (found in PATH, as by the one-liner)
        env=processes.environment(DOCKER_HOST=engine),
        capture_output=True,
        check=False,
    )
    return asked.returncode == 0
