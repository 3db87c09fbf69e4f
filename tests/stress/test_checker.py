"""The checker reports every violation and nothing else, on short histories of one address."""

from collections.abc import Sequence
from typing import Final

from tests.stress.checker import Checker, check
from tests.stress.events import Action, ActionEvent, Claim, Event, FileRead, ViolationKind

IP: Final = "10.254.77.10"
FIRST, SECOND = "a" * 64, "b" * 64
EMPTY: Final = {"lock": "", "last_reserved_ip.0": IP}


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

    def kinds(self, left: dict[str, str] | None = None) -> Sequence[ViolationKind]:
        return [one.kind for one in check(self.events, self.now, EMPTY if left is None else left)]


def test_a_complete_lifecycle_is_no_violation() -> None:
    events = (
        Events()
        .holds()
        .seen(FIRST)
        .action(Action.DEL_CALLED)
        .seen(None)
        .action(Action.DELETED)
        .action(Action.RM_CALLED)
    )

    assert events.action(Action.REMOVED).holds(SECOND).seen(SECOND).action(Action.DEL_CALLED, SECOND).kinds() == []


def test_a_holder_without_its_file_is_reported_once() -> None:
    assert Events().holds().seen(FIRST).seen(None).seen(None).kinds() == [ViolationKind.TAKEN]


def test_a_holder_whose_file_is_empty_or_has_another_id_is_reported() -> None:
    assert Events().holds().seen("").kinds() == [ViolationKind.TAKEN]
    assert Events().holds().action(Action.CREATED, SECOND).seen(SECOND).kinds() == [
        ViolationKind.TAKEN,
        ViolationKind.HELD_TWICE,
    ]


def test_the_container_of_a_killed_worker_holds_its_address_until_docker_rm() -> None:
    killed_after_add = Events().holds()

    assert killed_after_add.seen(None).action(Action.RM_CALLED).kinds() == [ViolationKind.TAKEN]


def test_the_reservation_of_a_killed_add_is_held_from_its_first_read() -> None:
    def killed() -> Events:
        return Events().action(Action.CREATED).seen(FIRST).action(Action.KILLED)

    assert killed().seen(None).kinds() == [ViolationKind.TAKEN]
    assert killed().action(Action.DEL_CALLED).seen(None).kinds() == []
    assert Events().action(Action.CREATED).action(Action.KILLED).seen(None).kinds() == []


def test_an_address_of_two_sandboxes_is_held_twice_even_if_the_removal_was_not_observed() -> None:
    assert Events().holds().holds(SECOND).seen(SECOND).kinds() == [ViolationKind.HELD_TWICE]
    assert Events().holds().seen(None).holds(SECOND).seen(SECOND).kinds() == [
        ViolationKind.TAKEN,
        ViolationKind.HELD_TWICE,
    ]


def test_the_second_holder_of_an_address_is_checked_too() -> None:
    lost = Events().holds().seen(None).holds(SECOND).action(Action.DEL_CALLED, FIRST)

    assert lost.seen(None).kinds() == [ViolationKind.TAKEN, ViolationKind.HELD_TWICE, ViolationKind.TAKEN]


def test_a_leak_that_is_reclaimed_is_no_violation() -> None:
    events = Events().holds().action(Action.RM_CALLED).seen(None).action(Action.REMOVED)

    assert events.kinds() == []
    assert events.holds(SECOND).seen(SECOND).action(Action.DEL_CALLED, SECOND).kinds() == []


def test_a_leak_that_stays_is_a_violation() -> None:
    leaked = Events().holds().action(Action.RM_CALLED).action(Action.REMOVED).seen(FIRST)

    assert leaked.kinds({**EMPTY, IP: FIRST}) == [ViolationKind.UNRECLAIMED]


def test_any_other_file_left_in_the_store_is_a_violation() -> None:
    for left in ({IP: ""}, {IP: SECOND}, {"quarantine": "(a directory)"}, {f".{IP}.tmp": FIRST}):
        assert Events().holds().action(Action.DEL_CALLED).kinds({**EMPTY, **left}) == [ViolationKind.LEFT_OVER]


def test_a_read_that_began_before_add_returned_is_no_evidence() -> None:
    assert Events().holds().seen(None, since=0.5).seen(FIRST).kinds() == []


def test_a_read_recorded_after_del_was_called_is_no_evidence() -> None:
    assert Events().holds().action(Action.DEL_CALLED).seen(None, since=1.5).kinds() == []


def test_an_old_read_of_the_previous_holder_is_no_evidence_against_the_next() -> None:
    events = Events().holds().action(Action.DEL_CALLED).action(Action.DELETED).holds(SECOND)

    assert events.seen(FIRST, since=1.5).seen(SECOND).kinds() == []


def test_an_exhausted_range_leaves_nothing_to_leak() -> None:
    events = Events().action(Action.CREATED).action(Action.EXHAUSTED).action(Action.RM_CALLED)

    assert events.kinds() == []


def test_leaks_are_counted_once_with_their_lifetime() -> None:
    checker = Checker()
    for event in Events().holds().action(Action.RM_CALLED).seen(FIRST).seen(None).seen(FIRST, since=2.5).events:
        checker.record(event)

    assert (checker.leaked, checker.reclaim_seconds, checker.leaks) == (1, [2.0], {})


def test_a_leak_known_only_by_its_file_is_counted() -> None:
    checker = Checker()
    for event in Events().action(Action.CREATED).action(Action.RM_CALLED).seen(FIRST).events:
        checker.record(event)

    assert checker.leaks == {IP: FIRST}


def test_a_violation_is_one_line_with_the_trail_of_its_address() -> None:
    events = Events().holds().seen(FIRST)
    events.events.append(Claim(events.now, IP, "nodeleak said released"))
    (violation,) = check(events.seen(None).events, events.now, EMPTY)

    line = violation.line(began=0)
    assert "4.000 s  taken from its holder: 10.254.77.10 of aaaaaaaaaaaa: found no file [" in line
    assert "1.000 ADD returned to aaaaaaaaaaaa; 2.000 seen with aaaaaaaaaaaa; 3.000 nodeleak said released;" in line
