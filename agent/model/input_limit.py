"""Marks a constant as the bound of something that comes from outside. Each is a row of docs/limits.md."""

from typing import TypeAlias

InputLimit: TypeAlias = int
