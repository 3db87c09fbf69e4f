"""Answers and failures are cached for a while."""

import pytest

from agent.sources.kube.cached_request import CachedRequest
from agent.sources.kube.client import Get
from agent.sources.source_error import SourceError
from tests.sources.kube.connections import inquirer


class Server:
    """Counts its answers, and fails where it is down."""

    def __init__(self) -> None:
        self.now, self.calls, self.down = 0.0, 0, False
        self._cached = CachedRequest[bytes](inquirer(self._answer), lambda: self.now, 60, failure_seconds=10)

    def get(self, *subjects: str) -> int:
        def read(get: Get) -> bytes:
            return get("/", ())

        return int(self._cached.get(read, frozenset(subjects)))

    def _answer(self, *_: object) -> bytes:
        self.calls += 1
        if self.down:
            raise SourceError("down")
        return str(self.calls).encode()


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
