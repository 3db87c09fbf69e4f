"""A bug of the agent itself: an exception of one part, which the other parts survive."""

import traceback
from dataclasses import dataclass
from typing import Final

EXIT_CODE: Final = 70
"""Of a process that a bug has ended (EX_SOFTWARE in sysexits(3))."""
EXPORTER: Final = "exporter"
"""The part that shows reports, except for the port."""


@dataclass(frozen=True, slots=True)
class Bug:
    """What failed. It is logged once, with its traceback, and counted each time."""

    part: str
    """The kind of part, which labels the metric: source, detector, guard, cleaner, exporter, or
    http."""
    name: str
    """Which one of them, such as the name of a source."""
    error: str
    """The exception in one line, such as `KeyError: 'metadata'`."""
    traceback: str

    @property
    def reason(self) -> str:
        """Why the part has no result, for people."""
        return f"bug in nodeleak: {self.error}"


def bug_of(part: str, name: str, error: BaseException) -> Bug:
    """Describe an exception that was caught where `name` failed."""
    described = traceback.format_exception_only(error)[-1].strip()
    return Bug(part, name, described, "".join(traceback.format_exception(error)))
