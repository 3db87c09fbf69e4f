"""What the cluster says where this node is out of order: the other nodes' provider IDs, the autoscaler's status.

Both are asked for only where there is a reason, and seldom: a healthy node never asks. Nobody has to let us: what may
not be read is told, and done without.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

import yaml  # type: ignore[import-untyped]

from agent.model.registration import Autoscaler, Expected, Registration, who_says_ours, why_cloud
from agent.model.snapshot import Known, Node, NotRequested, Reading, Unavailable
from agent.model.text import truncate
from agent.sources.error import SourceError
from agent.sources.kube.client import ApiError, Query, parse_list
from agent.sources.kube.node import PATH as NODES

T = TypeVar("T")

STATUS: Final = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
_CONFIGMAP: Final = "configmap kube-system/cluster-autoscaler-status"
_PAGE: Final = (("limit", "50"),)
NODES_AGAIN: Final = 600.0
STATUS_AGAIN: Final = 120.0
"""Seconds after an answer until the same is asked again. The autoscaler acts in minutes."""
FAILED_AGAIN: Final = 120.0
"""Likewise after a failure: ten minutes of silence would be most of the time that is left."""
_FORBIDDEN: Final = frozenset({401, 403})
_ABSENT: Final = 404

Get = Callable[[str, Query], bytes]
"""Returns the body of the API server's answer; raises Unavailable, and Refused where it says no."""


class TTLCache(Generic[T]):
    """A question whose answer is kept for a while, also that there was none."""

    def __init__(self, ask: Callable[[], T], seconds: float, clock: Callable[[], float]) -> None:
        self._ask, self._seconds, self._clock = ask, seconds, clock
        self._asked: float | None = None
        self._answer: T | SourceError | None = None

    def __call__(self) -> T:
        now = self._clock()
        seconds = FAILED_AGAIN if isinstance(self._answer, SourceError) else self._seconds
        if self._answer is None or self._asked is None or now - self._asked >= seconds:
            self._asked = now
            try:
                self._answer = self._ask()
            except SourceError as error:
                self._answer = error
        if isinstance(self._answer, SourceError):
            raise self._answer
        return self._answer


class AutoscalerClient:
    """Asks one API server about the cluster of one node."""

    def __init__(self, node_name: str, get: Get, clock: Callable[[], float]) -> None:
        """`clock`: seconds, never jumping."""
        self._name, self._get = node_name, get
        self._others = TTLCache(self._ask_others, NODES_AGAIN, clock)
        self._status = TTLCache(self._ask_status, STATUS_AGAIN, clock)

    def read(self, node: Reading[Node | None], registration: Reading[Registration]) -> Reading[Autoscaler]:
        """Ask what there is a reason to ask."""
        match _reason(self._name, node, registration):
            case NotRequested() as unasked:
                return unasked
            case True:
                others = Autoscaler()
            case False:
                try:
                    others = self._others()
                except ApiError as refused:
                    if refused.status in _FORBIDDEN:
                        return NotRequested(
                            "autoscaler", f"may not `list` nodes, to see their provider IDs ({refused})"
                        )
                    return Unavailable("autoscaler", str(refused))
                except SourceError as error:
                    return Unavailable("autoscaler", str(error))
                if not others.others_with_id:
                    return Known(others)
        try:
            status = self._status()
        except ApiError as refused:
            status = Autoscaler(why=_refusal(refused))
        except SourceError as error:
            status = Autoscaler(why=f"{_CONFIGMAP}: {error}")
        return Known(replace(status, others=others.others, others_with_id=others.others_with_id))

    def _ask_others(self) -> Autoscaler:
        _, _, items = parse_list(self._get(NODES, _PAGE))
        try:
            ids = [bool(item["spec"].get("providerID")) for item in items if item["metadata"]["name"] != self._name]
        except (KeyError, TypeError, AttributeError) as error:
            raise SourceError(f"API server: a node lacks what every node has ({error!r})") from error
        return Autoscaler(others=len(ids), others_with_id=sum(ids))

    def _ask_status(self) -> Autoscaler:
        try:
            text = json.loads(self._get(STATUS, ()))["data"]["status"]
        except (ValueError, KeyError, TypeError, RecursionError):
            text = None
        if not isinstance(text, str):
            return Autoscaler(why=f"{_CONFIGMAP} has no status")
        return status(text)


