"""Feeds the checker with what the kernel shows: a sandbox holds an address while a live process has it.

A runtime deletes a reservation before the address is gone from the namespace, and before the last process has ended.
So a holder without its reservation is evidence only if the agent's journal names its sandbox, or if nobody asked for
the end of its pod and it stays like that.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tests.stress.checker import Action
from tests.stress.kernel import Namespace
from tests.stress.ledger import Ledger, Store


@dataclass(frozen=True, slots=True)
class Holder:
    ip: str
    sandbox: str  # The namespace, if no process names a sandbox
    pod: str


class Oracle:
    """`namespaces`: return those of the kernel. `released`: return the sandboxes in the agent's journal.

    `ending`: UIDs of pods whose end was asked for. `persists`: seconds that a runtime may take from the end of a
    reservation to the end of the address.
    """

    def __init__(
        self,
        namespaces: Callable[[], Sequence[Namespace]],
        store: Store,
        ledger: Ledger,
        released: Callable[[], AbstractSet[str]],
        ending: AbstractSet[str],
        persists: float = 5.0,
    ) -> None:
        self._namespaces, self._store, self._ledger = namespaces, store, ledger
        self._released, self._ending, self._persists = released, ending, persists
        self._held: set[tuple[str, str]] = set()
        self._wrong_before: set[tuple[str, str]] = set()
        """Holders without their reservation before the run: of others, who are not judged."""
        self._missing_since: dict[tuple[str, str], float] = {}
        self._called_leaked: set[str] = set()
        self.looks = 0
        self.false_findings: set[str] = set()
        """Sandboxes that the agent had called leaked, and that had a live process afterwards."""

    def called_leaked(self, sandboxes: AbstractSet[str]) -> None:
        """Take what the agent calls leaked: none of these may be seen alive from now on."""
        self._called_leaked |= sandboxes

    def tolerate(self) -> None:
        """Never judge the holders that have no reservation now."""
        files = self._store.left()
        self._wrong_before |= {
            key for key in _holders(self._namespaces()) if files.get(key[0]) != key[1]
        }

    def look(self) -> None:
        """Compare the kernel with the store once."""
        called_leaked = set(self._called_leaked)
        holders = _holders(self._namespaces())
        since = time.monotonic()
        files = self._store.left()
        missing = {key for key in holders if files.get(key[0]) != key[1]}
        missing -= self._wrong_before
        proven = self._proven(missing)
        for key in self._held - holders.keys():
            self._end(key)
        for key in holders.keys() - self._held - (missing - proven) - self._wrong_before:
            self._held.add(key)
            self._ledger.action(Action.CREATED, key[1])
            self._ledger.action(Action.ADDED, key[1], key[0])
        for key in self._held & (missing - proven):
            if holders[key].pod in self._ending:
                self._end(key)
        unproven = {ip for ip, _ in missing - proven}
        for ip in self._store.addresses:
            if ip not in unproven:
                self._ledger.file_read(since, ip, files.get(ip))
        self.false_findings |= called_leaked & {holder.sandbox for holder in holders.values()}
        self.looks += 1

    def _end(self, key: tuple[str, str]) -> None:
        """The runtime ended it, or is about to."""
        self._held.discard(key)
        self._ledger.action(Action.DEL_CALLED, key[1])

    def _proven(self, missing: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return the holders whose reservation is not theirs, and which the runtime is not just ending."""
        now = time.monotonic()
        self._missing_since = {key: self._missing_since.get(key, now) for key in missing}
        if not missing:
            return set()
        released, holders = self._released(), _holders(self._namespaces())
        times = Counter(ip for ip, _ in holders)
        return {
            key
            for key in missing & holders.keys()
            if key[1] in released
            or (
                now - self._missing_since[key] > self._persists
                and (holders[key].pod not in self._ending or times[key[0]] > 1)
            )
        }


def _holders(namespaces: Sequence[Namespace]) -> Mapping[tuple[str, str], Holder]:
    """Return who has which address. A namespace without a process counts only beside another one."""
    times = Counter(ip for namespace in namespaces for ip in namespace.ips)
    found = {}
    for namespace in namespaces:
        for ip in namespace.ips:
            if namespace.sandbox or times[ip] > 1:
                holder = Holder(ip, namespace.sandbox or namespace.name, namespace.pod)
                found[ip, holder.sandbox] = holder
    return found
