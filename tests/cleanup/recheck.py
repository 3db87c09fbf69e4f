"""The recheck, with answers of a test instead of those of a node."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agent.cleanup.recheck import Recheck
from agent.model.release import ProbeResult, Reason
from agent.model.snapshot import Reservation
from agent.sources.host.cni_cache import CniResults
from agent.sources.host.processes import ProcessTable

Probe = Callable[[Sequence[Reservation]], dict[Any, ProbeResult]]


def probed(
    reservations: Sequence[Reservation], why: str = "", objection: Reason | None = None
) -> dict[Any, ProbeResult]:
    """Return the same result for each address."""
    return {leak.key: ProbeResult(why or f"{leak.ip} was probed", objection) for leak in reservations}


def recheck(
    has_container: Callable[[str], bool],
    has_checkpoint: Callable[[str], bool],
    holder: Callable[[str, Sequence[str]], str],
    probe: Probe = probed,
) -> Recheck:
    """`holder`: says who has one of the addresses of a sandbox, empty if nobody has."""

    class Live(Recheck):
        def holder_of(self, container_id: str, ips: Sequence[str]) -> str:
            return holder(container_id, ips)

        def probe(self, reservations: Sequence[Reservation], *, send: bool = True) -> dict[Any, ProbeResult]:
            return probe(reservations) if send else {}

    return Live(has_container, has_checkpoint, CniResults([]), Path(), ProcessTable(Path()), lambda *_: {})
