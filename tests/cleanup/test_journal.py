"""The journal as values: what it says of sandboxes."""

from dataclasses import replace

from agent.cleanup.journal import Journal
from agent.model.release import Verdict
from tests.builders import GONE, NOW, WEB_ID, reservation
from tests.cleanup.syncs import entry

UNFINISHED = entry(reservation("10.244.1.9"), None)
RELEASED = UNFINISHED.ended(Verdict.RELEASED, "")


def test_what_happened_since_the_journal_was_read_is_known() -> None:
    other = replace(RELEASED, name="2", container_id=WEB_ID)
    before = Journal((RELEASED, other))
    assert before.active_since(before) == frozenset()
    failed = RELEASED.restoration_began(NOW).ended(Verdict.RELEASED, "")
    begun = replace(UNFINISHED, name="3")
    ended = begun.ended(Verdict.GONE, "")
    restoring = RELEASED.restoration_began(NOW)
    for now in (restoring, replace(RELEASED, restored=NOW), failed, begun, ended):
        assert Journal((now, other)).active_since(before) == {GONE}
    unfinished = Journal((restoring, other))
    assert unfinished.active_since(unfinished) == {GONE}, "whoever began it was killed"
    empty = replace(RELEASED, name="4", container_id="")
    assert Journal((empty,)).active_since(Journal()) == frozenset()
    assert Journal((empty,)).released_from() == {}, "no container that could reappear"


def test_an_entry_that_is_added_takes_the_place_of_its_older_state() -> None:
    other = replace(RELEASED, name="2", container_id=WEB_ID)
    halted = replace(RELEASED, halted=NOW)
    journal = Journal((RELEASED, other), ("torn",)).with_entry(halted)
    assert (journal.entries, journal.damage) == ((other, halted), ("torn",))
    assert journal.why_halted() == halted.reappearance
    assert Journal((RELEASED, other)).why_halted() is None
