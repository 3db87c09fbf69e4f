"""What one thread has at hand to make, give an address to, and remove sandboxes; every step is told to the ledger."""

from dataclasses import dataclass, replace

from tests.stress.engine import Engine
from tests.stress.history import Deed
from tests.stress.ledger import Ledger
from tests.stress.libcni import Cache
from tests.stress.plugin import Added, HostLocal
from tests.stress.store import Store


@dataclass(frozen=True, slots=True)
class Node:
    """The steps of a kubelet's life with a sandbox. The order is up to whoever takes them."""

    engine: Engine
    host_local: HostLocal
    cache: Cache
    store: Store
    ledger: Ledger

    def for_another_thread(self) -> "Node":
        return replace(self, engine=self.engine.another())

    def create(self) -> str:
        sandbox = self.engine.create()
        self.ledger.did(Deed.CREATED, sandbox)
        return sandbox

    def add(self, sandbox: str) -> Added | None:
        """Reserve an address, and see at once whether it is there; None where the range is exhausted."""
        added = self.host_local.add(sandbox)
        if added is None:
            self.ledger.did(Deed.EXHAUSTED, sandbox)
            return None
        self.ledger.did(Deed.ADDED, sandbox, added.ip)
        self.store.look(added.ip)
        self.cache.write(sandbox, added.result)
        return added

    def add_killed(self, sandbox: str, moment: float) -> None:
        """Kill an ADD, and see what file it has left."""
        self.host_local.add_killed(sandbox, moment)
        self.store.look_around()
        self.ledger.did(Deed.KILLED, sandbox)

    def look(self, sandbox: str) -> None:
        """See whether what a sandbox holds is there."""
        self.store.look(*self.ledger.owned(sandbox))

    def delete(self, sandbox: str) -> None:
        self.look(sandbox)
        self.ledger.did(Deed.DEL_CALLED, sandbox)
        self.host_local.delete(sandbox)
        self.ledger.did(Deed.DELETED, sandbox)
        self.cache.forget(sandbox)

    def remove(self, sandbox: str) -> None:
        """Remove the container; without a DEL before it, what the sandbox has reserved is leaked by this."""
        self.look(sandbox)
        self.ledger.did(Deed.RM_CALLED, sandbox)
        self.engine.remove(sandbox)
        self.ledger.did(Deed.REMOVED, sandbox)
