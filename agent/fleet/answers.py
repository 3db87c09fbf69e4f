"""What the agent of one node answered, or why it did not. Pure."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from agent.model.documents import MAX_LEVELS, is_deeper
from agent.model.text import truncate

FLEET_SCHEMA: Final = "nodeleak.fleet/v1"
_LONGEST: Final = 300
_USAGE: Final = 2


@dataclass(frozen=True)
class Answer:
    """What a command on a node printed."""

    node: str
    exit_code: int | None
    """Of the command on the node. None: it is not known that the command ran to its end."""
    output: str = ""
    error: str = ""
    """What it, or kubectl, printed to standard error; or why there is no answer."""
    lost: bool = False
    """Whether kubectl reported success, and the output shows that it is none."""

    @property
    def reason(self) -> str:
        """The error on one line: Python's traceback and kubectl's warnings end with what matters."""
        if lines := [line for line in self.error.splitlines() if line.strip()]:
            # Of wrong usage, the first line is the mistake, and hints follow.
            return truncate(lines[0 if self.exit_code == _USAGE else -1], _LONGEST)
        missing = "its output is not the expected document"
        return f"exit code {self.exit_code} without a message" if self.exit_code else missing

    @cached_property
    def document(self) -> dict[str, Any] | None:
        """The JSON document; None if there is none. Whatever is in it can be written as JSON again."""
        try:
            tree = json.loads(self.output)
            json.dumps(tree, allow_nan=False)  # Python reads NaN and 1e999, and nobody else does
        except (ValueError, RecursionError):
            return None
        return tree if isinstance(tree, dict) and not is_deeper(tree, MAX_LEVELS) else None

    def entry(self) -> dict[str, Any]:
        """Return its part of the merged document."""
        known: dict[str, Any] = {"node": self.node, "exit_code": self.exit_code}
        if self.exit_code is None or self.document is None:
            return known | {"error": self.reason}
        return known | {"document": self.document}


def answer_of(node: str, code: int, output: str, errors: str) -> Answer:
    """Make an answer of a `kubectl exec` that ended: its exit code may be kubectl's own."""
    lines = errors.splitlines()
    # The command on the node can write the same line, but it cannot change kubectl's own exit code.
    last = f"command terminated with exit code {code}"
    if code and last not in lines:
        return Answer(node, None, "", errors.strip() or f"kubectl exec ended with exit code {code}")
    answer = Answer(node, code, output, "\n".join(line for line in lines if line != last).strip())
    if code or _is_whole(answer):
        return answer
    # kubectl ends with 0 if the connection breaks, and 1.30 to 1.33 can lose what arrives at once.
    why = "kubectl exec ended without the whole output: the connection was lost, or kubectl lost it"
    return Answer(node, None, "", why, lost=True)


def _is_whole(answer: Answer) -> bool:
    """Every command prints something, and only a document begins with a brace."""
    return answer.document is not None if answer.output.startswith("{") else bool(answer.output.strip())


def merged(command: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"schema": FLEET_SCHEMA, "command": command, "nodes": entries}
