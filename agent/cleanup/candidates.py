"""Whose release there is to judge: every sandbox that has a reservation and that docker does not list. Pure."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from agent.model.assessment import Assessment, State
from agent.model.release import PassedOver, ReleaseRequest
from agent.model.snapshot import Known, Reservation

_OWNERLESS: Final = {State.LEAKED, State.CANDIDATE, State.UNMANAGED, State.TEARDOWN_PENDING, State.UNKNOWN}


def candidates(assessment: Assessment, only: frozenset[str] | None = None) -> tuple[ReleaseRequest, ...]:
    """Gather what docker does not list, sandbox by sandbox; nothing where docker was not read.

    `only`: the sandboxes with one of these addresses.
    """
    if not isinstance(assessment.snapshot.containers, Known):
        return ()
    listed = {container.id for container in assessment.snapshot.containers.value}
    sandboxes: defaultdict[tuple[str, ...], list[tuple[Reservation, str]]] = defaultdict(list)
    for one in assessment.classified_reservations:
        if isinstance(one.entry, Reservation) and one.state in _OWNERLESS and one.container_id not in listed:
            key = (one.container_id,) if one.container_id else ("", one.network, one.name)
            sandboxes[key].append((one.entry, one.pod))
    gathered = (
        ReleaseRequest(
            tuple(sorted((entry for entry, _ in several), key=place)), next((pod for _, pod in several if pod), "")
        )
        for several in sandboxes.values()
    )
    return tuple(one for one in gathered if only is None or any(entry.ip in only for entry in one.reservations))


def passed_over(assessment: Assessment, only: frozenset[str] | None) -> tuple[PassedOver, ...]:
    """Say of each address that was asked for by name, and is no candidate, what it is."""
    if only is None:
        return ()
    judged = {one.ip for candidate in candidates(assessment, only) for one in candidate.reservations}
    return tuple(said for ip in sorted(only - judged) for said in _what_it_is(assessment, ip))


def _what_it_is(assessment: Assessment, ip: str) -> Iterator[PassedOver]:
    found = [one for one in assessment.classified_reservations if one.name == ip]
    for one in found:
        yield PassedOver(ip, f"{one.state.value.replace('_', ' ')}: {one.why}", one.network)
    if not found:
        unavailable = [
            store.network for store in assessment.snapshot.reservations if not isinstance(store.reading, Known)
        ]
        yield PassedOver(
            ip, f"not known: network {', '.join(unavailable)} was not read" if unavailable else "not reserved"
        )


def place(reservation: Reservation) -> tuple[str, str]:
    """Return what a reservation is sorted by where nothing else tells."""
    return reservation.network, reservation.ip
