"""Each guard: silent on a clean leak, and a no with its reason and its remedy where there is one."""

import inspect
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import pytest

from agent import config
from agent.cleanup import guards
from agent.cleanup.candidates import candidates, passed_over
from agent.cleanup.case import Case
from agent.cleanup.guards import judge
from agent.cleanup.vigil import FEWEST_CONTAINERS, Vigil, watch
from agent.cli import main
from agent.model.release import Candidate, Limits, Reason, Refusal
from agent.model.scene import State
from agent.model.snapshot import SOURCES, Address, Checkpoint, Container, Node, NotAsked, Reservation, Snapshot
from tests.builders import (
    ADDRESSES,
    CHECKPOINTS,
    CONTAINERS,
    GRACE,
    NOW,
    PODS,
    RESERVATIONS,
    UPTIME,
    Thing,
    case,
    cni_result,
    daemons,
    empty_file,
    foreign,
    limits,
    node,
    pod,
    reservation,
    sandbox,
    scanned,
    scene,
    unread,
    verdicts,
    without,
    without_api,
)

SECOND = timedelta(seconds=1)
THE_ID, THE_IP = "9" * 64, "10.244.1.9"
LEAK = reservation(THE_IP)
LEAK6 = reservation("fd00::9")
DUAL: dict[str, Any] = {"node": [Node("worker-1", ("10.244.1.0/24", "fd00::/64"), 110)]}


def refusals(*looks: Snapshot, bold: Limits | None = None, **known: Any) -> tuple[Refusal, ...]:
    """Say what stands against the one candidate of a node."""
    (judged,) = verdicts(case(*looks, bold=bold, **known)).values()
    return judged


def reasons(*looks: Snapshot, bold: Limits | None = None, **known: Any) -> list[Reason]:
    return [one.reason for one in refusals(*looks, bold=bold, **known)]


def only(*ips: str, **changes: Any) -> Limits:
    return limits(only=frozenset(ips), **changes)


def leaks(count: int, age: timedelta = timedelta(hours=2)) -> list[Reservation]:
    """Return leaks of different sandboxes, the first the oldest."""
    return [reservation(f"10.244.1.{10 + n}", f"{n:064x}", age=age - n * SECOND) for n in range(1, count + 1)]


# What could be released


def test_nothing_stands_against_a_clean_leak() -> None:
    assert verdicts(case(node(LEAK))) == {THE_IP: ()}
    assert verdicts(case(without_api(node(LEAK)))) == {THE_IP: ()}


def test_a_healthy_node_has_no_candidate() -> None:
    assert candidates(scene(node())) == ()
    assert judge(case(node())) == ()


def test_what_docker_lists_in_any_state_is_no_candidate() -> None:
    stopped = node(LEAK, sandbox(THE_ID, "shop/gone", "exited"))
    assert candidates(scene(stopped)) == ()


def test_what_is_not_host_locals_is_no_candidate() -> None:
    assert candidates(scene(node(foreign("notes.txt"), foreign("10.244.1.77", blocks=True)))) == ()


def test_without_dockers_word_there_is_no_candidate() -> None:
    assert candidates(scene(without(node(LEAK), "containers"))) == ()
    left_alone = replace(node(LEAK), containers=NotAsked("containers", "for no reason"))
    assert candidates(scene(left_alone)) == ()


def test_a_sandbox_is_one_candidate_over_families_and_networks_and_an_empty_file_is_one_alone() -> None:
    other = reservation("10.9.0.2", network="storage", ifname="net1")
    empty = [empty_file("10.244.1.30"), empty_file("10.244.1.31")]
    found = candidates(scene(node(other, LEAK6, LEAK, *empty)))
    assert [one.reservations for one in found] == [(LEAK, LEAK6, other), *((one,) for one in empty)]
    assert found[0].networks == ("kubenet", "storage")


def test_two_networks_may_have_an_empty_file_of_one_address() -> None:
    twins = [empty_file(THE_IP), replace(empty_file(THE_IP), network="storage")]
    assert [one.reservations for one in candidates(scene(node(*twins)))] == [(twins[0],), (twins[1],)]


def test_asked_for_by_name_a_sandbox_is_gathered_whole() -> None:
    gathered = candidates(scene(node(LEAK, LEAK6, *leaks(2))), frozenset({"fd00::9"}))
    assert [one.reservations for one in gathered] == [(LEAK, LEAK6)]
    assert candidates(scene(node(LEAK)), frozenset({"10.244.1.200"})) == ()
    assert candidates(scene(node(LEAK)), frozenset()) == ()


