"""The checker reports every violation and nothing else, on short histories of one address."""

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

    def created(self, sandbox: str = FIRST) -> "Events":
        return self.action(Action.CREATED, sandbox)

    def holds(self, sandbox: str = FIRST) -> "Events":
        return self.created(sandbox).action(Action.ADDED, sandbox, IP)

    def seen(self, found: str | None, since: float | None = None) -> "Events":
        self.events.append(FileRead(self.now, self.now if since is None else since, IP, found))
        return self

    def deleted(self, sandbox: str = FIRST) -> "Events":
        return self.action(Action.DEL_CALLED, sandbox)

    def removed(self) -> "Events":
        return self.action(Action.RM_CALLED)

    def killed(self) -> "Events":
        return self.action(Action.KILLED)


def held() -> Events:
    return Events().holds()


def test_every_violation_is_reported_and_nothing_else() -> None:
    for what, events, expected in (
        (
            "a complete lifecycle",
            held()
            .seen(FIRST)
            .deleted()
            .seen(None)
            .removed()
            .holds(SECOND)
            .seen(SECOND)
            .deleted(SECOND),
            [],
        ),
        (
            "a holder without its file, reported once",
            held().seen(FIRST).seen(None).seen(None),
            [TAKEN],
        ),
        ("a holder with an empty file", held().seen(""), [TAKEN]),
        (
            "a holder with the file of another",
            held().created(SECOND).seen(SECOND),
            [TAKEN, HELD_TWICE],
        ),
        (
            "the container of a killed worker holds until it is removed",
            held().seen(None).removed(),
            [TAKEN],
        ),
        (
            "a killed ADD holds from its first read",
            Events().created().seen(FIRST).killed().seen(None),
            [TAKEN],
        ),
        ("until its DEL", Events().created().seen(FIRST).killed().deleted().seen(None), []),
        ("a killed ADD that had reserved nothing", Events().created().killed().seen(None), []),
        ("two holders", held().holds(SECOND).seen(SECOND), [HELD_TWICE]),
        ("two holders in turn", held().seen(None).holds(SECOND).seen(SECOND), [TAKEN, HELD_TWICE]),
        (
            "the second holder is checked too",
            held().seen(None).holds(SECOND).deleted().seen(None),
            [TAKEN, HELD_TWICE, TAKEN],
        ),
        (
            "a reclaimed leak",
            held().removed().seen(None).holds(SECOND).seen(SECOND).deleted(SECOND),
            [],
        ),
        ("a read that overlaps an ADD", held().seen(None, since=0.5).seen(FIRST), []),
        ("a read that overlaps a DEL", held().deleted().seen(None, since=1.5), []),
        (
            "a read that overlaps another ADD",
            held().deleted().holds(SECOND).seen(FIRST, since=1.5).seen(SECOND),
            [],
        ),
    ):
        assert [
            violation.kind for violation in check(events.events, events.now, EMPTY)
        ] == expected, what


def test_a_leak_or_any_other_file_that_stays_is_a_violation() -> None:
    leak, ended = held().removed().seen(FIRST), held().deleted()
    (violation,) = check(leak.events, leak.now, {**EMPTY, IP: FIRST})
    assert violation.kind is ViolationKind.UNRECLAIMED
    for left in ({IP: ""}, {IP: SECOND}, {"quarantine": "(a directory)"}, {f".{IP}.tmp": FIRST}):
        (violation,) = check(ended.events, ended.now, {**EMPTY, **left})
        assert violation.kind is ViolationKind.LEFT_OVER


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
    assert (
        "1.000 ADD returned to aaaaaaaaaaaa; 2.000 seen with aaaaaaaaaaaa; 3.000 seen no file"
        in line
    )
