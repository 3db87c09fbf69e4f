"""The recheck, with answers of a test instead of those of a node."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.cleanup.recheck import Recheck
from agent.model.release import ProbeResult, Reason
from agent.model.snapshot import Reservation
from agent.sources.host.cni_cache import CniResults
from agent.sources.host.processes import ProcessTable
from agent.sources.source_error import SourceError

Probe = Callable[[Sequence[Reservation]], dict[Any, ProbeResult]]


def recheck(
    has_container: Callable[[str], bool],
    has_checkpoint: Callable[[str], bool],
    holder: Callable[[str, Sequence[str]], str],
    probe: Probe,
) -> Recheck:
    """`holder`: says who has one of the addresses of a sandbox, empty if nobody has."""

    class Live(Recheck):
        def holder_of(self, container_id: str, ips: Sequence[str]) -> str:
            return holder(container_id, ips)

        def probe(
            self, reservations: Sequence[Reservation], *, send: bool = True
        ) -> dict[Any, ProbeResult]:
            return probe(reservations) if send else {}

    return Live(
        has_container=has_container,
        has_checkpoint=has_checkpoint,
        results=CniResults([]),
        proc=Path(),
        processes=ProcessTable(Path()),
        probe_addresses=lambda *_: {},
    )


@dataclass
class Owners:
    """The owners that a recheck finds. By default none, so that only the guards protect an address."""

    containers: set[str] = field(default_factory=set)
    checkpoints: set[str] = field(default_factory=set)
    holders: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, Reason] = field(
        default_factory=dict
    )  # What the probe says against the release of an address
    silent: str = ""  # Which of runtime, kubelet and kernel gives no definite answer
    happens: Callable[[str], None] = lambda _: None  # Told what was asked
    probed: list[list[str]] = field(default_factory=list)

    def recheck(self) -> Recheck:
        return recheck(
            lambda container_id: self._answer("runtime", container_id in self.containers),
            lambda container_id: self._answer("kubelet", container_id in self.checkpoints),
            lambda _, ips: self._answer(
                "kernel", next((self.holders[ip] for ip in ips if ip in self.holders), "")
            ),
            self.probe,
        )

    def _answer(self, who: str, found: Any) -> Any:
        if who == self.silent:
            raise SourceError(f"{who} is gone")
        self.happens(f"asked the {who}")
        return found

    def probe(self, reservations: Sequence[Reservation]) -> dict[Any, ProbeResult]:
        self.probed.append([leak.ip for leak in reservations])
        return {
            leak.key: ProbeResult(f"{leak.ip} was probed", self.refusals.get(leak.ip))
            for leak in reservations
        }