def test_of_what_was_asked_for_and_is_no_candidate_it_is_said_what_it_is() -> None:
    asked = frozenset({THE_IP, "10.244.1.2", "10.244.1.77", "10.244.1.99"})
    looked = scene(node(LEAK, foreign("10.244.1.77", blocks=True)))
    assert [(one.ip, one.network, one.why) for one in passed_over(looked, asked)] == [
        ("10.244.1.2", "kubenet", "in use: its container is running"),
        ("10.244.1.77", "kubenet", "foreign: it is a directory"),
        ("10.244.1.99", "", "not reserved"),
    ]
    assert passed_over(looked, None) == ()
    (silent,) = passed_over(scene(without(node(LEAK), "reservations")), frozenset({THE_IP}))
    assert silent.why == "not known: network kubenet was not read"


def test_an_empty_file_can_be_released_like_any_leak() -> None:
    assert refusals(node(empty_file(THE_IP))) == ()


# Every reason, and what lifts it


@dataclass(frozen=True)
class Situation:
    """Looks at a node with one thing wrong with its one leak, or with the bounds that are set."""

    reason: Reason
    looks: tuple[Snapshot, ...]
    bold: Limits = field(default_factory=limits)
    known: dict[str, Any] = field(default_factory=dict)
    command: str = "clean"

    @property
    def case(self) -> Case:
        return case(*self.looks, bold=self.bold, **self.known)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return judge(self.case)[-1][1]


def situation(reason: Reason, *looks: Snapshot, bold: Limits | None = None, **more: Any) -> Situation:
    command = more.pop("command", "clean")
    return Situation(reason, looks, bold or limits(), more, command)


HALF_THE_RANGE = leaks(127)
BUDGETS: dict[str, tuple[Limits, dict[str, int], str]] = {
    "clean": (limits(allowances=(("--max", 2),)), {}, "--max=3"),
    "run, a round": (limits(allowances=(("--max-per-round", 2), ("--max-per-hour", 9))), {}, "--max-per-round=3"),
    "run, an hour": (
        limits(allowances=(("--max-per-round", 10), ("--max-per-hour", 2))),
        {"--max-per-hour": 58},
        "--max-per-hour=61",
    ),
    "run, both": (
        limits(allowances=(("--max-per-round", 2), ("--max-per-hour", -3))),
        {"--max-per-hour": 63},
        "--max-per-round=3 --max-per-hour=66",
    ),
}
OUTSIDE = reservation("10.250.0.9")
SITUATIONS = (
    situation(Reason.STOPPED, node(LEAK), stopped="container 999999999999 is there again"),
    situation(Reason.SOURCE_UNREAD, without(node(LEAK), "node")),
    situation(Reason.NETWORK_NOT_ALLOWED, node(LEAK), bold=limits(networks=frozenset({"storage"}))),
    situation(Reason.TEARDOWN_PENDING, node(LEAK, Checkpoint(THE_ID, "shop/gone"))),
    situation(Reason.ADDRESS_ALIVE, node(LEAK, Address(THE_IP, 77, "java"))),
    situation(Reason.CLAIMED_BY_POD, node(LEAK, pod("shop/late", THE_IP, phase="Pending"))),
    situation(Reason.TOO_YOUNG, node(reservation(THE_IP, age=GRACE - SECOND))),
    situation(Reason.OUTSIDE_RANGE, node(OUTSIDE)),
    situation(Reason.OUTSIDE_RANGE, node(LEAK, node=[], cni_results=[])),
    situation(Reason.PARTIAL_SANDBOX, node(LEAK, LEAK6, **DUAL), bold=only(THE_IP)),
    situation(Reason.RUNTIME_DOUBTFUL, node(reservations=[LEAK], checkpoints=[], containers=[])),
    situation(Reason.UNSETTLED, node(LEAK, daemons=[daemons(kubelet=GRACE - SECOND)])),
    situation(Reason.UNSETTLED, node(LEAK, daemons=[])),
    situation(Reason.IMPLAUSIBLE_SHARE, node(*HALF_THE_RANGE)),
    situation(Reason.JOURNAL_UNWRITABLE, node(LEAK), journal_trouble="/var/lib/nodeleak is mounted read-only"),
    *(
        situation(
            Reason.OVER_BUDGET,
            node(*leaks(2), reservation("10.244.1.8", age=timedelta(hours=1))),
            bold=bold,
            spent=spent,
            command=name.partition(",")[0],
        )
        for name, (bold, spent, _) in BUDGETS.items()
    ),
)
each = pytest.mark.parametrize("wrong", SITUATIONS, ids=lambda one: one.reason.value)


