"""Where Debian's packages come from, by apt's own configuration."""

from pathlib import Path

import pytest

from tests.containerd.failure import CannotRun
from tests.containerd.packages import check_release, mirror

DEB822 = "Types: deb\nURIs: http://{}/debian-security\nSuites: x-security\n\nTypes: deb\nURIs: http://{}/debian/\n"
ONE_LINE = "# deb http://old.example/debian x main\ndeb [signed-by=/key.gpg] http://{}/debian bookworm main\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [("sources.list.d/debian.sources", DEB822), ("sources.list", ONE_LINE)],
    ids=["deb822", "one line"],
)
def test_the_mirror_is_the_one_of_the_machine(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/other.sources.disabled").write_text(DEB822.replace("{}", "disabled.example"))
    (tmp_path / name).write_text(text.replace("{}", "mirror.example"))
    assert mirror(tmp_path) == "http://mirror.example/debian"


def test_without_a_mirror_nothing_is_downloaded(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://mirror.example/ubuntu noble main\n")
    with pytest.raises(CannotRun, match="a mirror of Debian"):
        mirror(tmp_path)


def test_another_release_than_the_tried_one_is_not_used_in_silence() -> None:
    check_release("sid", "2.1.9", "2.1.9~ds1-1+deb13u2")
    for version in ("2.1.90-1", "2.1.9.1-1", "2.2.0-1", "12.1.9-1"):
        with pytest.raises(CannotRun, match=r"sid has 1?2"):
            check_release("sid", "2.1.9", version)
