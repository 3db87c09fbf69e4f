"""Decides from recorded events whether an address was released wrongly. Pure: no I/O.

1. No address is taken from its holder. A sandbox holds an address from the return of ADD, or from the first read of a
   file with its id, until a thread calls DEL or removes it, even if its worker was killed.
2. No two sandboxes hold the same address at the same time.
3. Every leak (a sandbox that is removed without DEL) is reclaimed in the end.
4. At the end the store contains only host-local's own files.

No false positives: a file read counts as evidence only if the sandbox held the address before the read began and still
holds it when the read is recorded. Events are recorded one at a time, so their order is reliable: a call is recorded
before it starts, a result after the call returned. Times are seconds of the monotonic clock.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

KEPT: Final = frozenset(
    {"lock", "last_reserved_ip.0"}
)  # host-local's own files, present in an empty store too
_TRAIL: Final = 8


class Action(StrEnum):
    """What a thread did, or is about to do, with a sandbox."""

    CREATED = "created"  # The runtime knows it: it may own an address from now on
    ADDED = "ADD returned"
    EXHAUSTED = "ADD found no address"
    KILLED = "ADD killed"  # Recorded after reading the store: a file with this sandbox's id is its reservation
    DEL_CALLED = "DEL called"
    RM_CALLED = "rm called"


@dataclass(frozen=True, slots=True)
class ActionEvent:
    at: float
    action: Action
    sandbox: str
    ip: str = ""  # For `ADDED` only


@dataclass(frozen=True, slots=True)
class FileRead:
    """The reservation file of one address, read between `since` and `at`."""

    at: float
    since: float
    ip: str
    found: str | None  # The container id in it; empty for an empty file, None for no file


Event = ActionEvent | FileRead


class ViolationKind(StrEnum):
    TAKEN = "taken from its holder"
    HELD_TWICE = "held twice"
    UNRECLAIMED = "leak never reclaimed"
    LEFT_OVER = "left over"


@dataclass(frozen=True, slots=True)
class Violation:
    at: float
    kind: ViolationKind
    ip: str
    sandbox: str
    detail: str
    trail: tuple[str, ...]  # The last events of the address with their times

    def line(self, began: float) -> str:
        """Format it in one line. `began`: start of the run."""
        whose = self.sandbox[:12] or "no container"
        return f"{self.at - began:8.3f} s  {self.kind}: {self.ip} of {whose}: {self.detail} [{'; '.join(self.trail)}]"


@dataclass(slots=True)
class _Holding:
    sandbox: str
    since: float
    lost: bool = False  # Already reported; the sandbox still believes that it holds the address


@dataclass(frozen=True, slots=True)
class _Leak:
    sandbox: str
    since: float


class Checker:
    """The state so far. It keeps only the last events of each address, so that it can run for days."""

    def __init__(self, began: float = 0.0) -> None:
        self.violations: list[Violation] = []
        self.actions: Counter[Action] = Counter()
        self.leaked = 0
        self.half_added = 0  # Killed ADDs that had already reserved an address
        self.reclaim_seconds: list[float] = []  # The lifetime of each reclaimed leak
        self._began = began
        self._holders: dict[str, _Holding] = {}
        self._leaks: dict[str, _Leak] = {}
        self._owned: dict[str, set[str]] = {}  # The addresses of each sandbox that exists
        self._dead: set[str] = (
            set()
        )  # Sandboxes removed without DEL: a file with such an id is a leak
        self._known_leaks: set[tuple[str, str]] = set()
        self._trails: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_TRAIL))
        self._last_found: dict[str, str | None] = {}

    def owned(self, sandbox: str) -> tuple[str, ...]:
        """Return the addresses that a sandbox holds, or believes to hold."""
        return tuple(self._owned.get(sandbox, ()))

    def record(self, event: Event) -> None:
        """Process the next event."""
        if isinstance(event, FileRead):
            self._record_read(event)
        else:
            self._record_action(event)

    def finish(self, at: float, left: Mapping[str, str]) -> None:
        """Check the final content of the store: ids by file name."""
        for name, found in sorted(left.items()):
            leak = self._leaks.get(name)
            if name in KEPT:
                continue
            if leak is not None and leak.sandbox == found:
                detail = f"for {at - leak.since:.1f} s, since its container was removed without DEL"
                self._report(at, ViolationKind.UNRECLAIMED, name, found, detail)
            else:
                self._report(
                    at, ViolationKind.LEFT_OVER, name, found, f"a file with {found[:12] or 'no id'}"
                )

    def _record_action(self, event: ActionEvent) -> None:
        self.actions[event.action] += 1
        match event.action:
            case Action.CREATED:
                self._owned[event.sandbox] = set()
            case Action.ADDED:
                self._note(event.ip, event.at, f"{event.action} to {event.sandbox[:12]}")
                self._reclaimed(event.ip, event.at)
                self._hold(event.ip, event.sandbox, event.at)
            case Action.DEL_CALLED:
                self._release(event)
            case Action.RM_CALLED:
                self._abandon(event)
            case Action.KILLED:
                self.half_added += bool(self.owned(event.sandbox))
            case Action.EXHAUSTED:
                pass
            case _:
                assert_never(event.action)

    def _hold(self, ip: str, sandbox: str, at: float) -> None:
        holding = self._holders.get(ip)
        if holding is not None and holding.sandbox == sandbox:
            return
        if holding is not None:
            self._report(
                at, ViolationKind.HELD_TWICE, ip, sandbox, f"still held by {holding.sandbox[:12]}"
            )
        self._holders[ip] = _Holding(sandbox, at)
        self._owned.setdefault(sandbox, set()).add(ip)

    def _release(self, event: ActionEvent) -> None:
        for ip in self._owned.pop(event.sandbox, set()):
            self._note(ip, event.at, f"{event.action} for {event.sandbox[:12]}")
            if self._is_holder(event.sandbox, ip):
                del self._holders[ip]

    def _abandon(self, event: ActionEvent) -> None:
        if event.sandbox not in self._owned:
            return  # DEL was called before
        kept = {
            ip
            for ip in self._owned[event.sandbox]
            if self._is_holder(event.sandbox, ip) and not self._holders[ip].lost
        }
        self._dead.add(event.sandbox)
        self._release(event)
        for ip in kept:
            self._leak(ip, event.sandbox, event.at)

    def _is_holder(self, sandbox: str, ip: str) -> bool:
        """Return whether the address is still this sandbox's, and not a later holder's."""
        holding = self._holders.get(ip)
        return holding is not None and holding.sandbox == sandbox

    def _leak(self, ip: str, sandbox: str, at: float) -> None:
        if (ip, sandbox) not in self._known_leaks:
            self._known_leaks.add((ip, sandbox))
            self._leaks[ip] = _Leak(sandbox, at)
            self.leaked += 1

    def _record_read(self, read: FileRead) -> None:
        if read.ip not in self._last_found or self._last_found[read.ip] != read.found:
            self._last_found[read.ip] = read.found
            self._note(read.ip, read.at, f"seen {_describe(read.found)}")
        holding = self._holders.get(read.ip)
        if (
            holding
            and holding.since <= read.since
            and read.found != holding.sandbox
            and not holding.lost
        ):
            holding.lost = True
            self._report(
                read.at,
                ViolationKind.TAKEN,
                read.ip,
                holding.sandbox,
                f"found {_describe(read.found)}",
            )
        leak = self._leaks.get(read.ip)
        if leak and leak.since <= read.since and read.found != leak.sandbox:
            self._reclaimed(read.ip, read.at)
        # A read older than the holder proves nothing: it may show the previous holder.
        if read.found in self._owned and (holding is None or holding.lost):
            self._hold(read.ip, read.found, read.at)
        elif read.found in self._dead and holding is None:
            self._leak(read.ip, read.found, read.at)

    def _reclaimed(self, ip: str, at: float) -> None:
        if leak := self._leaks.pop(ip, None):
            self.reclaim_seconds.append(at - leak.since)

    def _report(self, at: float, kind: ViolationKind, ip: str, sandbox: str, detail: str) -> None:
        self.violations.append(Violation(at, kind, ip, sandbox, detail, tuple(self._trails[ip])))

    def _note(self, ip: str, at: float, text: str) -> None:
        self._trails[ip].append(f"{at - self._began:.3f} {text}")


def _describe(found: str | None) -> str:
    if found is None:
        return "no file"
    return f"with {found[:12]}" if found else "empty"


def check(history: Iterable[Event], at: float, left: Mapping[str, str]) -> tuple[Violation, ...]:
    """Check a whole history and the final content of the store."""
    checker = Checker()
    for event in history:
        checker.record(event)
    checker.finish(at, left)
    return tuple(checker.violations)
