"""A place that a user without rights can reach too: pytest's own is root's alone."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_dir() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="nodeleak-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)
