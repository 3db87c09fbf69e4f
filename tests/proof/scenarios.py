"""Small nodes, each gone through to the end.

`PROOF` is what always runs, `DEEP` is larger. `ASSUMED` are the ways in which a node can be worse than we assume: there
the guards are what is left, and each shows which one.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from agent.cleanup.cleaner import Budget
from agent.cleanup.journal import Entry
from agent.model.release import Verdict
from tests.proof.actors import EVERYBODY, status_follows
from tests.proof.explorer import Scenario
from tests.proof.laws import IN_USE, LAWS, at_most, untouched
from tests.proof.process import Setup
from tests.proof.touch import START, kept
from tests.proof.world import LONG_AGO, File, Sandbox, World

ONE, TWO = "1" * 64, "2" * 64
GONE = "9" * 64
DEFAULTS = Setup(grace=timedelta(minutes=5), confirm=timedelta(seconds=3), settle=timedelta(minutes=5), clock=True)
V4, V6 = ("10.244.1.2",), ("fd00::2",)


def box(container_id: str, **more: object) -> Sandbox:
    return Sandbox(container_id, f"pod-{container_id[0]}")._replace(**more)  # type: ignore[arg-type]


def running(container_id: str, *ips: str, **more: object) -> Sandbox:
    usual = {"container": "running", "checkpoint": True, "ips": ips, "configured": ips, "setup": "ready"}
    return box(container_id, **(usual | more))


def unseen(container_id: str, ip: str, **more: object) -> Sandbox:
    """Return a sandbox that lives, and that no witness tells of: worse than anything that we assume."""
    return running(container_id, ip, **({"checkpoint": False, "hidden": True, "configured": ()} | more))


def leak(ip: str, container_id: str = GONE, inode: int = 99) -> File:
    return File(ip, container_id, inode, LONG_AGO)


def node(*sandboxes: Sandbox, leaks: tuple[File, ...] = (), cleaners: int = 1, **more: object) -> World:
    files = [File(ip, one.id, 0, LONG_AGO, one.network) for one in sandboxes for ip in one.ips]
    numbered = (file._replace(inode=number) for number, file in enumerate(files, 1))
    world = World(sandboxes, tuple(sorted((*numbered, *leaks))), cleaners=(0,) * cleaners)
    return world._replace(**more)  # type: ignore[arg-type]


def rarely(*what: str) -> tuple[tuple[str, int], ...]:
    return tuple((one, what.count(one)) for one in dict.fromkeys(what))


CHURN = Scenario(
    name="pods come and go beside a leak",
    start=node(box(ONE), running(TWO, "10.244.1.3"), leaks=(leak("10.244.1.4"),)),
)
FULL = Scenario(
    name="a leak on a full range, a late DEL of it, and its address reused at once",
    start=node(box(ONE), running(TWO, "10.244.1.3"), leaks=(leak("10.244.1.2"),), left=rarely("late DEL")),
)
RESTART = Scenario(
    name="the known leak: docker rm -f, a kubelet without pod CIDR, and reuse",
    start=node(
        running(ONE, "10.244.1.2"),
        box(TWO, leaves=False),
        families=(V4,),
        left=rarely("docker rm -f", "kubelet restarts"),
    ),
)
DYING = Scenario(
    name="the kubelet restarts in the middle of anything",
    start=node(
        box(ONE), box(TWO, leaves=False, setup="noted", container="created", checkpoint=True),
        families=(V4,), left=rarely("kubelet restarts"),
    ),
)  # fmt: skip
EMPTY = Scenario(
    name="host-local dies between creating a file and writing it",
    start=node(
        box(ONE),
        box(TWO, leaves=False, setup="noted", container="created", checkpoint=True),
        left=rarely("host-local dies"),
    ),
)
TWO_CLEANERS = Scenario(
    name="two cleaners, one leak, and its address reused at once",
    start=node(box(ONE), leaks=(leak("10.244.1.2"),), families=(V4,), cleaners=2),
)
KILLED = Scenario(
    name="two cleaners, one of them killed anywhere and started again",
    start=node(
        box(ONE, leaves=False, setup="started", container="running", checkpoint=True),
        leaks=(leak("10.244.1.2"),),
        families=(V4,),
        left=rarely("we are killed"),
        cleaners=2,
    ),
)
DUAL = Scenario(
    name="dual stack: the two files of a leak, and we are killed anywhere",
    start=node(
        box(ONE),
        leaks=(leak("10.244.1.2"), leak("fd00::2", inode=98)),
        families=(V4, V6),
        left=rarely("we are killed", "late DEL"),
    ),
)
SILENT = Scenario(
    name="a source is silent, once, anywhere",
    start=node(
        box(ONE, setup="noted", container="created", checkpoint=True),
        running(TWO, "10.244.1.3"),
        leaks=(leak("10.244.1.4"),),
        left=rarely("a source is silent"),
    ),
)
API = Scenario(
    name="with the API server, whose word lags",
    start=node(
        box(ONE),
        running(TWO, "10.244.1.2", told=("10.244.1.2",)),
        families=(V4,),
        left=rarely("docker rm -f"),
    ),
    setup=Setup(api=True),
    actors=(*EVERYBODY, status_follows),
)
DOCKER = Scenario(
    name="docker restarts or forgets, lists a part or nothing, and remembers; the kubelet restarts",
    start=node(
        running(ONE, "10.244.1.2"),
        box(TWO),
        families=(("10.244.1.2", "10.244.1.3"),),
        left=rarely("docker restarts", "docker remembers", "kubelet restarts"),
    ),
    laws=IN_USE,
)
CLOCK = Scenario(
    name="the defaults, while the clock is set and time passes",
    start=node(
        running(ONE, "10.244.1.2"),
        box(TWO, leaves=False),
        families=(V4,),
        left=rarely("docker rm -f", "kubelet restarts", "ten minutes pass", "the wall clock is set forward"),
    ),
    setup=DEFAULTS,
    at_rest=False,
)
SURVIVOR_START = node(
    box(ONE),
    left=rarely("docker restarts", "kubelet restarts", "plugins survive the kubelet", "ten minutes pass"),
)
SETTLED = Scenario(
    name="docker lies, the kubelet restarts, its ADD goes on; with --settle as it is by default",
    start=SURVIVOR_START,
    setup=replace(DEFAULTS, grace=timedelta(0), confirm=timedelta(0)),
    laws=IN_USE,
    at_rest=False,
)
ROUNDS = Scenario(
    name="three rounds of the daemon beside a leak on a full range",
    start=node(
        box(ONE, setup="noted", container="created", checkpoint=True),
        leaks=(leak("10.244.1.2"),),
        families=(V4,),
        left=rarely("late DEL"),
    ),
    setup=Setup(rounds=3),
)

PROOF = (CHURN, FULL, RESTART, DYING, EMPTY, TWO_CLEANERS, KILLED, DUAL, SILENT, API, DOCKER, CLOCK, SETTLED, ROUNDS)
