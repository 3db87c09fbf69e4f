"""The daemon on nodes that hold far more than usual: what the worst node of a fleet costs in memory.

Everything is as in the section of the daemon, except for what a row names.
"""

from collections.abc import Iterator
from pathlib import Path

from tests.bench import resident
from tests.bench.measure import Figure
from tests.bench.surroundings import fake_node

_CIDR = "10.64.0.0/15"
_SYNCS = 12
_EVICTED = (3_000, 6_000)
_EXITED = 1_000
_ENDLESS = 3
_FILES = 65_000
_DOCKER, _CONTAINERD = "docker://19.3.15", "containerd://1.7.24"
_PATIENCE = "--docker-timeout=1m"
"""Of 50 MB by HTTP/2 on a busy machine."""
_MOST_MIB, _MOST_OF_FILES_MIB = 75.0, 100.0


def figures(bin_: Path) -> Iterator[Figure]:
    for evicted in _EVICTED:
        yield _peak(bin_, f"{evicted:,} evicted pods of 12 KB in the API server's list", evicted=evicted)
    yield _peak(bin_, f"{_EXITED:,} exited sandboxes of 50 KB in docker's list", exited=_EXITED)
    yield _peak(bin_, f"{_EXITED:,} exited sandboxes of 50 KB in containerd's list", _CONTAINERD, exited=_EXITED)
    yield _peak(bin_, f"{_FILES:,} files of host-local without an owner", most=_MOST_OF_FILES_MIB, ownerless=_FILES)
    yield _peak(bin_, f"docker's first {_ENDLESS} lists never end, and the next ones are read", endless=_ENDLESS)


def _peak(bin_: Path, what: str, runtime: str = _DOCKER, most: float = _MOST_MIB, **more: int) -> Figure:
    with fake_node(resident.PODS, _CIDR, resident.POD_BYTES, runtime, **more) as (host, _):
        options = host.options if runtime == _DOCKER else host.options_without_docker
        measured = resident.daemon(bin_, [f"--kubeconfig={host.kubeconfig}", _PATIENCE, *options], _SYNCS)
    return resident.at_most(what, measured.end.peak_mib, "MiB", most)
