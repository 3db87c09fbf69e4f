"""No value that a file, a runtime or an API server may say breaks a detector."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.checks import engine
from agent.checks.devices.history import with_history
from agent.model.devices import TransitionKind
from agent.model.snapshot import Known, Snapshot
from tests import builders as b
from tests.builders import GRACE
from tests.checks.strategies import device_nodes, volume_nodes
from tests.strategies import leaky_nodes, nodes

_ABSURD: dict[type, tuple[Any, ...]] = {
    datetime: (
        datetime.min.replace(tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ),
    timedelta: tuple(timedelta(days=days) for days in (-(10**7), -1, 0, 10**7)),
    int: (0, -1, 2**63 - 1, -(2**63)),
    str: ("", "-", "\x1b[2J", "x" * 300),
}
_CLOCKS = {"taken_at", "uptime"}
"""Of the snapshot itself: the agent's own clocks."""
_CHECKED = {"ip", "ips", "name"}
"""What a source has read as an address is one."""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], type]]:
    """Yield the path and the type of each value that can be absurd."""
    if type(value) in _ABSURD:
        yield path, type(value)
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            yield from leaves(part, (*path, number))
    elif is_dataclass(value) and not isinstance(value, Enum):
        for field in fields(value):
            if field.name not in _CHECKED and not (len(path) == 0 and field.name in _CLOCKS):
                yield from leaves(getattr(value, field.name), (*path, field.name))


def changed(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    """Return a value with another leaf at this path."""
    if not path:
        return leaf
    first, rest = path[0], path[1:]
    if isinstance(first, int):
        return (*value[:first], changed(value[first], rest, leaf), *value[first + 1 :])
    return replace(value, **{first: changed(getattr(value, first), rest, leaf)})


@st.composite
def absurd_nodes(draw: st.DrawFn) -> Snapshot:
    snapshot = draw(st.one_of(nodes(), leaky_nodes(), device_nodes(), volume_nodes()))
    possible = list(leaves(snapshot))
    for path, kind in draw(st.lists(st.sampled_from(possible), min_size=1, max_size=5)):
        snapshot = changed(snapshot, path, draw(st.sampled_from(_ABSURD[kind])))
    return snapshot


@given(absurd_nodes(), absurd_nodes())
def test_no_value_breaks_a_detector(first: Snapshot, second: Snapshot) -> None:
    state = None
    for seconds, snapshot in enumerate((first, first, second)):
        later = timedelta(seconds=15 * seconds)
        now = replace(snapshot, taken_at=first.taken_at + later, uptime=first.uptime + later)
        if isinstance(now.device_plugins, Known):
            now = with_history(now)
        report, state = engine.run(now, state, grace=GRACE, confirm_after=timedelta(0))
        assert [gap for gap in report.gaps if gap.broken] == []


def test_values_that_broke_a_detector() -> None:
    """Times to which nothing can be added: in a pod's status, an answer's `Date`, a state file."""
    started = replace(b.pod("shop/vm"), wants=(b.KVM,), started=datetime.max.replace(tzinfo=UTC))
    rejected = b.refused_pod("shop/vm", deleting=True)
    assert rejected.rejection is not None
    by_api = replace(rejected, rejection=replace(rejected.rejection, by_api=True), deleting=False)
    overdue = replace(rejected, deletion=b.NOW)
    ages = timedelta(days=10**7)
    appeared = b.transition(TransitionKind.SOCKET_APPEARED, socket=b.KVM_SOCKET)
    remembered = b.device_plugins(
        b.plugin_socket(),
        b.registered(b.KVM, "kvm0"),
        b.transition(TransitionKind.KUBELET_STARTED, ago=b.UPTIME),
        replace(appeared, uptime=-ages),
    )
    late = b.device_plugins(
        b.plugin_socket(),
        b.registered(b.KVM, "kvm0"),
        b.allocation("shop/vm", b.KVM, "kvm0"),
        b.transition(TransitionKind.KUBELET_STARTED, ago=timedelta(minutes=5)),
        b.transition(TransitionKind.REGISTERED, b.KVM, ago=timedelta(seconds=10)),
        kubelet_socket=timedelta(minutes=5),
        checkpoint_written=timedelta(seconds=10),
    )
    refused = b.refused_pod("shop/next", ago=timedelta(seconds=30))
    holders = (
        replace(started, created=datetime.min.replace(tzinfo=UTC)),
        replace(started, created=b.NOW),
    )
    for snapshot in (
        b.node(started, device_plugins=b.late_plugins()),
        *(
            replace(b.node(pod, device_plugins=b.late_plugins()), api_skew=skew)
            for pod in (by_api, overdue)
            for skew in (ages, -ages)
        ),
        with_history(b.node(device_plugins=remembered)),
        *(b.node(holder, refused, device_plugins=late) for holder in holders),
    ):
        assert [gap for gap in b.scanned(snapshot).gaps if gap.broken] == []
