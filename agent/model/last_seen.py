"""The last seen Node as text and back: it outlives the agent and the Node. Pure."""

import json
from typing import Final

from agent.model.codec import Damaged, build, plain
from agent.model.registration import LastSeen

SCHEMA: Final = "nodeleak.node/v1"
FILE: Final = "node.json"
"""Its name in the agent's state directory."""


def dumps(last: LastSeen) -> str:
    return json.dumps({"schema": SCHEMA, **plain(last)})


def loads(text: str | bytes) -> LastSeen:
    """Read it; raises Damaged."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged("it is not JSON") from error
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        raise Damaged(f"its schema is not {SCHEMA!r}")
    return build(LastSeen, tree, "node")
