"""The README's table of distributions is what was recorded on real nodes."""

from pathlib import Path

from tests.e2e.modern.tested import table

README = Path(__file__).parents[1] / "README.md"


def test_the_readme_names_only_versions_that_were_run() -> None:
    assert "\n".join(table()) in README.read_text(), "run python -m tests.e2e.modern.tested"
