"""Calls of the kubelet that outlast a killed containerd, and who answers for which sandbox."""

import re
import time
from collections.abc import Callable
from threading import Condition
from typing import Final, TypeVar

from agent.sources.runtime.grpc_unary import GrpcError
from agent.sources.source_error import SourceError
from tests.containerd.node import ContainerdNode
from tests.stress.events import Action
from tests.stress.ledger import Ledger
from tests.stress.run_state import RunState
from tests.stress.store import Store

_T = TypeVar("_T")

_BEFORE_RETRY: Final = 0.1
_LONGEST: Final = 60.0
"""Seconds until a call that keeps failing fails the run."""
_EXHAUSTED: Final = "no IP addresses available in range set"
_NAMED: Final = re.compile("[0-9a-f]{64}")


class Sandboxes:
    """The sandboxes of one node. Every thread that calls the runtime pauses while it is down."""

    def __init__(self, node: ContainerdNode, store: Store, ledger: Ledger, state: RunState) -> None:
        self.node, self.store, self.ledger, self.state = node, store, ledger, state
        self.known: set[str] = set()
        """Those that a thread will stop, or that lost their records: nobody else may remove them."""
        self.gone: set[str] = set()
        """Those that no longer exist: whoever finds an address of them has found a leak."""
        self.interrupted = 0
        self._changed = Condition()
        self._up, self._callers, self._paused = True, 0, 0

    # Outages

    def join(self, change: int) -> None:
        """Count a thread that calls, or (-1) no longer does."""
        with self._changed:
            self._callers += change
            self._changed.notify_all()

    def pause(self) -> None:
        """From now on, every thread waits before its next call."""
        with self._changed:
            self._up = False

    def all_paused(self) -> bool:
        """Wait until every thread waits."""
        with self._changed:
            return self._changed.wait_for(lambda: self._paused >= self._callers, _LONGEST)

    def resume(self) -> None:
        with self._changed:
            self._up = True
            self._changed.notify_all()

    def until_up(self) -> None:
        with self._changed:
            self._paused += 1
            self._changed.notify_all()
            while not self._up and not self.state.over.is_set():
                self._changed.wait(_BEFORE_RETRY)
            self._paused -= 1

    def _persist(self, call: Callable[[], _T], what: str) -> _T:
        """Repeat a call until it succeeds, as a kubelet does."""
        end = time.monotonic() + _LONGEST
        while True:
            self.until_up()
            try:
                return call()
            except SourceError as error:
                if time.monotonic() > end or self.state.over.is_set():
                    raise SourceError(f"{what} keeps failing: {error}") from error
                time.sleep(_BEFORE_RETRY)

    # What a kubelet does

    def run(self, pod: str) -> tuple[str, str] | None:
        """Make a sandbox; return its id and its address, which the runtime names. None: it failed."""
        self.until_up()
        try:
            sandbox = self.node.kubelet.run(pod)
        except SourceError as error:
            self._failed(error)
            return None
        self.known.add(sandbox)
        ip = self._persist(lambda: self.node.kubelet.address(sandbox), "PodSandboxStatus")
        self.ledger.action(Action.CREATED, sandbox)
        self.ledger.action(Action.ADDED, sandbox, ip)
        self.store.read(ip)
        return sandbox, ip

    def _failed(self, error: SourceError) -> None:
        message = error.message if isinstance(error, GrpcError) else ""
        if _EXHAUSTED in message:
            self.ledger.action(Action.EXHAUSTED, "")
        else:
            self.interrupted += 1
        # Of an interrupted call nobody knows the id: who restarts containerd removes what it finds.
        if named := _NAMED.search(message):
            sandbox = named[0]
            if sandbox in self._persist(self.node.kubelet.sandboxes, "ListPodSandbox"):
                self.remove(sandbox)
            self.mark_gone(sandbox)

    def delete(self, sandbox: str) -> None:
        """Stop and remove a sandbox."""
        self.store.read(*self.ledger.owned(sandbox))
        self.ledger.action(Action.DEL_CALLED, sandbox)
        self.remove(sandbox)
        self.mark_gone(sandbox)
        self.known.discard(sandbox)

    def remove(self, sandbox: str) -> None:
        kubelet = self.node.kubelet

        def stop_and_remove() -> None:
            kubelet.stop(sandbox)
            kubelet.remove(sandbox)

        self._persist(stop_and_remove, f"the removal of {sandbox[:12]}")

    def mark_gone(self, sandbox: str) -> None:
        """From now on, a file with its id is a leak."""
        if sandbox not in self.gone:
            self.gone.add(sandbox)
            self.ledger.action(Action.CREATED, sandbox)
            self.ledger.action(Action.RM_CALLED, sandbox)