@each
def test_one_wrong_thing_is_one_refusal_with_its_reason(wrong: Situation) -> None:
    assert [one.reason for one in wrong.refusals] == {
        # The young are not confirmed either, and claims and checkpoints are the state's business too.
        Reason.SOURCE_UNREAD: [Reason.SOURCE_UNREAD],
        Reason.TEARDOWN_PENDING: [Reason.TEARDOWN_PENDING, Reason.TOO_YOUNG],
        Reason.ADDRESS_ALIVE: [Reason.ADDRESS_ALIVE, Reason.TOO_YOUNG],
        Reason.CLAIMED_BY_POD: [Reason.CLAIMED_BY_POD, Reason.TOO_YOUNG],
    }.get(wrong.reason, [wrong.reason])
    assert all(one.why for one in wrong.refusals)


def test_every_reason_can_be_given() -> None:
    # What docker lists is no candidate: for that reason a candidate must be mistaken, or docker be asked once more.
    assert set(Reason) == {one.reason for one in SITUATIONS} | {Reason.CONTAINER_EXISTS}
    assert reason_of(guards.no_container, RESERVATIONS[0]) is Reason.CONTAINER_EXISTS


def test_every_guard_is_asked() -> None:
    def is_guard(one: object) -> bool:
        return inspect.isfunction(one) and list(inspect.signature(one).parameters.values())[-1].annotation is Case

    written = {name for name, one in inspect.getmembers(guards, is_guard) if not name.startswith("_")}
    assert written - {"judge"} == {guard.__name__ for guard in guards.GUARDS}
    assert len(set(guards.GUARDS)) == len(guards.GUARDS)


def reason_of(guard: guards.Guard, *reservations: Reservation, snapshot: Snapshot | None = None) -> Reason | None:
    no = guard(Candidate(reservations), case(snapshot or node()))
    return None if no is None else no.reason


def applied(wrong: Situation, words: list[str]) -> Situation:
    """Say again what was asked for, with these options more, as the front door reads them."""
    given = [word.removeprefix("--").split("=", 1) for word in words]
    options = {name.replace("-", "_"): value for name, value in given if name not in {"ip", "max"}}
    read = config.load(wrong.command, {"api": "off", **options}, {})
    ips = frozenset(str(ip_address(value)) for name, value in given if name == "ip")
    most = {"max_per_round": read.max_per_round, "max_per_hour": read.max_per_hour}
    most |= {name: config.positive(value) for name, value in given if name == "max"}
    changes: dict[str, Any] = {name: getattr(read, name) for name in options if name not in most}
    if "cleanup_network" in changes:
        changes["networks"] = frozenset(changes.pop("cleanup_network"))
    if ips:
        changes["only"] = (wrong.bold.only or frozenset()) | ips
    allowances = tuple(
        (setting, most[name] - wrong.known["spent"].get(setting, 0) if name in {*options, "max"} else left)
        for setting, left in wrong.bold.allowances
        if (name := setting.removeprefix("--").replace("-", "_"))
    )
    return replace(wrong, bold=replace(wrong.bold, allowances=allowances, **changes))


@each
def test_the_setting_that_a_refusal_names_lifts_it(wrong: Situation) -> None:
    no = wrong.refusals[0]
    lifted = applied(wrong, no.setting.split()) if no.setting else wrong
    assert (lifted.refusals == ()) is bool(no.setting)


@each
def test_a_setting_is_one_that_the_commands_have(wrong: Situation, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([wrong.command, "--help"])
    helped = capsys.readouterr().out
    for no in wrong.refusals:
        for word in no.setting.split():
            assert f"  {word.partition('=')[0]} " in helped


NO_SETTING = {
    Reason.STOPPED, Reason.SOURCE_UNREAD, Reason.CONTAINER_EXISTS, Reason.TEARDOWN_PENDING, Reason.ADDRESS_ALIVE,
    Reason.CLAIMED_BY_POD, Reason.RUNTIME_DOUBTFUL, Reason.JOURNAL_UNWRITABLE,
}  # fmt: skip


@each
def test_nothing_lifts_what_somebody_owns_or_nobody_read(wrong: Situation) -> None:
    assert (wrong.refusals[0].setting == "") is (wrong.reason in NO_SETTING)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (SITUATIONS[1], "node: it gave no word"),
        (SITUATIONS[2], "network kubenet is not to be cleaned"),
        (SITUATIONS[4], "process 77 (java) has 10.244.1.9 configured"),
        (SITUATIONS[5], "the pod shop/late has 10.244.1.9"),
        (SITUATIONS[6], "299 s old, and --grace is 300 s"),
        (SITUATIONS[7], "10.250.0.9 is not given out from 10.244.1.1-10.244.1.254"),
        (SITUATIONS[9], "its sandbox has fd00::9 too, and is released whole or not at all"),
        (SITUATIONS[11], "the kubelet started 299 s ago, and --settle is 300 s"),
        (SITUATIONS[13], "50% of network kubenet looks leaked, and --max-share is 50%"),
        (SITUATIONS[15], "2 may be released now (--max); up to it there are 3"),
    ],
    ids=lambda one: one.reason.value if isinstance(one, Situation) else "",
)
def test_a_refusal_says_what_is_wrong_in_numbers_and_names(wrong: Situation, why: str) -> None:
    assert wrong.refusals[0].why == why


