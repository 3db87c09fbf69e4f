"""A directory for unreadable files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wire import open_directory


@pytest.fixture
def open_dir() -> Iterator[Path]:
    with open_directory() as directory:
        yield directory
