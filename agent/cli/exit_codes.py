"""Exit codes. The code of a bug, 70, is `config.BUG`."""

from typing import Final

DONE: Final = 0
FOUND: Final = 1
"""`scan --exit-code`: there are findings."""
USAGE: Final = 2
"""Wrong usage or configuration. Nothing was touched."""
UNAVAILABLE: Final = 3
"""A required source could not be read. `clean` released nothing."""
FAILED: Final = 4
"""Some release or restoration failed. The output says why."""
INTERRUPTED: Final = 5
"""A signal ended `clean` before all releases were done. No release is half done, and the output is complete."""
BLOCKED: Final = 6
"""A dry run of `clean`: no release is possible here. The first lines of the output say why."""
NO_DAEMON: Final = 69
"""`status`: no daemon answers on this node, or it has no report yet (EX_UNAVAILABLE of sysexits.h)."""
OUTPUT: Final = 74
"""The output or the journal could not be written, such as on a full disk (EX_IOERR of sysexits.h)."""
