"""Whether a cluster-autoscaler recognizes the provider ID of a Node. Pure.

It compares whole IDs with those of its cloud's instances, and counts an instance without an equal
one as unregistered (clusterstate, `getNotRegisteredNodes`). Its status has counts and no names.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from agent.checks.cluster.registration import Deadlines
from agent.model.finding import Severity
from agent.model.registration import (
    BESIDE_A_CLOUD,
    EMBEDDED_CONTROLLERS,
    OPENSTACK,
    Autoscaler,
)
from agent.model.snapshot import Node, Snapshot, known_or
from agent.model.text import count_of, format_age, format_time, join_names

_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*):")
_REGIONAL: Final = re.compile(rf"{OPENSTACK}://[^/]+/")
"""As OpenStack's cloud controller writes IDs with OS_CCM_REGIONAL."""
_NOTICED: Final = timedelta(minutes=1)
"""A status written so long after the registration counts the node as registered, if it matches."""


class Doubt(NamedTuple):
    """Why the autoscaler may not recognize a provider ID."""

    lead: str
    details: tuple[str, ...]
    severity: Severity

    @property
    def message(self) -> str:
        remedies = (
            "compare it with the ID at the cloud provider",
            "if they differ, pause the autoscaler or protect the instance",
            "without an autoscaler, set --provider-id=ignored",
        )
        return "; ".join([self.lead, *self.details, *remedies])


def scheme(provider_id: str) -> str | None:
    """Return the scheme of a provider ID, such as `aws`; None: it has none."""
    matched = _SCHEME.match(provider_id)
    return matched[1] if matched else None


def doubt_of_id(node: Node, deadlines: Deadlines, snapshot: Snapshot) -> Doubt | None:
    """Return why the autoscaler may not recognize the ID of a young Node; None: nothing says so."""
    cluster = known_or(snapshot.autoscaler, None)
    status = cluster or Autoscaler()
    if node.created is None or node.has_machine:
        return None
    age = snapshot.api_time - node.created
    if _counts_none(status, node.created, age, deadlines):
        return None

    own = scheme(node.provider_id)
    is_missed = bool(status.unregistered or status.long_unregistered)
    others = {name for name in status.schemes if name not in BESIDE_A_CLOUD}

    if own in EMBEDDED_CONTROLLERS:
        uses_cloud = bool(others - EMBEDDED_CONTROLLERS.keys())
        if status.exists is False and not (status.marked or uses_cloud):
            return None
        is_likely = is_missed or bool(status.exists or status.marked or uses_cloud)
        setter = EMBEDDED_CONTROLLERS[own]
        reason = f"which {setter} sets itself: an autoscaler of a cloud does not know it"
    elif _differs(own, others, status):
        is_likely = is_missed or status.exists is not False
        names = join_names([f"{name}:" for name in sorted(others)])
        reason = f"and those of {status.others_with_id} other nodes begin with {names}"
    elif is_missed and _REGIONAL.match(node.provider_id):
        is_likely = True
        reason = "with a region, and autoscalers of OpenStack expect openstack:///ID"
    elif status.long_unregistered and age >= deadlines.provision:
        is_likely = False
        reason = "and the autoscaler misses the Node of an instance, which may be this one"
    else:
        return None

    effect = (
        "if it is not exactly the ID of the instance, the cluster-autoscaler may delete the "
        f"instance from {due(node.created, deadlines)}"
    )
    return Doubt(
        f"unverified: the Node {node.name} has the provider ID {node.provider_id}, {reason}",
        (effect, *autoscaler_status(snapshot)),
        Severity.WARNING if is_likely else Severity.INFO,
    )


def _counts_none(
    status: Autoscaler, created: datetime, age: timedelta, deadlines: Deadlines
) -> bool:
    """Whether the autoscaler has looked since the registration, and misses no Node."""
    if status.told is not None and status.told < created + _NOTICED:
        return False
    if status.unregistered is None:
        # Before 1.30 it reports only those that are overdue.
        return status.long_unregistered == 0 and age >= deadlines.provision + _NOTICED
    return status.unregistered == 0 and not status.long_unregistered


def _differs(own: str | None, others: set[str], status: Autoscaler) -> bool:
    """Whether the other nodes agree on another scheme, which is that of a cloud."""
    is_cloud = len(others) == 1 and not others & EMBEDDED_CONTROLLERS.keys()
    is_known = own is not None and own not in BESIDE_A_CLOUD
    return is_known and is_cloud and own not in others and status.others_with_id > 1


def due(created: datetime, deadlines: Deadlines) -> str:
    """Return from when on the autoscaler may act, in words."""
    at = format_time(created + deadlines.provision)
    return f"about {at} on (--max-node-provision-time={format_age(deadlines.provision)})"


def autoscaler_status(snapshot: Snapshot) -> Iterator[str]:
    """Yield what the autoscaler's status says; nothing if it was not read."""
    status = known_or(snapshot.autoscaler, None)
    if status is None:
        return
    if status.why:
        yield f"the autoscaler's status is unknown: {status.why}"
        return

    counts = []
    if status.unregistered is not None:
        counts.append(f"{count_of(status.unregistered, 'node')} unregistered")
    if status.long_unregistered is not None:
        counts.append(f"{status.long_unregistered} for so long that it deletes them")
    at = f"of {format_time(status.told)}" if status.told else "says"
    yield f"the autoscaler's status {at}: {', '.join(counts) or 'no counts'} (whole cluster)"
