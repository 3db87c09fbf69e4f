"""What happens to sandboxes and their addresses, as it is told: nouns only.

Events are told one at a time, so their order is the truth: what is about to be done is told before it is begun, and
what was done after it has returned. Times are seconds of the monotonic clock.
"""

from dataclasses import dataclass
from enum import StrEnum


class Deed(StrEnum):
    """What somebody did, or is about to do, with a sandbox."""

    CREATED = "created"
    """docker has it: from here on it may own an address."""
    ADDED = "ADD returned"
    EXHAUSTED = "ADD found no address"
    KILLED = "ADD killed"
    """Told when the store has been looked at: whatever file has the sandbox's id is its reservation."""
    DEL_CALLED = "DEL called"
    DELETED = "DEL returned"
    RM_CALLED = "rm called"
    REMOVED = "rm returned"


@dataclass(frozen=True, slots=True)
class Did:
    at: float
    deed: Deed
    sandbox: str
    ip: str = ""
    """Of `ADDED` only."""


@dataclass(frozen=True, slots=True)
class Looked:
    """The file of one address, read between `since` and `at`."""

    at: float
    since: float
    ip: str
    found: str | None
    """The id in it; empty where the file is empty, None where there is no file."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a cleaner claims to have done, told when its run had ended. It is shown, and never judged by."""

    at: float
    ip: str
    claim: str


Event = Did | Looked | Said


class Wrong(StrEnum):
    """What must never happen."""

    TAKEN = "taken from its holder"
    HELD_TWICE = "held twice"
    UNRECLAIMED = "leak never reclaimed"
    LEFT_OVER = "left over"


@dataclass(frozen=True, slots=True)
class Violation:
    at: float
    wrong: Wrong
    ip: str
    sandbox: str
    detail: str
    trail: tuple[str, ...]
    """The last events of the address, each with its time."""

    def line(self, began: float) -> str:
        """Tell it in one line. `began`: when the clock of the report starts."""
        whose = self.sandbox[:12] or "nobody"
        return f"{self.at - began:8.3f} s  {self.wrong}: {self.ip} of {whose}: {self.detail} [{'; '.join(self.trail)}]"
