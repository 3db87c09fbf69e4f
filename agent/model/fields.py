"""Metadata of fields, by which recordings are written and read."""

from collections.abc import Mapping
from typing import Any, Final

NOT_RECORDED: Final[Mapping[str, Any]] = {"recorded": False}
NONE_IS_EMPTY: Final[Mapping[str, Any]] = {"none": ""}
"""None is recorded as an empty text, as it was before it was None."""
