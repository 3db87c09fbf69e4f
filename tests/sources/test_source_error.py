"""Remedies are fields: what to do is known without searching the message."""

import errno

import pytest

from agent.model.remedy import Remedy
from agent.model.snapshot import Unavailable
from agent.sources.source_error import NotFound, os_remedy, read_error
from tests.builders import node
from tests.sources.recorded import RecordedSources


@pytest.mark.parametrize(
    ("user", "number", "remedy"),
    [
        (1000, errno.EACCES, "run as root"),
        (1000, errno.EPERM, "run as root"),
        (1000, errno.ENOENT, None),
        (0, errno.EACCES, "as root: likely a missing capability, AppArmor or SELinux"),
        (0, errno.EPERM, None),
    ],
)
def test_the_remedy_for_missing_permissions_depends_on_who_reads(
    user: int, number: int, remedy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    error = OSError(number, "Some text")
    expected = Remedy(remedy) if remedy else None
    assert os_remedy(error) == expected
    raised = read_error("/etc/cni", error)
    assert raised.remedy == expected
    assert str(raised) == "cannot read /etc/cni: some text" + (f" ({remedy})" if remedy else "")


def test_the_remedy_of_an_error_is_that_of_the_reading() -> None:
    remedy = Remedy("check --cni-cache-dir")
    error = NotFound("there is no directory (check --cni-cache-dir)", remedy)
    reading = RecordedSources(node(), broken="cni_results", error=error).take().cni_results
    assert isinstance(reading, Unavailable)
    assert (reading.why, reading.missing, reading.remedy) == (str(error), True, remedy)
