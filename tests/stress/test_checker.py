"""The checker reports every violation and nothing else, on short histories of one address."""

from collections.abc import Sequence
from typing import Final

from tests.stress.checker import Action, ActionEvent, Checker, Event, FileRead, ViolationKind, check

IP: Final = "10.254.77.10"
FIRST, SECOND = "a" * 64, "b" * 64
EMPTY: Final = {"lock": "", "last_reserved_ip.0": IP}
TAKEN, HELD_TWICE = ViolationKind.TAKEN, ViolationKind.HELD_TWICE


class Events:
    """A list of events, one second apart; `since` overrides the start of a read."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    @property
    def now(self) -> float:
        return float(len(self.events))

    def action(self, action: Action, sandbox: str = FIRST, ip: str = "") -> "Events":
        self.events.append(ActionEvent(self.now, action, sandbox, ip))
        return self

    def holds(self, sandbox: str = FIRST) -> "Events":
        return self.action(Action.CREATED, sandbox).action(Action.ADDED, sandbox, IP)

    def seen(self, found: str | None, since: float | None = None) -> "Events":
        self.events.append(FileRead(self.now, self.now if since is None else since, IP, found))
        return self

    def deleted(self, sandbox: str = FIRST) -> "Events":
        return self.action(Action.DEL_CALLED, sandbox)

    def removed(self) -> "Events":
        return self.action(Action.RM_CALLED)

    def kinds(self, left: dict[str, str] | None = None) -> Sequence[ViolationKind]:
        return [violation.kind for violation in check(self.events, self.now, EMPTY if left is None else left)]


def held() -> Events:
    return Events().holds()


def test_a_complete_lifecycle_is_no_violation() -> None:
    ended = held().seen(FIRST).deleted().seen(None).removed()
    assert ended.holds(SECOND).seen(SECOND).deleted(SECOND).kinds() == []


def test_a_holder_without_its_file_is_reported_once() -> None:
    assert held().seen(FIRST).seen(None).seen(None).kinds() == [TAKEN]
    assert held().seen("").kinds() == [TAKEN]
    assert held().action(Action.CREATED, SECOND).seen(SECOND).kinds() == [TAKEN, HELD_TWICE]


def test_the_container_of_a_killed_worker_holds_its_address_until_it_is_removed() -> None:
    assert held().seen(None).removed().kinds() == [TAKEN]


def test_the_reservation_of_a_killed_add_is_held_from_its_first_read() -> None:
    def killed() -> Events:
        return Events().action(Action.CREATED).seen(FIRST).action(Action.KILLED)

    assert killed().seen(None).kinds() == [TAKEN]
    assert killed().deleted().seen(None).kinds() == []
    assert Events().action(Action.CREATED).action(Action.KILLED).seen(None).kinds() == []


def test_an_address_of_two_sandboxes_is_held_twice_even_if_the_removal_was_not_observed() -> None:
    assert held().holds(SECOND).seen(SECOND).kinds() == [HELD_TWICE]
    assert held().seen(None).holds(SECOND).seen(SECOND).kinds() == [TAKEN, HELD_TWICE]
    # The second holder is checked too.
    assert held().seen(None).holds(SECOND).deleted().seen(None).kinds() == [TAKEN, HELD_TWICE, TAKEN]


def test_a_leak_is_a_violation_only_if_it_stays() -> None:
    assert held().removed().seen(None).holds(SECOND).seen(SECOND).deleted(SECOND).kinds() == []
    assert held().removed().seen(FIRST).kinds({**EMPTY, IP: FIRST}) == [ViolationKind.UNRECLAIMED]


def test_any_other_file_left_in_the_store_is_a_violation() -> None:
    for left in ({IP: ""}, {IP: SECOND}, {"quarantine": "(a directory)"}, {f".{IP}.tmp": FIRST}):
        assert held().deleted().kinds({**EMPTY, **left}) == [ViolationKind.LEFT_OVER]


def test_a_read_that_overlaps_a_change_is_no_evidence() -> None:
    assert held().seen(None, since=0.5).seen(FIRST).kinds() == []
    assert held().deleted().seen(None, since=1.5).kinds() == []
    assert held().deleted().holds(SECOND).seen(FIRST, since=1.5).seen(SECOND).kinds() == []


def test_leaks_are_counted_once_with_their_lifetime() -> None:
    checker = Checker()
    for event in held().removed().seen(FIRST).seen(None).seen(FIRST, since=2.5).events:
        checker.record(event)
    assert (checker.leaked, checker.reclaim_seconds) == (1, [2.0])


def test_a_violation_is_one_line_with_the_trail_of_its_address() -> None:
    events = held().seen(FIRST).seen(None)
    (violation,) = check(events.events, events.now, EMPTY)
    line = violation.line(began=0)
    assert "3.000 s  taken from its holder: 10.254.77.10 of aaaaaaaaaaaa: found no file [" in line
    assert "1.000 ADD returned to aaaaaaaaaaaa; 2.000 seen with aaaaaaaaaaaa; 3.000 seen no file" in line
