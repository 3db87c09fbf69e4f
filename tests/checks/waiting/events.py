"""A stand-in of the API server's Events, which the real source reads."""

import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

from agent.model.snapshot import Known, Pod, Snapshot
from agent.sources.kube.sandbox_failures import SandboxFailuresSource
from tests.builders import waiting_pod
from tests.sources.kube.connections import inquirer

MINUTE = timedelta(minutes=1)
CREATING = "Failed to create pod sandbox: rpc error: code = Unknown desc = "
CONTAINERD = f'{CREATING}failed to setup network for sandbox "{"4f" * 32}": '
CRIO = (
    f"{CREATING}failed to create pod network sandbox k8s_web_shop_1c_0({'4f' * 32}): error adding "
    'pod shop_web to CNI network "cbr0": '
)


class Event(NamedTuple):
    message: str
    reason: str = "FailedCreatePodSandBox"
    ago: timedelta = timedelta(seconds=20)


def waits(name: str, ago: timedelta = 30 * MINUTE, **more: Any) -> Pod:
    """Return a pod that was scheduled so long ago, and needs no volume."""
    return replace(waiting_pod(name, claims=(), ago=ago), **more)


def some(count: int, ago: timedelta = 30 * MINUTE) -> tuple[Pod, ...]:
    """Return pods of different controllers; each has waited a second longer than the next."""
    return tuple(waits(f"apps/late-{n}", ago - n * timedelta(seconds=1)) for n in range(count))


def with_events(snapshot: Snapshot, *events: Event, of: Iterable[Pod] = ()) -> Snapshot:
    """Return the snapshot with what the API server says of its pods. `of`: of these only."""
    items = [
        {
            "reason": event.reason,
            "message": event.message,
            "count": 12,
            "lastTimestamp": (snapshot.api_time - event.ago).isoformat(),
        }
        for event in events
    ]
    uids = {pod.uid for pod in of}

    def get(_: str, query: Any = ()) -> bytes:
        asked = dict(query)["fieldSelector"].removeprefix("involvedObject.uid=")
        return json.dumps({"items": items if not uids or asked in uids else []}).encode()

    source = SandboxFailuresSource(inquirer(get), lambda: 0.0)
    assert source.reason_not_needed(snapshot) is None
    listed = source.read(snapshot)
    assert isinstance(listed, tuple)
    earlier = snapshot.sandbox_failures
    before = earlier.value if isinstance(earlier, Known) and uids else ()
    return replace(snapshot, sandbox_failures=Known((*before, *listed)))
