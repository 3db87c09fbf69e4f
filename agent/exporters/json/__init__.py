"""Reports as JSON documents, for programs."""

from typing import Any, TypeAlias

Document: TypeAlias = dict[str, Any]
"""A JSON document, or an object in it."""
