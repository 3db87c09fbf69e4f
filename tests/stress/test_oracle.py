"""The oracle convicts what is wrong, and nothing else: histories of one address, told as the torture tells them."""

from collections.abc import Sequence
from typing import Final

from tests.stress.history import Deed, Did, Event, Looked, Said, Wrong
from tests.stress.oracle import Oracle, judge

IP: Final = "10.254.77.10"
ANNA, BERT = "a" * 64, "b" * 64
EMPTY: Final = {"lock": "", "last_reserved_ip.0": IP}


class Story:
    """Events, a second after one another unless it is said when a look began."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    @property
    def now(self) -> float:
        return float(len(self.events))

    def did(self, deed: Deed, sandbox: str = ANNA, ip: str = "") -> "Story":
        self.events.append(Did(self.now, deed, sandbox, ip))
        return self

    def holds(self, sandbox: str = ANNA) -> "Story":
        return self.did(Deed.CREATED, sandbox).did(Deed.ADDED, sandbox, IP)

    def seen(self, found: str | None, since: float | None = None) -> "Story":
        self.events.append(Looked(self.now, self.now if since is None else since, IP, found))
        return self

    def wrongs(self, left: dict[str, str] | None = None) -> Sequence[Wrong]:
        return [one.wrong for one in judge(self.events, self.now, EMPTY if left is None else left)]


def test_a_whole_life_is_no_violation() -> None:
    story = Story().holds().seen(ANNA).did(Deed.DEL_CALLED).seen(None).did(Deed.DELETED).did(Deed.RM_CALLED)

    assert story.did(Deed.REMOVED).holds(BERT).seen(BERT).did(Deed.DEL_CALLED, BERT).wrongs() == []


def test_a_holder_without_its_file_was_robbed_and_is_told_once() -> None:
    assert Story().holds().seen(ANNA).seen(None).seen(None).wrongs() == [Wrong.TAKEN]


def test_a_holder_whose_file_is_empty_or_anothers_was_robbed() -> None:
    assert Story().holds().seen("").wrongs() == [Wrong.TAKEN]
    assert Story().holds().did(Deed.CREATED, BERT).seen(BERT).wrongs() == [Wrong.TAKEN, Wrong.HELD_TWICE]


def test_the_address_of_a_killed_worker_is_its_containers_until_docker_rm_is_called() -> None:
    killed_after_add = Story().holds()

    assert killed_after_add.seen(None).did(Deed.RM_CALLED).wrongs() == [Wrong.TAKEN]


def test_what_a_killed_add_has_reserved_is_held_from_its_first_sight() -> None:
    def killed() -> Story:
        return Story().did(Deed.CREATED).seen(ANNA).did(Deed.KILLED)

    assert killed().seen(None).wrongs() == [Wrong.TAKEN]
    assert killed().did(Deed.DEL_CALLED).seen(None).wrongs() == []
    assert Story().did(Deed.CREATED).did(Deed.KILLED).seen(None).wrongs() == []


def test_an_address_given_to_two_is_held_twice_even_if_nobody_saw_the_theft() -> None:
    assert Story().holds().holds(BERT).seen(BERT).wrongs() == [Wrong.HELD_TWICE]
    assert Story().holds().seen(None).holds(BERT).seen(BERT).wrongs() == [Wrong.TAKEN, Wrong.HELD_TWICE]


def test_the_second_holder_of_a_stolen_address_is_watched_too() -> None:
    robbed = Story().holds().seen(None).holds(BERT).did(Deed.DEL_CALLED, ANNA)

    assert robbed.seen(None).wrongs() == [Wrong.TAKEN, Wrong.HELD_TWICE, Wrong.TAKEN]


def test_a_leak_that_is_reclaimed_is_no_violation() -> None:
    story = Story().holds().did(Deed.RM_CALLED).seen(None).did(Deed.REMOVED)

    assert story.wrongs() == []
    assert story.holds(BERT).seen(BERT).did(Deed.DEL_CALLED, BERT).wrongs() == []


def test_a_leak_that_stays_is_a_violation() -> None:
    leaked = Story().holds().did(Deed.RM_CALLED).did(Deed.REMOVED).seen(ANNA)

    assert leaked.wrongs({**EMPTY, IP: ANNA}) == [Wrong.UNRECLAIMED]


def test_whatever_else_is_in_the_store_in_the_end_is_a_violation() -> None:
    for left in ({IP: ""}, {IP: BERT}, {"quarantine": "(a directory)"}, {f".{IP}.tmp": ANNA}):
        assert Story().holds().did(Deed.DEL_CALLED).wrongs({**EMPTY, **left}) == [Wrong.LEFT_OVER]


def test_a_look_that_began_before_add_returned_convicts_nobody() -> None:
    assert Story().holds().seen(None, since=0.5).seen(ANNA).wrongs() == []


def test_a_look_that_is_told_after_del_was_called_convicts_nobody() -> None:
    assert Story().holds().did(Deed.DEL_CALLED).seen(None, since=1.5).wrongs() == []


def test_an_old_sight_of_the_last_owner_is_not_held_against_the_next_one() -> None:
    story = Story().holds().did(Deed.DEL_CALLED).did(Deed.DELETED).holds(BERT)

    assert story.seen(ANNA, since=1.5).seen(BERT).wrongs() == []


def test_an_exhausted_range_leaves_nothing_to_leak() -> None:
    story = Story().did(Deed.CREATED).did(Deed.EXHAUSTED).did(Deed.RM_CALLED)

    assert story.wrongs() == []


def test_it_counts_leaks_once_and_how_long_they_last() -> None:
    oracle = Oracle()
    for event in Story().holds().did(Deed.RM_CALLED).seen(ANNA).seen(None).seen(ANNA, since=2.5).events:
        oracle.hear(event)

    assert (oracle.leaked, oracle.reclaim_seconds, oracle.leaks) == (1, [2.0], {})


def test_a_leak_known_only_by_its_file_is_one_too() -> None:
    oracle = Oracle()
    for event in Story().did(Deed.CREATED).did(Deed.RM_CALLED).seen(ANNA).events:
        oracle.hear(event)

    assert oracle.leaks == {IP: ANNA}


def test_a_violation_is_one_line_with_what_happened_to_the_address() -> None:
    story = Story().holds().seen(ANNA)
    story.events.append(Said(story.now, IP, "nodeleak said released"))
    (violation,) = judge(story.seen(None).events, story.now, EMPTY)

    line = violation.line(began=0)
    assert "4.000 s  taken from its holder: 10.254.77.10 of aaaaaaaaaaaa: found no file [" in line
    assert "1.000 ADD returned to aaaaaaaaaaaa; 2.000 seen with aaaaaaaaaaaa; 3.000 nodeleak said released;" in line