def test_all_that_stands_against_a_release_is_said_the_weightiest_first() -> None:
    wrong = node(reservation("10.250.0.9", age=SECOND), Checkpoint(THE_ID, ""), daemons=[daemons(docker=None)])
    said = reasons(wrong, bold=limits(networks=frozenset()), stopped="once more", journal_trouble="no")
    assert said == [
        Reason.STOPPED,
        Reason.NETWORK_NOT_ALLOWED,
        Reason.TEARDOWN_PENDING,
        Reason.TOO_YOUNG,
        Reason.OUTSIDE_RANGE,
        Reason.UNSETTLED,
        Reason.JOURNAL_UNWRITABLE,
    ]


# Vetoes: asked of the snapshot itself, whatever the state says


def mistaken(judged: Case) -> Case:
    """Make every reservation a leak that two looks found: as if the judgment before were wrong."""
    told = replace(
        judged.scene, occupancies=tuple(replace(one, state=State.LEAKED) for one in judged.scene.occupancies)
    )
    confirmed = scanned(node(*(one for one in judged.states)), patience=timedelta(0)).findings
    assert {one.finding.detector for one in confirmed} >= {"leaked_reservation"}
    return replace(judged, report=replace(judged.report, scene=told, findings=confirmed))


@pytest.mark.parametrize(
    ("owner", "reason"),
    [
        (Checkpoint(THE_ID, ""), Reason.TEARDOWN_PENDING),
        (Address(THE_IP, 1, ""), Reason.ADDRESS_ALIVE),
        (Address("fd00::9", 1, ""), Reason.ADDRESS_ALIVE),
        (pod("shop/a", THE_IP, phase=""), Reason.CLAIMED_BY_POD),
        (pod("", "192.0.2.1", "fd00::9", phase="Unknown"), Reason.CLAIMED_BY_POD),
        (pod("shop/web", THE_IP, deleting=True), Reason.CLAIMED_BY_POD),
    ],
)
def test_a_veto_does_not_rest_on_what_was_judged_before(owner: Any, reason: Reason) -> None:
    assert verdicts(mistaken(case(node(LEAK, LEAK6, **DUAL)))) == {f"{THE_IP} fd00::9": ()}
    (said,) = verdicts(mistaken(case(node(LEAK, LEAK6, owner, **DUAL)))).values()
    assert [one.reason for one in said] == [reason]


@pytest.mark.parametrize("source", ["checkpoints", "addresses", "pods", "daemons"])
@pytest.mark.parametrize("kind", [unread, lambda source: NotAsked(source, "it was left alone")])
def test_a_veto_that_cannot_be_asked_is_a_no(source: str, kind: Callable[[str], Any]) -> None:
    changed: dict[str, Any] = {source: kind(source)}
    silent = mistaken(case(node(LEAK)))
    told = replace(silent.scene, snapshot=replace(silent.snapshot, **changed))
    (said,) = verdicts(replace(silent, report=replace(silent.report, scene=told))).values()
    if (source, type(changed[source])) == ("pods", NotAsked):
        assert said == (), "pods may be left alone on purpose: the other witnesses decide"
    else:
        assert Reason.SOURCE_UNREAD in {one.reason for one in said}


@pytest.mark.parametrize("source", sorted({*SOURCES} - {"device_plugins"}))
def test_one_silent_source_is_enough_to_do_nothing(source: str) -> None:
    silent = without(node(LEAK), source)
    assert all(no and no[0].reason is Reason.SOURCE_UNREAD for no in verdicts(case(silent)).values())


def test_device_plugins_have_no_say_in_an_address() -> None:
    silent = without(node(LEAK), "device_plugins")
    assert all(no == () for no in verdicts(case(silent)).values())


def test_another_network_that_was_not_read_is_enough_too() -> None:
    assert Reason.SOURCE_UNREAD in reasons(node(LEAK, unread_networks=["storage"]))


def test_what_is_no_owner_is_no_veto() -> None:
    hosts = pod("kube-system/agent", THE_IP, host_network=True)
    done: list[Thing] = [pod("shop/job", THE_IP, phase="Succeeded"), pod("shop/cron", THE_IP, phase="Failed")]
    others: list[Thing] = [
        Checkpoint("8" * 64, ""),
        Address("10.244.1.90", 1, "sh"),
        pod("shop/x", "10.244.1.91", phase="Pending"),
    ]
    assert refusals(node(LEAK, hosts, *done, *others)) == ()


