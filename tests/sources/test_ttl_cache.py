"""Answers and failures are cached for a while."""

import pytest

from agent.sources.source_error import SourceError
from agent.sources.ttl_cache import TTLCache


class Server:
    """Counts its answers, and fails where it is down."""

    def __init__(self) -> None:
        self.now, self.calls, self.down = 0.0, 0, False
        self.cache = TTLCache[int](lambda: self.now, 60, failure_seconds=10)

    def get(self, *about: str) -> int:
        return self.cache.get(self._ask, frozenset(about))

    def _ask(self) -> int:
        self.calls += 1
        if self.down:
            raise SourceError("down")
        return self.calls


def test_an_answer_is_kept_until_it_expires() -> None:
    server = Server()
    assert [server.get(), server.get()] == [1, 1]
    server.now = 59.9
    assert server.get() == 1
    server.now = 60
    assert server.get() == 2


def test_a_failure_has_its_own_expiry() -> None:
    server = Server()
    server.down = True
    for _ in range(2):
        with pytest.raises(SourceError, match="down"):
            server.get()
    assert server.calls == 1
    server.down, server.now = False, 10
    assert server.get() == 2


def test_an_answer_is_reused_for_the_same_or_fewer_subjects() -> None:
    server = Server()
    assert [server.get("a", "b"), server.get("a"), server.get("a", "b")] == [1, 1, 1]
    assert server.get("a", "c") == 2
