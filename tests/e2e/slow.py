"""CLUSTER_SLOW=SEED (hack/cluster --help): tests wait at random around their commands."""

import contextlib
import fcntl
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_SEED: Final = os.environ.get("CLUSTER_SLOW", "")
_LOCK: Final = Path("/run/nodeleak-cluster-slow.lock")
_random: Final = random.Random(_SEED)  # noqa: S311 (no secret)


def pause() -> None:
    """Wait not at all mostly, up to a second often, and up to four now and then."""
    if not _SEED:
        return
    longest = _random.choice((0, 0, 0, 0, 0.3, 0.3, 0.3, 1, 1, 4))
    time.sleep(_random.uniform(0, longest))  # noqa: TID251 (a real node takes real time)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Keep hack/cluster from resuming what the block suspends."""
    if not _SEED:
        yield
        return
    with _LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
