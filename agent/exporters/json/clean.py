"""Cleanup results as the JSON document `nodeleak.clean/v1`, and the journal as `nodeleak.journal/v1`."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from agent.cleanup.journal import Entry, Journal
from agent.cleanup.journal_store import JOURNAL_SCHEMA, file_document
from agent.exporters.json.scan import unavailable_sources
from agent.model.finding import LeakCause
from agent.model.release import RESULTS, Blocker, Cleaning, Outcome
from agent.model.snapshot import Reservation, ReservationKey
from agent.model.text import rfc3339

_SCHEMA: Final = "nodeleak.clean/v1"


def clean_document(cleaning: Cleaning) -> dict[str, Any]:
    tally, causes = cleaning.tally(), cleaning.causes
    return {
        "schema": _SCHEMA,
        "node": cleaning.node,
        "taken_at": rfc3339(cleaning.taken_at),
        "applied": not cleaning.dry_run,
        "network": ",".join(cleaning.free_before),
        "networks": [
            {"network": network, "free_before": free, "free_after": cleaning.free_after.get(network)}
            for network, free in cleaning.free_before.items()
        ],
        "addresses": [
            _address(outcome, reservation, cleaning.taken_at, causes)
            for outcome in cleaning.outcomes
            for reservation in outcome.request.reservations
        ],
        "verdicts": {verdict.value: tally[verdict] for verdict in RESULTS},
        "passed_over": [
            {"network": address.network or None, "ip": address.ip, "why": address.why}
            for address in cleaning.not_releasable
        ],
        "halted": cleaning.halted or None,
        "blockers": list(map(_blocker, cleaning.blockers)) if cleaning.dry_run else None,
        "unavailable": unavailable_sources(cleaning.unavailable),
        "warnings": list(cleaning.warnings),
    }  # fmt: skip


def _blocker(blocker: Blocker) -> dict[str, Any]:
    return {"by": blocker.by.value, "why": blocker.why, "network": blocker.network or None}


def _address(
    outcome: Outcome,
    reservation: Reservation,
    taken_at: datetime,
    causes: Mapping[ReservationKey, LeakCause],
) -> dict[str, Any]:
    return {
        "network": reservation.network,
        "ip": reservation.ip,
        "container_id": reservation.container_id or None,
        "pod": outcome.request.pod or None,
        "age_seconds": round((taken_at - reservation.mtime).total_seconds(), 3),
        "cause": causes.get(reservation.key),
        "verdict": outcome.verdict.value,
        "reason": outcome.refusals[0].reason.value if outcome.refusals else None,
        "why": "; ".join(refusal.why for refusal in outcome.refusals) or outcome.why or None,
        "setting": _setting(outcome),
        "refusals": [
            {"reason": refusal.reason.value, "why": refusal.why, "setting": refusal.setting or None}
            for refusal in outcome.refusals
        ],
        "entry": outcome.entry or None,
        "waited_seconds": outcome.waited,
        "held_seconds": outcome.held,
    }


def _setting(outcome: Outcome) -> str | None:
    """Return the settings that override all refusals; None where one of them cannot be overridden."""
    settings = [refusal.setting for refusal in outcome.refusals]
    return (
        " ".join(dict.fromkeys(" ".join(settings).split())) if settings and all(settings) else None
    )


def journal_document(image: Journal) -> dict[str, Any]:
    entries = [_entry(entry) for entry in image.entries]
    return {"schema": JOURNAL_SCHEMA, "entries": entries, "damage": list(image.damage)}


def _entry(entry: Entry) -> dict[str, Any]:
    times = {name: getattr(entry, name) for name in ("restored", "restoring", "halted", "resumed")}
    return {
        "entry": entry.name,
        "at": rfc3339(entry.at),
        "by": entry.actor,
        "container_id": entry.container_id or None,
        "pod": entry.pod or None,
        "addresses": list(entry.ips),
        "outcome": entry.verdict.value if entry.verdict else None,
        "why": entry.why or None,
        **{name: rfc3339(at) if at else None for name, at in times.items()},
        "files": [file_document(image) for image in entry.files],
    }