def test_an_id_is_the_same_only_with_all_its_digits() -> None:
    short: list[Thing] = [Checkpoint(THE_ID[:12], ""), Container(THE_ID[:12], "running", 0, "", "", sandbox=True)]
    assert refusals(node(LEAK, *short)) == ()


def test_an_empty_file_has_the_vetoes_of_its_address() -> None:
    empty = empty_file(THE_IP)
    assert reasons(node(empty, Address(THE_IP, 1, "sh")))[0] is Reason.ADDRESS_ALIVE
    assert reasons(node(empty, pod("shop/late", THE_IP, phase="Pending")))[0] is Reason.CLAIMED_BY_POD
    assert Reason.TOO_YOUNG in reasons(node(replace(empty, mtime_ns=LEAK.mtime_ns + 7200 * 10**9)))


# A sandbox is judged whole


@pytest.mark.parametrize("saved", [Address("fd00::9", 1, "sh"), pod("shop/late", "fd00::9", phase="Pending")])
def test_one_saved_address_saves_both_of_a_sandbox(saved: Any) -> None:
    (said,) = verdicts(case(node(LEAK, LEAK6, saved, **DUAL))).values()
    assert said


def test_one_young_address_saves_both_of_a_sandbox() -> None:
    young = reservation("fd00::9", age=SECOND)
    assert list(verdicts(case(node(LEAK, young, **DUAL)))) == [f"{THE_IP} fd00::9"]
    assert reasons(node(LEAK, young, **DUAL)) == [Reason.TOO_YOUNG]


def test_a_sandbox_half_in_a_network_that_may_not_be_cleaned_is_refused_whole() -> None:
    other = reservation("10.9.0.2", network="storage", ifname="net1")
    both = node(LEAK, other, cni_result("8" * 64, "shop/x", "10.9.0.0/24", network="storage"))
    (no,) = refusals(both)
    assert (no.reason, no.setting) == (Reason.NETWORK_NOT_ALLOWED, "--cleanup-network=kubenet,storage")
    assert refusals(both, bold=limits(networks=frozenset({"kubenet", "storage"}))) == ()


def test_both_addresses_of_a_sandbox_may_be_asked_for() -> None:
    dual = node(LEAK, LEAK6, **DUAL)
    assert refusals(dual, bold=only(THE_IP, "fd00::9")) == ()
    assert refusals(dual, bold=only("fd00::9"))[0].setting == f"--ip={THE_IP} --ip=fd00::9"


# Age


@pytest.mark.parametrize(("age", "refused"), [(GRACE - timedelta(milliseconds=1), True), (GRACE, False)])
def test_a_file_as_old_as_the_grace_period_is_old_enough(age: timedelta, refused: bool) -> None:
    made = replace(LEAK, mtime_ns=int((NOW - age).timestamp() * 1000) * 10**6)
    assert bool(refusals(node(made))) is refused


def test_without_a_grace_period_only_a_file_of_the_future_is_too_young() -> None:
    bold = limits(grace=timedelta(0))
    assert refusals(node(reservation(THE_IP, age=timedelta(0))), bold=bold) == ()
    for age in (SECOND, timedelta(hours=1)):
        no = refusals(node(reservation(THE_IP, age=-age)), bold=bold)[0]
        assert (no.reason, no.setting) == (Reason.TOO_YOUNG, "")
        assert no.why == f"its file is {age.total_seconds():.0f} s newer than this look"


def test_what_one_look_found_is_too_young_whatever_its_age() -> None:
    once = case(node(LEAK))
    once = replace(once, report=scanned(node(), node(LEAK)))
    (no,) = verdicts(once)[THE_IP]
    assert (no.reason, no.setting) == (Reason.TOO_YOUNG, "")


def test_another_file_under_the_same_address_is_another_leak() -> None:
    replaced = replace(LEAK, inode=LEAK.inode + 1)
    assert reasons(node(LEAK), node(replaced)) == [Reason.TOO_YOUNG]


def test_a_file_of_a_year_that_no_calendar_has_is_judged() -> None:
    assert refusals(node(replace(LEAK, mtime_ns=-(2**62) * 8))) == ()
    assert Reason.TOO_YOUNG in reasons(node(replace(LEAK, mtime_ns=2**62 * 8)))


# The range


@pytest.mark.parametrize("ip", ["10.244.1.1", "10.244.1.255", "10.244.2.9", "10.244.1.0", "fd00::9"])
def test_an_address_that_is_not_given_out_is_released_only_by_name(ip: str) -> None:
    odd = node(reservation(ip), addresses=[])
    (no,) = refusals(odd)
    assert (no.reason, no.setting) == (Reason.OUTSIDE_RANGE, f"--ip={ip}")
    assert refusals(odd, bold=only(ip)) == ()


