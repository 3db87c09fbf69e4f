"""hack/ is no package: its parts are found as hack/torture finds them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "hack"))
