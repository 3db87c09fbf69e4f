"""The last seen Node as text and back: it outlives the agent and the Node. Pure."""

import json
from typing import Final

from agent.model.codec import Damaged, build, plain
from agent.model.nesting import parse_json
from agent.model.registration import LastSeen

_SCHEMA: Final = "nodeleak.node/v1"
LAST_SEEN_FILE: Final = "node.json"
"""Its name in the agent's state directory."""


def dump_last_seen(last: LastSeen) -> str:
    return json.dumps({"schema": _SCHEMA, **plain(last)})


def load_last_seen(text: str | bytes) -> LastSeen:
    """Read it; raises Damaged."""
    try:
        tree = parse_json(text)
    except ValueError as error:
        raise Damaged("it is not JSON") from error
    if not isinstance(tree, dict) or tree.get("schema") != _SCHEMA:
        raise Damaged(f"its schema is not {_SCHEMA!r}")
    return build(LastSeen, tree, "node")