def test_by_name_or_not_an_owner_is_an_owner() -> None:
    assert Reason.ADDRESS_ALIVE in reasons(node(OUTSIDE, Address(OUTSIDE.ip, 1, "sh")), bold=only(OUTSIDE.ip))
    assert Reason.SOURCE_UNREAD in reasons(without(node(LEAK), "cni_results"), bold=only(THE_IP))


def test_a_range_of_another_network_is_no_range_of_this_one() -> None:
    stray = replace(reservation("10.244.1.9", network="storage"), network="storage")
    bold = limits(networks=frozenset({"storage"}))
    assert reasons(node(stray), bold=bold) == [Reason.OUTSIDE_RANGE]


# docker's list


def watched(*looks: Snapshot) -> Vigil:
    vigil = Vigil()
    for look in looks:
        vigil = watch(vigil, look)
    return vigil


def crowd(count: int) -> list[Container]:
    return [Container(f"{n:064x}", "running", 0, "", "", sandbox=False) for n in range(count)]


@pytest.mark.parametrize(
    ("before", "after", "doubted"),
    [(4, 2, False), (4, 1, True), (4, 0, True), (3, 0, False), (10, 5, False), (11, 5, True), (5, 5, False)],
)
def test_a_list_that_lost_most_of_its_containers_is_doubtful(before: int, after: int, doubted: bool) -> None:
    vigil = watched(node(containers=crowd(before)), node(containers=crowd(after), later=SECOND))
    assert (vigil.doubted == UPTIME + SECOND) is doubted
    assert bool(vigil.why) is doubted


def test_a_loss_is_seen_across_looks_in_which_docker_said_nothing() -> None:
    silent = without(node(later=SECOND), "containers")
    vigil = watched(node(containers=crowd(9)), silent, silent, node(containers=crowd(3), later=2 * SECOND))
    assert vigil.doubted == UPTIME + 2 * SECOND
    assert vigil.why == "docker listed 9 containers, and in the next look 3"


def test_a_docker_that_restarted_is_doubtful_even_if_it_was_unread_meanwhile() -> None:
    before, after = node(), node(daemons=[daemons(docker=timedelta(days=1))], later=2 * SECOND)
    silent = without(node(later=SECOND), "daemons", "containers")
    gone = node(daemons=[daemons(docker=None)], later=SECOND)
    for looks in ([before, after], [before, silent, after], [before, gone, after], [before, silent, gone, after]):
        assert watched(*looks).doubted == UPTIME + 2 * SECOND
        assert watched(*looks).why == "docker restarted between two looks"
    assert watched(before, silent, gone, before).doubted is None


def test_a_docker_that_started_with_the_node_can_restart_too() -> None:
    first = node(daemons=[daemons(booted=UPTIME, docker=UPTIME)])
    assert watched(first, node(daemons=[daemons(docker=timedelta(days=1))])).doubted == UPTIME


def test_a_clock_that_is_set_is_no_restart() -> None:
    moved = replace(daemons(), booted=NOW - UPTIME + GRACE, docker=NOW - UPTIME + GRACE)
    assert watched(node(), node(daemons=[moved], clock_set_by=GRACE, later=SECOND)).doubted is None


@pytest.mark.parametrize(
    ("later", "settle", "refused"),
    [
        (GRACE, GRACE, True),
        (GRACE + SECOND, GRACE, False),
        (timedelta(0), timedelta(0), True),
        (SECOND, timedelta(0), False),
        (-SECOND, GRACE, True),
    ],
)
def test_a_doubt_lasts_for_as_long_as_settling_takes(later: timedelta, settle: timedelta, refused: bool) -> None:
    now = node(LEAK, later=later)
    doubt = replace(case(now, bold=limits(settle=settle)), vigil=Vigil(doubted=UPTIME, why="docker restarted"))
    (said,) = verdicts(doubt).values()
    assert [one.reason for one in said] == ([Reason.RUNTIME_DOUBTFUL] if refused else [])
    assert all(one.why == "docker restarted; it is believed again after --settle" for one in said)


@pytest.mark.parametrize(
    ("running", "listed", "refused"),
    [(0, 0, False), (1, 1, False), (1, 0, True), (3, 1, False), (3, 0, True), (4, 2, False), (4, 1, True)],
)
def test_a_list_without_the_pods_that_run_is_doubtful(running: int, listed: int, refused: bool) -> None:
    pods = [pod(f"shop/p{n}") for n in range(running)]
    boxes = [sandbox(f"{n:064x}", f"shop/p{n}") for n in range(listed)]
    said = reasons(node(reservations=[LEAK], checkpoints=[], containers=boxes, pods=pods))
    assert said == ([Reason.RUNTIME_DOUBTFUL] if refused else [])


