"""Reads the file of every address in a loop."""

from typing import Final

from tests.stress.run_state import RunState
from tests.stress.store import Store

_EVERY: Final = 0.02


def watch(store: Store, state: RunState) -> None:
    while not state.over.wait(_EVERY):
        store.read_all()
