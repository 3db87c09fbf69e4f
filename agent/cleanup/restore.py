"""Putting back what was released, and settling what we died in the middle of."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from agent.cleanup.book import Book
from agent.cleanup.journal import Entry
from agent.cleanup.release import RESERVATION, Hands, Kept, said
from agent.model.release import Verdict


class RestoringHands(Hands, Protocol):
    """What restoring needs beside releasing. Each raises OSError."""

    def present(self, kept: Kept) -> Kept | None: ...
    def taken(self, kept: Kept) -> bool: ...
    def addresses_of(self, container_id: str, network: str) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Restoration:
    """What came of putting an entry back."""

    entry: Entry
    done: bool
    why: str = ""
    """Why not; or what could not be put back beside the reservations."""


class Refused(Exception):
    """It must not be put back; the text says why."""


def missing_of(entry: Entry, hands: RestoringHands) -> tuple[Kept, ...]:
    """Return the reservations to put back; raises Refused where that would take an address, or give a sandbox two."""
    if entry.verdict is None:
        raise Refused("the entry never ended; the next cleaning settles it")
    if entry.verdict not in {Verdict.RELEASED, Verdict.FAILED}:
        raise Refused(f"nothing was released: the entry ended as {entry.verdict.value}")
    missing = _missing(entry, hands)
    if not missing and not (entry.released and entry.reservations):
        raise Refused("nothing is missing: all of it is in place")
    for kept in missing:
        if hands.taken(kept):
            raise Refused(f"{kept.name} of network {kept.network} is reserved again")
    mine = {kept.name for kept in entry.reservations}
    for network in {kept.network for kept in missing} if entry.container_id else ():
        if others := set(hands.addresses_of(entry.container_id, network)) - mine:
            held = ", ".join(sorted(others))
            raise Refused(f"container {entry.container_id[:12]} has another address by now: {held}")
    return missing


def _missing(entry: Entry, hands: RestoringHands) -> tuple[Kept, ...]:
    """Return the reservations that are not in place, whoever put them there: ids never return, so the bytes tell."""
    found = ((kept, hands.present(kept)) for kept in entry.reservations)
    return tuple(kept for kept, now in found if now is None or now.content != kept.content)


def restore(entry: Entry, hands: RestoringHands, book: Book, now: datetime) -> Restoration:
    """Put an entry's files back, under host-local's locks; the caller is the only cleaner."""
    try:
        locked = hands.lock(sorted({kept.network for kept in entry.reservations}))
        if locked is None:
            return Restoration(entry, done=False, why="host-local's lock is held by somebody else")
        try:
            missing = missing_of(entry, hands)
            # First the word, then the file: a file that is there again although it was released stops all cleaning.
            book.restoring(entry.name, now)
            _put_back(missing, hands)
        finally:
            locked.unlock()
    except (Refused, OSError) as error:
        return Restoration(entry, done=False, why=said(error))
    if not missing:
        return Restoration(entry, done=True, why="it was in place already, and the journal says so now")
    return Restoration(entry, done=True, why=_put_back_cache(entry, hands))


def _put_back(reservations: tuple[Kept, ...], hands: RestoringHands) -> None:
    """Put back all, or none."""
    made: list[Kept] = []
    try:
        for kept in reservations:
            hands.put_back(kept)
            made.append(kept)
    except OSError:
        for kept in made:
            hands.remove(kept)
        raise


def _put_back_cache(entry: Entry, hands: RestoringHands) -> str:
    left = []
    for kept in entry.files:
        if kept.place == RESERVATION:
            continue
        try:
            hands.put_back(kept)
        except OSError as error:
            left.append(f"libcni's {kept.name} was not put back: {said(error)}")
    return "; ".join(left)


def settle_half(entry: Entry, hands: RestoringHands, book: Book, now: datetime) -> None:
    """Find out how an entry ended in whose middle we died, and end it. Raises OSError."""
    locked = hands.lock(sorted({kept.network for kept in entry.reservations}))
    if locked is None:
        return
    verdict, why = Verdict.FAILED, "the agent ended in the middle of it; all of it is in place"
    try:
        missing = _missing(entry, hands)
        if len(missing) == len(entry.reservations):
            verdict, why = Verdict.RELEASED, "found after the agent ended in the middle of it"
        elif any(hands.taken(kept) for kept in missing):
            why = "the agent ended in the middle of it, and what was removed of it is reserved again"
        else:
            _put_back(missing, hands)
    finally:
        locked.unlock()
    book.end(entry.name, verdict, why, now)
