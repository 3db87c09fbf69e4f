"""The steps that create, connect and remove sandboxes; each step is recorded in the ledger."""

from dataclasses import dataclass, replace

from tests.stress.engine import Engine
from tests.stress.events import Action
from tests.stress.host_local import Added, HostLocal
from tests.stress.ledger import Ledger
from tests.stress.libcni import Cache
from tests.stress.store import Store


@dataclass(frozen=True, slots=True)
class Node:
    """The steps that a kubelet takes with a sandbox. The caller decides their order."""

    engine: Engine
    host_local: HostLocal
    cache: Cache
    store: Store
    ledger: Ledger

    def for_another_thread(self) -> "Node":
        return replace(self, engine=self.engine.another())

    def create(self) -> str:
        sandbox = self.engine.create()
        self.ledger.action(Action.CREATED, sandbox)
        return sandbox

    def add(self, sandbox: str) -> Added | None:
        """Reserve an address and verify its file at once; None if the range is exhausted."""
        added = self.host_local.add(sandbox)
        if added is None:
            self.ledger.action(Action.EXHAUSTED, sandbox)
            return None
        self.ledger.action(Action.ADDED, sandbox, added.ip)
        self.store.read(added.ip)
        self.cache.write(sandbox, added.result)
        return added

    def add_killed(self, sandbox: str, moment: float) -> None:
        """Kill an ADD and read what it left in the store."""
        self.host_local.add_killed(sandbox, moment)
        self.store.read_all()
        self.ledger.action(Action.KILLED, sandbox)

    def read(self, sandbox: str) -> None:
        """Verify the files of the addresses that a sandbox holds."""
        self.store.read(*self.ledger.owned(sandbox))

    def delete(self, sandbox: str) -> None:
        self.read(sandbox)
        self.ledger.action(Action.DEL_CALLED, sandbox)
        self.host_local.delete(sandbox)
        self.ledger.action(Action.DELETED, sandbox)
        self.cache.forget(sandbox)

    def remove(self, sandbox: str) -> None:
        """Remove the container; without a preceding DEL this leaks its reservations."""
        self.read(sandbox)
        self.ledger.action(Action.RM_CALLED, sandbox)
        self.engine.remove(sandbox)
        self.ledger.action(Action.REMOVED, sandbox)
