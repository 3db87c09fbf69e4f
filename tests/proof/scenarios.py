"""Small nodes, each explored completely.

`PROOF` always runs, `DEEP` is larger. On each node of `ASSUMED` an assumption fails and one guard is left.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from agent.cleanup.journal import Entry
from agent.model.release import Verdict
from agent.model.runtime import CONTAINERD, CRI_O, ContainerRuntime
from agent.model.runtime import DOCKER as DOCKERS
from tests.proof.actors import (
    ALL_ACTORS,
    KILL,
    MIGRATION,
    OTHER,
    WIPE,
    Move,
    docker_forgets,
    status_follows,
)
from tests.proof.cri import CRI_ACTORS, DEADLINE, SURVIVE
from tests.proof.explorer import Scenario
from tests.proof.laws import (
    IN_USE,
    answering,
    at_most,
    journaled,
    kept,
    owned_once,
    reserved,
    untouched,
)
from tests.proof.operations import FAILURE, START, UNAVAILABILITY, image
from tests.proof.process import Setup
from tests.proof.world import LONG_AGO, File, Sandbox, World, spent

ONE, TWO = "1" * 64, "2" * 64
GONE = "9" * 64
DEFAULTS = Setup(
    grace=timedelta(minutes=5),
    confirm=timedelta(seconds=3),
    settle=timedelta(minutes=5),
    clock=True,
)
NAMED = Setup(only=frozenset({f"10.244.1.{last}" for last in range(2, 9)}))
"""Somebody releases by name, which is the only way to release an empty file, and what was restored."""
V4 = (("10.244.1.2",),)
DUAL_STACK = (*V4, ("fd00::2",))


def sandbox(container_id: str, **more: object) -> Sandbox:
    return Sandbox(container_id, f"pod-{container_id[0]}")._replace(**more)  # type: ignore[arg-type]


def running(container_id: str, *ips: str, **more: object) -> Sandbox:
    usual = {
        "container": "running",
        "checkpoint": True,
        "ips": ips,
        "configured": ips,
        "setup": "ready",
    }
    return sandbox(container_id, **(usual | more))


noted = partial(sandbox, setup="noted", container="created", checkpoint=True)
"""A sandbox that has its checkpoint and was not started yet."""
started = partial(
    sandbox, setup="started", container="running", checkpoint=True
)  # A sandbox right before its ADD
unseen = partial(running, checkpoint=False, hidden=True, configured=())
"""A running sandbox without any evidence of it. No assumption allows for that."""
ADDING, NOTED = started(ONE, leaves=False), noted(ONE, leaves=False)


def leak(ip: str, container_id: str = GONE, inode: int = 99) -> File:
    return File(ip, container_id, inode, LONG_AGO)


LEAK_2, LEAK_4 = (leak("10.244.1.2"),), (leak("10.244.1.4"),)
DUAL_LEAK = (*LEAK_2, leak("fd00::2", inode=98))
THREE_LEAKS = tuple(leak(f"10.244.1.{last}", str(last) * 64, inode=90 + last) for last in (2, 3, 4))


def node(*sandboxes: Sandbox, leaks: tuple[File, ...] = (), **more: object) -> World:
    files = [
        File(ip, sandbox.id, 0, LONG_AGO, sandbox.network)
        for sandbox in sandboxes
        for ip in sandbox.ips
    ]
    numbered = (file._replace(inode=number) for number, file in enumerate(files, 1))
    world = World(sandboxes, tuple(sorted((*numbered, *leaks))))
    return world._replace(**more)  # type: ignore[arg-type]


def rarely(*what: str) -> tuple[tuple[str, int], ...]:
    return tuple((event, what.count(event)) for event in dict.fromkeys(what))


KILLED_CLEANER = "the cleaner is killed"
KILLED_ONCE, BAD_DISK = rarely(KILLED_CLEANER), rarely(FAILURE, FAILURE, KILLED_CLEANER)
UNRELEASED: dict[str, Any] = {"check_recovery": False, "releases": False}
"""Nothing is released in any order, also not when a cleaner runs alone."""

CHURN = Scenario(
    name="pods come and go beside a leak",
    start=node(sandbox(ONE), running(TWO, "10.244.1.3"), leaks=LEAK_4),
)
SMALL = Scenario(
    name="one pod comes and goes beside a leak", start=node(sandbox(ONE), leaks=LEAK_4)
)
FULL = Scenario(
    name="a leak on a full range, a late DEL of it, and its address reused at once",
    start=node(sandbox(ONE), running(TWO, "10.244.1.3"), leaks=LEAK_2, left=rarely("late DEL")),
)
RESTART = Scenario(
    name="the known leak: docker rm -f, a kubelet without pod CIDR, and reuse",
    start=node(
        running(ONE, "10.244.1.2"),
        sandbox(TWO, leaves=False),
        families=V4,
        left=rarely("docker rm -f", "kubelet restarts"),
    ),
)
DYING = Scenario(
    name="the kubelet restarts in the middle of anything",
    start=node(
        sandbox(ONE), started(TWO, leaves=False), families=V4, left=rarely("kubelet restarts")
    ),
    setup=NAMED,
)
EMPTY = Scenario(
    name="host-local dies between creating a file and writing it",
    start=node(sandbox(ONE), noted(TWO, leaves=False), left=rarely("host-local dies")),
    setup=NAMED,
)
TWO_CLEANERS = Scenario(
    name="two cleaners, one leak, and its address reused at once",
    start=node(sandbox(ONE), leaks=LEAK_2, families=V4),
    cleaners=2,
)
KILLED = Scenario(
    name="two cleaners, one of them killed at any time and started again",
    start=node(ADDING, leaks=LEAK_2, families=V4, left=KILLED_ONCE),
    cleaners=2,
)
DUAL = Scenario(
    name="dual stack: the two files of a leak, and the cleaner is killed at any time",
    start=node(
        sandbox(ONE), leaks=DUAL_LEAK, families=DUAL_STACK, left=rarely(KILLED_CLEANER, "late DEL")
    ),
)
UNAVAILABLE = Scenario(
    name="one source is unavailable, once, at any time",
    start=node(noted(ONE), leaks=LEAK_4, left=rarely(UNAVAILABILITY)),
)
DISK = Scenario(
    name="dual stack: the disk fails twice, and the cleaner is killed, at any time",
    start=node(started(ONE), leaks=DUAL_LEAK, families=DUAL_STACK, left=BAD_DISK),
)
API = Scenario(
    name="with the API server, which lags",
    start=node(
        NOTED,
        running(TWO, "10.244.1.2", status=("10.244.1.2",)),
        leaks=(leak("10.244.1.3"),),
        families=V4,
        left=rarely("docker rm -f"),
    ),
    setup=Setup(api=True),
    actors=(*ALL_ACTORS, status_follows),
)
LYING = rarely("docker restarts", "docker remembers", "kubelet restarts")
DOCKER = Scenario(
    name="docker restarts with an empty list and recovers; the kubelet restarts; at any time in the life of a sandbox",
    start=node(sandbox(ONE), left=LYING),
    laws=IN_USE,
)
HANDOVER = Scenario(
    name="a leak is released, then the address of an ADD is rechecked; docker and the kubelet restart",
    start=node(ADDING, leaks=LEAK_4, left=LYING),
    laws=IN_USE,
    check_recovery=False,
)
PARTLY = Scenario(
    name="docker restarts with part of its list and recovers; the kubelet restarts",
    start=node(
        running(ONE, "10.244.1.2", leaves=False),
        running(TWO, "10.244.1.3", leaves=False),
        left=LYING,
    ),
    laws=IN_USE,
    releases=False,
)
FORGETFUL = replace(
    PARTLY,
    name="docker restarts or loses part of its list, and recovers; the kubelet restarts; docker rm -f",
    start=PARTLY.start._replace(left=(*LYING, *rarely("docker forgets", "docker rm -f"))),
    releases=True,
)
PINNED = Scenario(
    name="the runtime's records are wiped, and the network namespace of a sandbox stays mounted",
    start=node(running(ONE, "10.244.1.2", leaves=False), sandbox(TWO), left=rarely(WIPE)),
    setup=Setup(pinning=True),
)
CLOCK = Scenario(
    name="the default settings, while the clock is set and time passes",
    start=node(
        NOTED,
        leaks=LEAK_2,
        families=V4,
        left=rarely(
            "late DEL",
            "ten minutes pass",
            "the wall clock is set forward",
            "the wall clock is set back",
        ),
    ),
    setup=DEFAULTS,
    check_recovery=False,
)
SURVIVOR_START = node(
    started(ONE),
    left=rarely(
        "docker restarts", "kubelet restarts", "plugins survive the kubelet", "ten minutes pass"
    ),
)
SETTLED = Scenario(
    name="docker returns a wrong list, the kubelet restarts, its ADD continues; --settle is the default",
    start=SURVIVOR_START,
    setup=replace(DEFAULTS, grace=timedelta(0), confirm=timedelta(0)),
    laws=IN_USE,
    check_recovery=False,
)
SYNCS = Scenario(
    name="three syncs of the daemon beside a leak on a full range",
    start=node(noted(ONE), leaks=LEAK_2, families=V4, left=rarely("late DEL")),
    setup=Setup(syncs=3),
)
BOTH = tuple(map(image, DUAL_LEAK))
RELEASED_BEFORE = Entry("1", START, "clean", GONE, "", BOTH, Verdict.RELEASED)
RESTORING = Scenario(
    name="dual stack: a restoration is killed at any time, and started again or not, beside a cleaner and a pod",
    start=node(ADDING, families=DUAL_STACK, journal=(RELEASED_BEFORE,), left=KILLED_ONCE),
    cleaners=2,
    restores="1",
    releases=False,
)
RESTORING_DISK = Scenario(
    name="dual stack: a restoration while the disk fails twice, and it is killed, at any time",
    start=node(NOTED, families=DUAL_STACK, journal=(RELEASED_BEFORE,), left=BAD_DISK),
    restores="1",
    releases=False,
)
NEARLY_FULL = Scenario(
    name="two cleaners, one of them killed; three leaks, and the journal has room for two",
    start=node(leaks=THREE_LEAKS, room=2, left=KILLED_ONCE),
    cleaners=2,
)

UNRECOGNIZED = Scenario(
    name="sandboxes of another runtime: in a network of their own, and in kubenet outside its range",
    start=node(
        sandbox(ONE, asked=False, setup="started", container="running", network="storage"),
        sandbox(TWO, asked=False, setup="started", container="running", families=(("10.99.0.2",),)),
        leaks=LEAK_2,
    ),
    setup=Setup(networks=("kubenet", "storage")),
)
OTHER_RUNTIME = Scenario(
    name="every sandbox belongs to containerd, its address is on no interface, and docker's checkpoints are left over",
    start=node(
        sandbox(ONE, asked=False, shown=False),
        running(TWO, "10.244.1.3", asked=False, shown=False, checkpoint=False),
        leaks=LEAK_4,
        runtime=OTHER,
    ),
    cleaners=2,
    **UNRELEASED,
)
SILENT = replace(
    OTHER_RUNTIME,
    name="the same, and the kubelet names no runtime",
    start=OTHER_RUNTIME.start._replace(runtime=""),
)
NO_DIRECTORY = replace(
    OTHER_RUNTIME,
    name="the same, the kubelet cannot be asked, and there is no checkpoint directory",
    start=OTHER_RUNTIME.start._replace(runtime=None, directory=False),
)
MIGRATED = Scenario(
    name="the kubelet changes from docker to containerd, at any time",
    start=node(
        running(TWO, "10.244.1.3"),
        sandbox(ONE, asked=False, shown=False),
        leaks=LEAK_2,
        left=rarely(MIGRATION, "docker rm -f"),
        runtime=DOCKERS,
    ),
    check_recovery=False,
)
BY_NAME = Scenario(
    name="one address of a dual-stack leak is requested by name",
    start=node(leaks=DUAL_LEAK),
    setup=Setup(only=frozenset({"10.244.1.2"})),
    laws=(untouched("fd00::2"),),
    **UNRELEASED,
)
CANDIDATE = Scenario(
    name="a file without an owner is younger than --grace",
    start=node(leaks=(leak("10.244.1.2")._replace(mtime=0),)),
    setup=replace(DEFAULTS, settle=timedelta(0)),
    laws=(untouched("10.244.1.2"),),
    **UNRELEASED,
)
BUDGETED = Scenario(
    name="three leaks, and two may be released",
    start=node(leaks=THREE_LEAKS),
    setup=Setup(per_sync=("--max", 2)),
    laws=(at_most(2, of=3),),
    check_recovery=False,
)
UNSETTLED = replace(
    SETTLED,
    name="docker returns a wrong list, the kubelet restarts, its ADD continues; --settle=0s",
    setup=replace(SETTLED.setup, settle=timedelta(0)),
)
FAULTY_READING = Scenario(
    name="eight running sandboxes, and no evidence of any",
    start=node(*(unseen(f"{last:x}" * 64, f"10.244.1.{last}") for last in range(2, 10))),
    setup=Setup(max_share=0.5, subnet="10.244.1.0/28"),
    **UNRELEASED,
)


SMALL_RANGE = Setup(api=True, max_share=0.5, subnet="10.244.1.0/28")
UNSEEN = tuple(unseen(f"{last:x}" * 64, f"10.244.1.{last}") for last in range(2, 10))
"""Most of that range. They run, and no assumption allows for them: the share is what is left."""


def witness(last: int, **more: object) -> Sandbox:
    """A running sandbox with the last number of its address, whose pod the API server has."""
    ip = f"10.244.1.{last}"
    return running(f"{last:x}" * 64, ip, status=(ip,), leaves=False, **more)


CONFIRMED = Scenario(
    name="most of a range is leaked, and the API server confirms it by four running pods",
    start=node(
        *map(witness, range(10, 14)),
        leaks=tuple(
            leak(f"10.244.1.{last}", f"{last:x}" * 64, inode=90 + last) for last in range(2, 10)
        ),
    ),
    setup=SMALL_RANGE,
    actors=(),
)
FEW_WITNESSES = Scenario(
    name="eight running sandboxes, and no evidence of any; the API server has three other pods",
    start=node(*UNSEEN, *map(witness, range(10, 13))),
    setup=SMALL_RANGE,
    actors=(),
    **UNRELEASED,
)
UNLISTED_WITNESS = Scenario(
    name="eight running sandboxes, and no evidence of any; of five other pods, docker lists four",
    start=node(*UNSEEN, *map(witness, range(10, 14)), witness(14, hidden=True)),
    setup=SMALL_RANGE,
    actors=(),
    **UNRELEASED,
)
FOREIGN_NETWORK = Scenario(
    name="a network of another program that somebody allows; the API server has pods of kubenet",
    start=node(
        *(sandbox._replace(network="storage") for sandbox in UNSEEN), *map(witness, range(10, 14))
    ),
    setup=replace(
        SMALL_RANGE, networks=("kubenet", "storage"), cleaned=frozenset({"kubenet", "storage"})
    ),
    actors=(),
    **UNRELEASED,
)


def docker_loses_three(world: World) -> Iterator[Move]:
    for label, after in docker_forgets(world):
        if sum(sandbox.hidden for sandbox in after.sandboxes) == 3:
            yield label, after


LOSING = Scenario(
    name="docker loses three of four containers without a restart, and there is no evidence of one",
    start=node(
        running("2" * 64, "10.244.1.2", checkpoint=False, configured=(), leaves=False),
        *(running(f"{last}" * 64, f"10.244.1.{last}", leaves=False) for last in (3, 4, 5)),
        left=rarely("docker forgets"),
    ),
    setup=replace(DEFAULTS, syncs=3, grace=timedelta(0), confirm=timedelta(0)),
    actors=(docker_loses_three,),
    begun=len(("journal", "moment", "reservations", "checkpoints", "containers", "processes")),
    **UNRELEASED,
)
CLAIMED = Scenario(
    name="a running sandbox that only the API server knows",
    start=node(
        unseen(ONE, "10.244.1.2", status=("10.244.1.2",)),
        running(TWO, "10.244.1.3", status=("10.244.1.3",)),
    ),
    setup=Setup(api=True),
    actors=(),
    **UNRELEASED,
)


def docker_remembers(world: World) -> Iterator[Move]:
    return (move for move in docker_forgets(world) if move[0] == "docker lists everything again")


def brake_is_set(world: World) -> Iterator[Move]:
    if world.may("the brake is set"):
        yield "an operator sets the brake", spent(world, "the brake is set")._replace(brake=True)


BRAKED = Scenario(
    name="an operator sets the brake while three leaks are released, and a source is unavailable",
    start=node(leaks=THREE_LEAKS, left=rarely("the brake is set", UNAVAILABILITY)),
    setup=Setup(brake=True),
    actors=(brake_is_set,),
    check_recovery=False,
)
HALTED = Scenario(
    name="a released sandbox reappears while two cleaners are at work, and one of them halts",
    start=node(
        running(ONE, hidden=True, checkpoint=False, leaves=False),
        running(TWO, "10.244.1.3", leaves=False),
        leaks=LEAK_4,
        journal=(
            Entry(
                "1", START, "clean", ONE, "", (image(leak("10.244.1.2", ONE)),), Verdict.RELEASED
            ),
        ),
        left=rarely("docker remembers"),
    ),
    actors=(docker_remembers,),
    cleaners=2,
    check_recovery=False,
)
RETURNED = Scenario(
    name="a released sandbox reappears, and there is no evidence of another running one",
    start=node(
        running(ONE, leaves=False),
        unseen(TWO, "10.244.1.3"),
        journal=(
            Entry(
                "1", START, "clean", ONE, "", (image(leak("10.244.1.2", ONE)),), Verdict.RELEASED
            ),
        ),
    ),
    actors=(),
    **UNRELEASED,
)

SOCKET = OTHER.removeprefix("unix://")
RECORDS_FIRST = Setup(runtime=ContainerRuntime(CONTAINERD, "1.7.24", SOCKET))
LISTS_ONLY = Setup(runtime=ContainerRuntime(CONTAINERD, "1.6.8", SOCKET))
CRIO = "/run/crio/crio.sock"


cri_running = partial(running, checkpoint=False, record=True)
cri_adding = partial(sandbox, setup="started", record=True, mounted=True)
cri_node = partial(node, runtime=OTHER)


def cri(name: str, start: World, setup: Setup = RECORDS_FIRST, **more: Any) -> Scenario:
    return Scenario(name=name, start=start, setup=setup, actors=CRI_ACTORS, **more)


CRI_CHURN = cri(
    "containerd: pods come and go beside a leak",
    cri_node(sandbox(ONE), cri_running(TWO, "10.244.1.3"), leaks=LEAK_4),
)
CRI_SMALL = replace(
    CRI_CHURN,
    name="containerd: one pod comes and goes beside a leak",
    start=cri_node(sandbox(ONE), leaks=LEAK_4),
)
CRI_DEADLINE = cri(
    "containerd: the deadline of ADD passes, and host-local reserves afterwards",
    cri_node(sandbox(ONE), sandbox(TWO), families=V4, left=rarely(DEADLINE)),
)
CRI_DEADLINE_DUAL = replace(
    CRI_DEADLINE,
    name="containerd, dual stack: the deadline of ADD has passed, and host-local reserves afterwards",
    start=cri_node(cri_adding(ONE, orphaned=True, mounted=False), families=DUAL_STACK),
    cleaners=2,
    laws=(reserved, owned_once, answering, journaled, kept),
    check_recovery=False,
)
CRI_KILLED = cri(
    "containerd is killed during ADD, does not load every sandbox, and a network namespace stays mounted",
    cri_node(sandbox(ONE), cri_running(TWO, "10.244.1.3"), left=rarely(KILL)),
    setup=replace(RECORDS_FIRST, pinning=True),
)
CRI_SURVIVED = cri(
    "CRI-O is killed, its ADD continues; --settle is the default",
    cri_node(
        cri_adding(ONE),
        families=V4,
        left=rarely(KILL, SURVIVE, "ten minutes pass"),
        runtime=f"unix://{CRIO}",
    ),
    setup=replace(
        DEFAULTS,
        runtime=ContainerRuntime(CRI_O, "1.35.6", CRIO),
        pinning=True,
        grace=timedelta(0),
        confirm=timedelta(0),
    ),
    check_recovery=False,
)
CRI_UNAVAILABLE = cri(
    "containerd: one source is unavailable, once, at any time",
    cri_node(cri_adding(ONE), leaks=LEAK_4, left=rarely(UNAVAILABILITY)),
)
CRI_MOUNTED = cri(
    "containerd's records are wiped, libcni's cache names a network namespace that stays mounted; --probe=off",
    cri_node(cri_running(ONE, "10.244.1.2", leaves=False), sandbox(TWO), left=rarely(WIPE)),
    setup=replace(RECORDS_FIRST, cached=True, probe=False),
)
LISTED_LAST = cri(
    "an old containerd records a sandbox after its address, and the wall clock is set forward",
    cri_node(
        sandbox(ONE), leaks=LEAK_4, record_first=False, left=rarely("the wall clock is set forward")
    ),
    setup=replace(LISTS_ONLY, clock=True),
    **UNRELEASED,
)

PROOF = (
    CHURN, FULL, RESTART, DYING, EMPTY, TWO_CLEANERS, KILLED, DUAL, UNAVAILABLE, API, DOCKER, PARTLY, PINNED, CLOCK,
    SETTLED, SYNCS, UNRECOGNIZED, DISK, OTHER_RUNTIME, SILENT, NO_DIRECTORY, MIGRATED, RESTORING, RESTORING_DISK,
    NEARLY_FULL, CRI_CHURN, CRI_DEADLINE, CRI_KILLED, CRI_SURVIVED, CRI_UNAVAILABLE, CRI_MOUNTED, LISTED_LAST,
)  # fmt: skip
DEEP = (
    FORGETFUL,
    replace(
        FULL,
        name="two new pods, a leak, and a full range of two",
        start=node(sandbox(ONE), sandbox(TWO), leaks=LEAK_2, left=rarely("late DEL")),
    ),
    replace(
        DYING,
        name="the kubelet restarts, host-local dies",
        start=node(
            sandbox(ONE),
            sandbox(TWO),
            families=V4,
            left=rarely("kubelet restarts", "host-local dies"),
        ),
    ),
    replace(
        DUAL,
        name="dual stack: the cleaner is killed twice, at any time, also during recovery",
        start=DUAL.start._replace(left=((KILLED_CLEANER, 2), ("late DEL", 1))),
    ),
    replace(
        CRI_DEADLINE,
        name="containerd: two cleaners, the deadline of ADD, host-local dies, and reuse",
        start=CRI_DEADLINE.start._replace(left=rarely(DEADLINE, "host-local dies")),
        cleaners=2,
    ),
    replace(
        CRI_KILLED,
        name="containerd is killed, and the deadline of ADD passes, while two pods come and go beside a leak",
        start=cri_node(sandbox(ONE), sandbox(TWO), leaks=LEAK_4, left=rarely(KILL, DEADLINE)),
    ),
)
POLICY = (BRAKED, BY_NAME, CANDIDATE, BUDGETED, CONFIRMED)
DOUBTED = (FAULTY_READING, FEW_WITNESSES, UNLISTED_WITNESS, FOREIGN_NETWORK)
ASSUMED = (*DOUBTED, LOSING, CLAIMED, RETURNED, HALTED)
