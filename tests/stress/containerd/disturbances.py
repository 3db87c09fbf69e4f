"""Threads that kill CNI plugins, and that write reservations by hand."""

import fcntl
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Final

from tests.stress.containerd.sandboxes import Sandboxes

_EVERY: Final = (0.5, 3.0)


class PluginKiller:
    """Kills a plugin or host-local's wrapper now and then; what they started goes on without them."""

    def __init__(self, sandboxes: Sandboxes, chance: Random) -> None:
        self._sandboxes, self._chance = sandboxes, chance
        self.killed = 0

    def work(self) -> None:
        while not self._sandboxes.state.stopping.wait(self._chance.uniform(*_EVERY)):
            running = self._sandboxes.node.plugins_running()
            with suppress(ProcessLookupError, IndexError):
                os.kill(self._chance.choice(running), signal.SIGKILL)
                self.killed += 1


class Forger:
    """Writes a reservation of a sandbox that never was, under host-local's lock."""

    def __init__(self, sandboxes: Sandboxes, chance: Random) -> None:
        self._sandboxes, self._chance = sandboxes, chance
        self.forged = 0

    def work(self) -> None:
        while not self._sandboxes.state.stopping.wait(self._chance.uniform(*_EVERY)):
            self._forge(self._sandboxes.store.addresses)

    def _forge(self, addresses: Sequence[str]) -> None:
        directory, sandbox = self._sandboxes.store.directory, f"{self._chance.getrandbits(256):064x}"
        if not directory.is_dir():
            return
        file = directory / self._chance.choice(addresses)
        self._sandboxes.mark_gone(sandbox)
        with (directory / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileExistsError):
                with file.open("x") as written:
                    written.write(f"{sandbox}\r\neth0")
                self._sandboxes.store.read(file.name)
                self.forged += 1
