"""What settings may be, or are by default.

A module of its own: every command reads the settings, and few need the rest of the model.
"""

from typing import Final

MAX_SHARE: Final = 0.5
"""The default of `Limits.max_share`."""
MAX_RESERVATIONS: Final = 65_536
"""Files in the directories of all networks: the maximum of the setting --max-reservations."""
