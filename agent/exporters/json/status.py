"""The document `nodeleak.status/v1`: how a daemon describes its node.

The daemon and the commands that read it share its shape.
"""

from typing import Any, Final

from agent.exporters.json import Document
from agent.model.text import escape
from agent.model.word import Word

SCHEMA: Final = "nodeleak.status/v1"
_NUMBER: Final = int | float
_TOO_LARGE: Final = 1e30
"""More than any IPv6 range has addresses."""

SHAPE: Final[dict[str, Any]] = {
    **dict.fromkeys(("schema", "version", "node", "state", "headline"), str),
    "report": {"taken_at": str, "age_seconds": _NUMBER, "interval_seconds": _NUMBER},
    "cleanup": {
        "mode": str,
        "networks": [str],
        "release_possible": bool | None,
        "why_not": [str],
        "halted": str,
        "brake": str | None,
    },
    "networks": [
        {
            "name": str,
            "usable": int | None,
            "free": int | None,
            "leaked": int | None,
            "unknown": int | None,
            "releasable": int | None,
        }
    ],
    "findings": [{"severity": str, "detector": str, "count": int, "oldest": str}],
    "unavailable": [{"source": str, "why": str}],
}
"""The type of each value; a list has the shape of its items."""


class Malformed(Exception):
    """What was answered is not the document."""


class NodeState(Word):
    """The state of a node in `nodeleak status`. The text of each is shown by `nodeleak explain`."""

    OK = (
        "ok",
        """The daemon has no confirmed finding, except informational ones, and every source is
        available. No pod waits.""",
    )
    WAITING = (
        "waiting",
        """No warning is confirmed and every source is available, but pods wait for their sandbox,
        or the network is not ready yet: not long enough for a warning, or for something else than
        addresses. It is not OK.
        Run: nodeleak scan""",
    )
    FINDINGS = (
        "findings",
        """The daemon has confirmed findings, or cleanup has halted.
        Run: nodeleak scan""",
    )
    INCOMPLETE = (
        "incomplete",
        """Some data are unavailable, so checks could not run or know less. What they would find
        is unknown.
        Run: nodeleak scan""",
    )
    STALLED = (
        "stalled",
        """The daemon answers, but has stopped checking the node. Its report is old.
        Run: kubectl logs and kubectl delete pod for the agent of the node""",
    )
    NO_REPORT = (
        "no_report",
        """No daemon answers on this node, or it has not finished its first sync.
        Run: nodeleak scan, which needs no daemon""",
    )


def no_report(why: str) -> Document:
    """Return what a command writes where no daemon reports. It has no other key."""
    return {"schema": SCHEMA, "state": NodeState.NO_REPORT, "why": escape(why)}


def checked(answer: Any) -> Document:
    """Return the keys of an untrusted answer that are known, without control characters.

    Raises Malformed.
    """
    document: Document = _checked(answer, SHAPE)
    states = set(NodeState) - {NodeState.NO_REPORT}
    if document["schema"] != SCHEMA or document["state"] not in states:
        raise Malformed(f"{document['schema']}: {document['state']}")
    return document


def _checked(value: Any, shape: Any) -> Any:
    """Return what a value has of a shape. Raises Malformed."""
    kind: Any = type(shape) if isinstance(shape, (dict, list)) else shape
    if not isinstance(value, kind):
        raise Malformed(f"{type(value).__name__} instead of {shape}")

    if isinstance(shape, dict):
        return {key: _checked(value.get(key), part) for key, part in shape.items()}
    if isinstance(shape, list):
        return [_checked(item, shape[0]) for item in value]
    if isinstance(value, _NUMBER) and not abs(value) < _TOO_LARGE:  # nor NaN
        raise Malformed("a number too large")
    return escape(value) if isinstance(value, str) else value
