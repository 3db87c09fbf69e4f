"""The watcher: reads the file of every address again and again, whoever holds it."""

from typing import Final

from tests.stress.course import Course
from tests.stress.store import Store

_EVERY: Final = 0.02


def watch(store: Store, history: Course) -> None:
    while not history.over.wait(_EVERY):
        store.look_around()
