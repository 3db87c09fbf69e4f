"""Functions stay short and simple. `hack/measure` prints the whole table."""

from pathlib import Path

import pytest

from tests import measures

LONGEST, MOST_COMPLEX = 40, 12


def test_no_function_is_longer_than_forty_lines() -> None:
    assert {name: lines for name, lines in measures.function_lengths().items() if lines > LONGEST} == {}


def test_no_function_is_more_complex_than_twelve() -> None:
    assert {name: found for name, found in measures.function_complexities().items() if found > MOST_COMPLEX} == {}


def test_the_files_counted_by_hand_exist() -> None:
    lists = (measures.TO_METRIC, measures.TO_UNLINK, measures.NEW_SOURCE, measures.NEW_DETECTOR)
    assert [name for files in lists for name in files if not (measures.ROOT / name).exists()] == []
    assert all(len(files) == len(set(files)) for files in lists)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two modules that share one public name, one private name, and one name of every detector."""
    for name in ("one", "two"):
        module = tmp_path / "agent" / f"{name}.py"
        module.parent.mkdir(exist_ok=True)
        module.write_text(f"import os\nNAME = Shared = _private = 1\n\ndef {name}(a):\n    return a if a else 0\n")
    (tmp_path / "hack").mkdir()
    (tmp_path / "hack" / "script").write_text("one\ntwo\n")
    return tmp_path


def test_a_tree_is_measured(tree: Path) -> None:
    assert measures.duplicate_names(tree) == {"Shared": ["agent/one.py", "agent/two.py"]}
    assert measures.function_lengths(tree) == {"agent/one.py:4 one": 2, "agent/two.py:4 two": 2}
    assert measures.function_complexities(tree) == {"agent/one.py:4 one": 2, "agent/two.py:4 two": 2}
    assert [row.found for row in measures.measured(tree)] == [1, 10, 2, 2, 2]