def _reason(name: str, node: Reading[Node | None], registration: Reading[Registration]) -> NotRequested | bool:
    """Say why nothing is asked; or tell whether it is known already that the cluster uses a cloud."""
    if not isinstance(registration, Known) or not isinstance(node, Known):
        return NotRequested("autoscaler", f"whether the node is registered is not known: {_why(node, registration)}")
    known = registration.value
    if node.value is None:
        if who_says_ours(known, name):
            return True
        return NotRequested("autoscaler", f"there is no Node named {name!r}, and nobody says that there was")
    if node.value.provider_id:
        return NotRequested("autoscaler", "the node is registered")
    if known.expected is Expected.IGNORED:
        return NotRequested("autoscaler", "--provider-id=ignored")
    return known.expected is Expected.REQUIRED or bool(why_cloud(known, node.value.taints))


def _why(*readings: Reading[Any]) -> str:
    return next((one.why for one in readings if not isinstance(one, Known)), "")


def _refusal(refused: ApiError) -> str:
    if refused.status in _FORBIDDEN:
        return f"may not `get` {_CONFIGMAP}"
    if refused.status == _ABSENT:
        return f"there is no {_CONFIGMAP}"
    return f"{_CONFIGMAP}: {refused}"


# The status: YAML since cluster-autoscaler 1.30, before that lines for people.

_GROUPS = re.compile(r"^node ?groups:", re.IGNORECASE | re.MULTILINE)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.\d{1,9})? ([+-]\d{4})\b")
_HEALTH = re.compile(r"^ +Health: .*\blongUnregistered=(\d{1,9})\b", re.MULTILINE)
_LARGEST: Final = 16 * 1024
"""Characters of what is read as YAML; it has some hundreds."""


def status(text: str) -> Autoscaler:
    """Read what the autoscaler wrote of the cluster as a whole. What it does not tell is None."""
    # One entry for each group of nodes follows: much, and none of it is needed.
    whole = _GROUPS.split(text, maxsplit=1)[0]
    told = _told(text)
    if matched := _HEALTH.search(whole):
        return Autoscaler(long_unregistered=int(matched[1]), told=told)
    counts = _counts(whole)
    if counts is None:
        return Autoscaler(told=told, why=f"{_CONFIGMAP} has no counts of nodes ({truncate(text)[:60]})")
    return Autoscaler(
        unregistered=_number(counts.get("unregistered")),
        long_unregistered=_number(counts.get("longUnregistered")),
        told=told,
    )


def _counts(whole: str) -> Mapping[str, Any] | None:
    if len(whole) > _LARGEST:
        return None
    try:
        # Texts alone, in Python: libyaml ends the process where it is nested too deep, and what makes values of texts
        # (`!!int ""`) raises anything.
        counts = yaml.load(whole, Loader=yaml.BaseLoader)["clusterWide"]["health"]["nodeCounts"]  # noqa: S506
    except (yaml.YAMLError, KeyError, TypeError, ValueError, RecursionError):
        return None
    return counts if isinstance(counts, Mapping) else None


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value) else None


def _told(text: str) -> datetime | None:
    """Return the time of the whole status: in its first line, or in a line of its own, as Go prints times."""
    line = next((one for one in text.splitlines() if re.match(r"Cluster-autoscaler status at |time:", one)), "")
    matched = _TIME.search(line)
    if matched is None:
        return None
    try:
        return datetime.strptime(" ".join(matched.groups()), "%Y-%m-%d %H:%M:%S %z").astimezone(UTC)
    except (ValueError, OverflowError):
        return None
