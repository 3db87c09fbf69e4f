"""`pytest tests/exporters --renew` writes the golden files anew."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from agent.checks.registry import DETECTORS
from tests.exporters.built import write_journal
from tests.exporters.served import Server, serving

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--renew", action="store_true", help="write the golden files of the exporters anew"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare an output with its file, or write the file with --renew."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        text = text.replace(f" of {len(DETECTORS)} checks", " of N checks")
        if request.config.getoption("--renew", default=False):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), (
            f"{path.name}: if it is right so, run pytest tests/exporters --renew"
        )

    return check


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The daemon's server on a node with a journal."""
    state = tmp_path_factory.mktemp("state")
    write_journal(state)
    with serving(state) as served:
        yield served


@pytest.fixture(autouse=True)
def _structlog() -> Iterator[None]:
    yield
    structlog.reset_defaults()
