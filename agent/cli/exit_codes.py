"""How a command ends, for shells."""

from typing import Final

DONE: Final = 0
FOUND: Final = 1
"""There are findings, and `--exit-code` was given."""
FAILED: Final = 1
"""Some release or restoration failed."""
USAGE: Final = 2
UNAVAILABLE: Final = 3
"""Something needed was unread; `clean` touched nothing."""
