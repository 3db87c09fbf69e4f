"""The oracle: what was told of sandboxes, and seen on disk, says whether an address was ever wrongly released. Pure.

1. No address is taken from a holder. A sandbox holds an address from ADD's return, or from the first sight of a file
   with its id, until somebody calls DEL or `docker rm` for it; whether its worker still lives does not matter.
2. No address is held twice at a time.
3. Every leak (`docker rm` without DEL) is reclaimed in the end.
4. Nothing else is left in the store than what host-local keeps there for itself.

It raises no false alarm: a look convicts only if the holder held before the look began, and holds when it is told.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from tests.stress.history import Deed, Did, Event, Looked, Said, Violation, Wrong

KEPT: Final = frozenset({"lock", "last_reserved_ip.0"})
"""What host-local leaves in an empty store."""
_TRAIL: Final = 8


@dataclass(slots=True)
class _Holding:
    sandbox: str
    since: float
    robbed: bool = False
    """It was told once; it goes on holding what it believes to have."""


@dataclass(frozen=True, slots=True)
class _Leak:
    sandbox: str
    since: float


class Oracle:
    """What is known so far. It keeps no history but the last events of each address, so that it can run for days."""

    def __init__(self, began: float = 0.0) -> None:
        self.violations: list[Violation] = []
        self.deeds: Counter[Deed] = Counter()
        self.leaked = 0
        self.half_added = 0
        """Killed ADDs that had reserved an address by then."""
        self.reclaim_seconds: list[float] = []
        """Of each leak that was reclaimed: how long its address was lost."""
        self._began = began
        self._holders: dict[str, _Holding] = {}
        self._leaks: dict[str, _Leak] = {}
        self._owned: dict[str, set[str]] = {}
        """The addresses of each sandbox that may own some."""
        self._dead: set[str] = set()
        """Sandboxes removed without a DEL: a file with such an id is a leak, whoever finds it."""
        self._known_leaks: set[tuple[str, str]] = set()
        self._trails: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_TRAIL))
        self._last_found: dict[str, str | None] = {}

    @property
    def leaks(self) -> dict[str, str]:
        """The sandboxes of what is leaked now, by address."""
        return {ip: leak.sandbox for ip, leak in self._leaks.items()}

    @property
    def occupied(self) -> int:
        """How many addresses are held or leaked."""
        return len(self._holders) + len(self._leaks)

    def owned(self, sandbox: str) -> tuple[str, ...]:
        """Return the addresses that a sandbox holds, or believes to hold."""
        return tuple(self._owned.get(sandbox, ()))

    def hear(self, event: Event) -> None:
        """Judge the next event."""
        match event:
            case Did():
                self._hear_deed(event)
            case Looked():
                self._hear_look(event)
            case Said():
                self._hear_claim(event)
            case _:
                assert_never(event)

    def settle(self, at: float, left: Mapping[str, str]) -> None:
        """Judge what is in the store when all is over: ids by file name."""
        for name, found in sorted(left.items()):
            if name in KEPT:
                continue
            leak = self._leaks.get(name)
            if leak is not None and leak.sandbox == found:
                lost = f"for {at - leak.since:.1f} s, since its container was removed without DEL"
                self._accuse(at, Wrong.UNRECLAIMED, name, found, lost)
            else:
                self._accuse(at, Wrong.LEFT_OVER, name, found, f"a file that {found[:12] or 'no id'} is in")

    def _hear_claim(self, said: Said) -> None:
        """Note what a cleaner said, but not again and again: it would push out what happened."""
        trail = self._trails[said.ip]
        if not trail or not trail[-1].endswith(said.claim):
            self._note(said.ip, said.at, said.claim)

    def _hear_deed(self, did: Did) -> None:
        self.deeds[did.deed] += 1
        match did.deed:
            case Deed.CREATED:
                self._owned[did.sandbox] = set()
            case Deed.ADDED:
                self._note(did.ip, did.at, f"{did.deed} to {did.sandbox[:12]}")
                self._reclaimed(did.ip, did.at)
                self._hold(did.ip, did.sandbox, did.at)
            case Deed.DEL_CALLED:
                self._let_go(did)
            case Deed.RM_CALLED:
                self._abandon(did)
            case Deed.KILLED:
                self.half_added += bool(self.owned(did.sandbox))
            case Deed.DELETED | Deed.EXHAUSTED | Deed.REMOVED:
                pass
            case _:
                assert_never(did.deed)

    def _hold(self, ip: str, sandbox: str, at: float) -> None:
        holding = self._holders.get(ip)
        if holding is not None and holding.sandbox == sandbox:
            return
        if holding is not None:
            self._accuse(at, Wrong.HELD_TWICE, ip, sandbox, f"{holding.sandbox[:12]} has held it all the time")
        self._holders[ip] = _Holding(sandbox, at)
        self._owned.setdefault(sandbox, set()).add(ip)

    def _let_go(self, did: Did) -> None:
        for ip in self._owned.pop(did.sandbox, set()):
            self._note(ip, did.at, f"{did.deed} for {did.sandbox[:12]}")
            if self._is_holder(did.sandbox, ip):
                del self._holders[ip]

    def _abandon(self, did: Did) -> None:
        if did.sandbox not in self._owned:
            return  # DEL was called before
        kept = {
            ip for ip in self._owned[did.sandbox] if self._is_holder(did.sandbox, ip) and not self._holders[ip].robbed
        }
        self._dead.add(did.sandbox)
        self._let_go(did)
        for ip in kept:
            self._leak(ip, did.sandbox, did.at)

    def _is_holder(self, sandbox: str, ip: str) -> bool:
        """Tell whether an address is this sandbox's, and was not given to another one after a robbery."""
        holding = self._holders.get(ip)
        return holding is not None and holding.sandbox == sandbox

    def _leak(self, ip: str, sandbox: str, at: float) -> None:
        if (ip, sandbox) not in self._known_leaks:
            self._known_leaks.add((ip, sandbox))
            self._leaks[ip] = _Leak(sandbox, at)
            self.leaked += 1

    def _hear_look(self, look: Looked) -> None:
        if look.ip not in self._last_found or self._last_found[look.ip] != look.found:
            self._last_found[look.ip] = look.found
            self._note(look.ip, look.at, f"seen {_described(look.found)}")
        holding = self._holders.get(look.ip)
        if holding and holding.since <= look.since and look.found != holding.sandbox and not holding.robbed:
            holding.robbed = True
            self._accuse(look.at, Wrong.TAKEN, look.ip, holding.sandbox, f"found {_described(look.found)}")
        leak = self._leaks.get(look.ip)
        if leak and leak.since <= look.since and look.found != leak.sandbox:
            self._reclaimed(look.ip, look.at)
        # A sight older than its holder says nothing: it may be of whoever had the address before.
        if look.found in self._owned and (holding is None or holding.robbed):
            self._hold(look.ip, look.found, look.at)
        elif look.found in self._dead and holding is None:
            self._leak(look.ip, look.found, look.at)

    def _reclaimed(self, ip: str, at: float) -> None:
        if leak := self._leaks.pop(ip, None):
            self.reclaim_seconds.append(at - leak.since)

    def _accuse(self, at: float, wrong: Wrong, ip: str, sandbox: str, detail: str) -> None:
        self.violations.append(Violation(at, wrong, ip, sandbox, detail, tuple(self._trails[ip])))

    def _note(self, ip: str, at: float, text: str) -> None:
        self._trails[ip].append(f"{at - self._began:.3f} {text}")


def _described(found: str | None) -> str:
    if found is None:
        return "no file"
    return f"with {found[:12]}" if found else "empty"


def judge(history: Iterable[Event], at: float, left: Mapping[str, str]) -> tuple[Violation, ...]:
    """Judge a whole history and what it left in the store."""
    oracle = Oracle()
    for event in history:
        oracle.hear(event)
    oracle.settle(at, left)
    return tuple(oracle.violations)