def test_pods_that_do_not_run_need_not_be_listed() -> None:
    others = [pod("shop/new", phase="Pending"), pod("shop/old", deleting=True), pod("shop/done", phase="Succeeded")]
    assert refusals(node(LEAK, *others)) == ()
    empty = node(reservations=[LEAK], checkpoints=[], containers=[])
    assert refusals(without_api(empty)) == (), "without the API server nothing says otherwise"


# Settling


@pytest.mark.parametrize("who", ["booted", "kubelet", "docker"])
@pytest.mark.parametrize(("ago", "refused"), [(GRACE, False), (GRACE - SECOND, True), (-SECOND, True)])
def test_what_started_a_moment_ago_has_not_settled(who: str, ago: timedelta, refused: bool) -> None:
    look = node(LEAK, daemons=[daemons(**{who: ago})])
    assert reasons(look) == ([Reason.UNSETTLED] if refused else [])
    assert refusals(look, bold=limits(settle=timedelta(0))) == ()


@pytest.mark.parametrize(("who", "name"), [("kubelet", "the kubelet"), ("docker", "docker")])
def test_what_does_not_run_has_not_settled(who: str, name: str) -> None:
    changed: dict[str, Any] = {who: None}
    look = node(LEAK, daemons=[daemons(**changed)])
    assert refusals(look) == (Refusal(Reason.UNSETTLED, f"{name} does not run", "--settle=0s"),)
    assert refusals(look, bold=limits(settle=timedelta(0))) == ()


def test_nobody_has_settled_of_whom_nothing_is_known() -> None:
    assert reasons(node(LEAK, daemons=[])) == [Reason.UNSETTLED]


def test_of_several_daemons_the_last_to_start_counts() -> None:
    assert reasons(node(LEAK, daemons=[daemons(), daemons(kubelet=SECOND)])) == [Reason.UNSETTLED]


# The share


def share(*things: Any, **changes: Any) -> float:
    return case(node(*things, **changes), bold=limits()).shares["kubenet"]


def test_a_share_of_a_few_sandboxes_is_none() -> None:
    assert share(*leaks(7), node=[Node("worker-1", ("10.244.1.0/28",), 110)]) == 0
    assert share(*leaks(8), node=[Node("worker-1", ("10.244.1.0/28",), 110)]) == 8 / 13


def test_a_share_counts_sandboxes_and_what_is_young_but_not_what_somebody_owns() -> None:
    young = [reservation(f"10.244.1.{n}", f"{n:064x}", age=SECOND) for n in range(40, 44)]
    alive = [Address(f"10.244.1.{10 + n}", 1, "sh") for n in (1, 2)]
    both = [reservation(f"10.244.2.{n}", f"{n:064x}", age=SECOND) for n in range(40, 44)]
    assert share(*leaks(10), *young, *both, *alive) == 12 / 253


@pytest.mark.parametrize(("most", "refused"), [(31 / 253, False), (30 / 253, True), (0.0, True), (1.0, False)])
def test_a_share_as_large_as_the_largest_is_plausible(most: float, refused: bool) -> None:
    said = verdicts(case(node(*leaks(31)), bold=limits(max_share=most)))
    assert len(said) == 31
    assert all([one.reason for one in no] == ([Reason.IMPLAUSIBLE_SHARE] if refused else []) for no in said.values())


def test_where_the_range_is_not_known_the_share_is_of_what_is_reserved() -> None:
    assert share(*leaks(8), node=[], cni_results=[]) == 8 / 10


def test_a_share_is_never_more_than_all_and_all_can_be_allowed() -> None:
    small = node(*leaks(31), node=[Node("worker-1", ("10.250.0.0/29",), 110)])
    assert case(small).shares["kubenet"] == 1
    said = verdicts(case(small, bold=limits(max_share=config.percentage("100%"))))
    assert {one.reason for no in said.values() for one in no} == {Reason.OUTSIDE_RANGE}


def test_where_only_docker_says_that_nearly_all_of_many_are_leaked_the_share_is_of_them() -> None:
    alone = NotAsked("pods", "--api=off")
    assert share(*leaks(110), pods=alone) == 110 / 112
    assert share(*leaks(31), pods=alone) == 31 / 253
    assert share(*leaks(110)) == 110 / 253, "the API server knows the pods that run, and docker's list agrees with it"


def test_a_share_is_of_one_network() -> None:
    crowded = node(*leaks(8), reservation("10.9.0.2", "8" * 64, network="storage"), node=[], cni_results=[])
    said = verdicts(case(crowded, bold=limits(networks=frozenset({"kubenet", "storage"}))))
    assert Reason.IMPLAUSIBLE_SHARE not in {one.reason for one in said["10.9.0.2"]}
    assert Reason.IMPLAUSIBLE_SHARE in {one.reason for one in said["10.244.1.11"]}


# Turns, and the budget


