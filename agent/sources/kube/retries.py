"""How long to wait after failures before the next request to the API server.

Runtimes and single commands do not use it: the next sync, or the user, is the retry.
"""

from collections.abc import Callable
from threading import Event
from typing import Final, TypeAlias

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    wait_exception,
    wait_exponential,
    wait_random,
)
from tenacity.wait import wait_base

from agent.sources.kube.errors import ApiError
from agent.sources.source_error import SourceError

SHORTEST: Final = 0.5  # seconds
LONGEST_GROWTH: Final = 30.0  # seconds
LONGEST_SPREAD: Final = 15.0  # seconds

Wait: TypeAlias = wait_base
"""How long to wait after so many failures in a row."""


def backoff(growth: float = LONGEST_GROWTH, spread: float = LONGEST_SPREAD) -> Wait:
    """Wait 0.5 s, doubled with each failure in a row; a random time; and what the server demands.

    `growth`: seconds after which it is not doubled any more. `spread`: seconds at random, at most,
    which separate the agents of all nodes from the first wait on: behind a load balancer the first
    retry succeeds, and they all make it after the same event.
    """
    doubled = wait_exponential(multiplier=min(SHORTEST, growth), max=growth)
    return doubled + wait_random(0, spread) + wait_exception(_retry_after)


def retrying(stop: Event, wait: Callable[[], Wait]) -> Retrying:
    """Try again after each SourceError.

    `stop` ends a wait, but not the attempts. `wait` is called after each failure.
    """

    def waited(failed: RetryCallState) -> float:
        return wait()(failed)

    return Retrying(
        retry=retry_if_exception_type(SourceError),
        wait=waited,
        sleep=sleep_using_event(stop),
    )


def _retry_after(error: BaseException) -> float:
    return error.retry_after.total_seconds() if isinstance(error, ApiError) else 0.0
