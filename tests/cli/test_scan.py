"""scan of a recording, which needs no node."""

import io
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from agent.cli import main
from agent.cli.exit_codes import DONE, FOUND, UNAVAILABLE, USAGE
from agent.model.recording import Recording, dumps
from agent.model.snapshot import Snapshot
from tests.builders import GRACE, node, reservation, without, without_api

LEAK = reservation("10.244.1.9")
Recorded = Callable[..., str]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    def write(*snapshots: Snapshot) -> str:
        path = tmp_path / "node.json"
        path.write_text(dumps(Recording(grace=GRACE, confirm_after=timedelta(0), snapshots=snapshots)))
        return str(path)

    return write


def test_a_recording_needs_no_node(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "--recording", recorded(node(LEAK), node(LEAK, later=timedelta(seconds=1)))]) == DONE
    assert "leaked_reservation: 10.244.1.9 is reserved for container" in capsys.readouterr().out


def test_a_recording_as_json(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "-o", "json", "--recording", recorded(node(LEAK), node(LEAK))]) == DONE
    tree = json.loads(capsys.readouterr().out)
    assert tree["schema"] == "nodeleak.scan/v1"
    assert [one["subject"] for one in tree["findings"]] == ["kubenet/10.244.1.9"]


def test_a_recording_is_read_from_standard_input(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(Path(recorded(node())).read_text()))
    assert main(["scan", "--recording", "-"]) == DONE
    assert "OK: no findings" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("snapshot", "code"),
    [
        (node(), DONE),
        (node(LEAK), FOUND),
        (without_api(node()), DONE),
        (without_api(node(LEAK)), FOUND),
        (without(node(), "containers"), UNAVAILABLE),
        (without(node(LEAK), "pods"), UNAVAILABLE),
        (without(node(LEAK), "cni_results"), UNAVAILABLE),
    ],
    ids=["healthy", "leak", "api off", "leak, api off", "no containers", "no pods", "no cache"],
)
def test_exit_codes(snapshot: Snapshot, code: int, recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(snapshot, snapshot)
    assert main(["scan", "--exit-code", "--recording", path]) == code
    assert main(["scan", "--recording", path]) == (UNAVAILABLE if code == UNAVAILABLE else DONE)
    assert capsys.readouterr().err == ""


def test_grace_applies_to_a_recording(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(node(LEAK), node(LEAK))
    main(["scan", "--recording", path, "--grace", "3h"])
    assert "OK: no findings" in capsys.readouterr().out
    assert main(["scan", "--recording", path, "--grace", "3"]) == USAGE
    assert capsys.readouterr().err == 'nodeleak: --grace: invalid value "3": expected a duration such as 90s or 5m\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ('{"schema": "nodeleak.recording/v9"}', "its schema is not 'nodeleak.recording/v1'"),
        ("{}", "'nodeleak record' writes recordings"),
    ],
)
def test_a_recording_that_cannot_be_read_is_wrong_usage(
    text: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "node.json"
    path.write_text(text)
    assert main(["scan", "--recording", str(path)]) == USAGE
    error = capsys.readouterr().err
    assert error.startswith(f'nodeleak: cannot read recording "{path}": ')
    assert why in error


def test_a_missing_or_binary_recording_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "node.bin"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "nowhere.json", tmp_path, binary):
        assert main(["scan", "--recording", str(path)]) == USAGE
        assert str(path) in capsys.readouterr().err


def test_a_recording_with_an_invalid_address_is_wrong_usage(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(recorded(node(LEAK)))
    path.write_text(path.read_text().replace(LEAK.ip, "banana"))
    assert main(["scan", "--recording", str(path)]) == USAGE
    assert "banana" in capsys.readouterr().err
