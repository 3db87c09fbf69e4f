"""Reads fields of JSON objects, where programs leave out what is empty, or write null."""

from collections.abc import Mapping
from typing import Any


def subobject(parent: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return the object in a field; empty if the field is missing or null."""
    child: Mapping[str, Any] = parent.get(field) or {}
    return child


def text_field(parent: Mapping[str, Any], field: str) -> str:
    """Return a field as text; empty if it is missing or null."""
    return str(parent.get(field) or "")
