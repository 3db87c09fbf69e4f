from pathlib import Path

import pytest

from tests.fleet.kubectl import FakeKubectl


@pytest.fixture
def kubectl(tmp_path: Path) -> FakeKubectl:
    return FakeKubectl(tmp_path)
