from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cleanup.stores import Store, handles


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture(autouse=True)
def _no_handle_is_left_open() -> Iterator[None]:
    before = handles()
    yield
    assert handles() <= before, "fewer if what a test before this one had left is collected"
