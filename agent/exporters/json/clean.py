"""The JSON documents of a cleanup, `nodeleak.clean/v1`, and the journal, `nodeleak.journal/v1`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from agent.cleanup.journal import Entry, Journal
from agent.cleanup.journal_store import JOURNAL_SCHEMA, file_document
from agent.cleanup.plan import Plan, make_plan
from agent.exporters.json import Document
from agent.exporters.json.scan import seconds_or_null, time_or_null, unavailable_sources
from agent.exporters.release_commands import ON_NODE, Release
from agent.model.release import RESULTS, BlockedBy, Blocker, Cleaning, Outcome, Verdict
from agent.model.snapshot import Reservation
from agent.model.text import rfc3339

_SCHEMA: Final = "nodeleak.clean/v1"


def clean_document(cleaning: Cleaning, release: Release = ON_NODE) -> Document:
    """Return a cleanup. `release`: how addresses are released from where it is read."""
    tally = cleaning.tally()
    blockers = [
        {"by": blocker.by, "why": blocker.why, "network": blocker.network or None}
        for blocker in cleaning.blockers
    ]

    return {
        "schema": _SCHEMA,
        "node": cleaning.node,
        "taken_at": rfc3339(cleaning.taken_at),
        "applied": not cleaning.dry_run,
        "network": ",".join(cleaning.free_before),
        "networks": [
            {
                "network": network,
                "free_before": free,
                "free_after": cleaning.free_after.get(network),
            }
            for network, free in cleaning.free_before.items()
        ],
        "addresses": [
            _address(outcome, reservation, cleaning)
            for outcome in cleaning.outcomes
            for reservation in outcome.request.reservations
        ],
        "verdicts": {verdict: tally[verdict] for verdict in RESULTS},
        "passed_over": [
            {"network": address.network or None, "ip": address.ip, "why": address.why}
            for address in cleaning.not_releasable
        ],
        "halted": cleaning.halted or None,
        "blockers": blockers if cleaning.dry_run else None,
        "next": list(_next(cleaning, release)) if cleaning.dry_run else None,
        "unavailable": unavailable_sources(cleaning.unavailable),
        "warnings": list(cleaning.warnings),
    }


def next_plan(cleaning: Cleaning) -> Plan:
    """Return which commands release what a dry run found, or what could not be written."""
    verdicts = {Verdict.WOULD_RELEASE, Verdict.REFUSED, Verdict.FAILED}
    return make_plan(
        (outcome.request, outcome.refusals)
        for outcome in cleaning.outcomes
        if outcome.verdict in verdicts
    )


def next_release(cleaning: Cleaning, release: Release) -> Release:
    """Return how the next command releases: not from this pod, if it only reads."""
    return replace(release, by_job=True) if release.in_pod and is_read_only(cleaning) else release


def is_read_only(cleaning: Cleaning) -> bool:
    """Return whether no directory of a network can be written from here."""
    return any(
        blocker.by is BlockedBy.NETWORK_UNWRITABLE and not blocker.network
        for blocker in cleaning.blockers
    )


def stopping(cleaning: Cleaning, release: Release) -> list[Blocker]:
    """Return the blockers that the next command does not overcome.

    It names the networks, and a Job has them mounted writable.
    """
    overcome = {BlockedBy.NO_CLEANUP_NETWORK}
    if next_release(cleaning, release).by_job:
        overcome.add(BlockedBy.NETWORK_UNWRITABLE)
    return [blocker for blocker in cleaning.blockers if blocker.by not in overcome]


def _next(cleaning: Cleaning, release: Release) -> Iterator[Document]:
    """Yield the commands that release, in their order, and what to check before each."""
    if any(not blocker.network for blocker in stopping(cleaning, release)):
        return

    following = next_release(cleaning, release)
    for batch in next_plan(cleaning).batches:
        yield {
            "command": following.apply(cleaning.node, batch),
            "addresses": batch.count,
            "wait_seconds": batch.wait.total_seconds(),
            "checks": list(dict.fromkeys(refusal.reason for refusal in batch.lifted)),
        }


def _address(outcome: Outcome, reservation: Reservation, cleaning: Cleaning) -> Document:
    """Return what a cleanup did with one address, or why not."""
    age = cleaning.taken_at - reservation.mtime
    reasons = "; ".join(refusal.why for refusal in outcome.refusals)
    return {
        "network": reservation.network,
        "ip": reservation.ip,
        "container_id": reservation.container_id or None,
        "pod": outcome.request.pod or None,
        "age_seconds": seconds_or_null(age),
        "cause": cleaning.causes.get(reservation.key),
        "verdict": outcome.verdict,
        "reason": outcome.refusals[0].reason if outcome.refusals else None,
        "why": reasons or outcome.why or None,
        "setting": _setting(outcome),
        "refusals": [
            {"reason": refusal.reason, "why": refusal.why, "setting": refusal.setting or None}
            for refusal in outcome.refusals
        ],
        "entry": outcome.entry or None,
        "waited_seconds": outcome.waited,
        "held_seconds": outcome.held,
    }


def _setting(outcome: Outcome) -> str | None:
    """Return the settings that override all refusals; None if one of them has none."""
    settings = [refusal.setting for refusal in outcome.refusals]
    if not settings or not all(settings):
        return None
    return " ".join(dict.fromkeys(" ".join(settings).split()))


def journal_document(journal: Journal) -> Document:
    """Return the journal, the oldest entry first, with the content of every removed file."""
    entries = [_entry(entry) for entry in journal.entries]
    return {"schema": JOURNAL_SCHEMA, "entries": entries, "damage": list(journal.damage)}


def _entry(entry: Entry) -> Document:
    return {
        "entry": entry.name,
        "at": rfc3339(entry.at),
        "by": entry.actor,
        "container_id": entry.container_id or None,
        "pod": entry.pod or None,
        "addresses": list(entry.ips),
        "outcome": entry.verdict,
        "why": entry.why or None,
        "restored": time_or_null(entry.restored),
        "restoring": time_or_null(entry.restoring),
        "halted": time_or_null(entry.halted),
        "resumed": time_or_null(entry.resumed),
        "files": [file_document(image) for image in entry.files],
    }