def passed(judged: Case) -> list[str]:
    return [addresses for addresses, no in verdicts(judged).items() if not no]


def test_the_oldest_have_their_turn_first_and_what_failed_has_its_after_them() -> None:
    old, middle, new = leaks(3)
    found = case(node(new, old, middle), bold=limits(allowances=(("--max", 2),)))
    assert passed(found) == [old.ip, middle.ip]
    assert passed(replace(found, failures={f"kubenet/{old.ip}": 1})) == [middle.ip, new.ip]
    again = {f"kubenet/{old.ip}": 2, f"kubenet/{middle.ip}": 1, f"kubenet/{new.ip}": 1}
    assert list(verdicts(replace(found, failures=again))) == [middle.ip, new.ip, old.ip]


def test_a_sandbox_is_as_old_as_its_oldest_address_and_fails_with_either() -> None:
    dual = [reservation(THE_IP, age=timedelta(hours=9)), reservation("fd00::9", age=timedelta(hours=1))]
    found = case(node(*leaks(1), *dual, **DUAL))
    assert list(verdicts(found)) == [f"{THE_IP} fd00::9", "10.244.1.11"]
    failed = replace(found, failures={"kubenet/fd00::9": 1})
    assert list(verdicts(failed)) == ["10.244.1.11", f"{THE_IP} fd00::9"]


def test_of_the_same_age_the_turns_do_not_depend_on_the_order_of_a_directory() -> None:
    twins = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in (20, 21, 22)]
    orders = {tuple(verdicts(case(node(*some)))) for some in itertools.permutations(twins)}
    assert len(orders) == 1


def test_a_budget_counts_addresses_and_goes_to_whom_it_suffices_for() -> None:
    dual = [reservation(ip, age=timedelta(hours=9)) for ip in (THE_IP, "fd00::9")]
    found = node(*dual, *leaks(3), **DUAL)
    for most, expected in (
        (0, []),
        (1, ["10.244.1.11"]),
        (2, [f"{THE_IP} fd00::9"]),
        (3, [f"{THE_IP} fd00::9", "10.244.1.11"]),
        (5, [f"{THE_IP} fd00::9", "10.244.1.11", "10.244.1.12", "10.244.1.13"]),
    ):
        assert passed(case(found, bold=limits(allowances=(("--max-per-round", most),)))) == expected


def test_what_another_guard_refuses_takes_nothing_of_the_budget() -> None:
    young, *others = leaks(3)
    alive = Address(young.ip, 1, "sh")
    found = case(node(young, *others, alive), bold=limits(allowances=(("--max-per-round", 2),)))
    assert passed(found) == [one.ip for one in others]


@pytest.mark.parametrize("name", BUDGETS)
def test_a_budget_names_each_setting_that_is_too_low_and_what_it_would_have_to_be(name: str) -> None:
    bold, spent, setting = BUDGETS[name]
    least = min(left for _, left in bold.allowances)
    found = case(node(*leaks(3)), bold=bold, spent=spent)
    over = [no for nos in verdicts(found).values() for no in nos]
    assert len(over) == 3 - max(least, 0)
    assert over[-1].setting == setting
    assert "-3" not in over[-1].why


def test_without_a_budget_all_that_pass_are_released() -> None:
    assert len(passed(case(node(*leaks(31))))) == 31


# The cost


def test_a_thousand_leaks_are_judged_in_a_moment() -> None:
    many = [reservation(f"10.244.{n // 250}.{n % 250 + 2}", f"{n:064x}") for n in range(1000)]
    busy = node(
        *many,
        *(sandbox(f"f{n:063x}", f"shop/p{n}") for n in range(1000)),
        *(Address(f"10.9.{n // 250}.{n % 250}", n, "sh") for n in range(1000)),
        *(pod(f"shop/p{n}", f"10.9.{n // 250}.{n % 250}") for n in range(1000)),
        *(cni_result(f"f{n:063x}", f"shop/p{n}", "10.244.0.0/16") for n in range(1000)),
        *(Checkpoint(f"f{n:063x}", "") for n in range(1000)),
        node=[],
    )
    for looks in ((busy, busy), (without(busy, "pods"), without(busy, "pods"))):
        judged = case(*looks, bold=limits(max_share=1.0))
        start = time.perf_counter()
        assert len(judge(judged)) == 1000
        assert time.perf_counter() - start < 0.2


def test_what_the_healthy_node_has_is_what_these_tests_start_from() -> None:
    assert len(CONTAINERS) >= FEWEST_CONTAINERS
    assert {one.container_id for one in CHECKPOINTS} <= {one.id for one in CONTAINERS}
    assert {one.ip for one in RESERVATIONS} <= {one.ip for one in ADDRESSES}
    assert {one.name for one in PODS} <= {one.pod for one in CONTAINERS}
