"""The commands that need no node: explain, help, and the scan of a recording."""

import gc
import io
import json
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

import pytest

from agent.checks.registry import DETECTORS
from agent.cli import main
from agent.cli.exit_codes import DONE, FOUND, UNAVAILABLE, USAGE
from agent.config import option, settings_of, variable
from agent.model.recording import Recording, dumps
from agent.model.release import Reason, Verdict
from agent.model.snapshot import Snapshot
from tests.builders import GRACE, node, reservation, without, without_api

LOST = reservation("10.244.1.9")
Recorded = Callable[..., str]


@pytest.fixture(autouse=True)
def _the_process_as_before() -> Iterator[None]:
    """A command is a process of its own: it takes SIGTERM, and turns the collector of garbage off."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    gc.enable()


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    def write(*snapshots: Snapshot) -> str:
        path = tmp_path / "node.json"
        path.write_text(dumps(Recording(grace=GRACE, confirm_after=timedelta(0), snapshots=snapshots)))
        return str(path)

    return write


# explain


def test_explain_has_a_line_on_each_detector(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line and not line.startswith(" ")][: len(DETECTORS)] == [
        detector.NAME for detector in DETECTORS
    ]


@pytest.mark.parametrize("name", [detector.NAME for detector in DETECTORS])
def test_explain_says_what_a_finding_means_and_what_to_do(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", name]) == DONE
    page = capsys.readouterr().out
    assert page.startswith(f"{name}\n\n")
    assert "\nMeans: " in page
    assert "\nDo: " in page


def test_explain_of_nothing_we_know_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "leaks"]) == USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(
        "nodeleak: there is nothing called 'leaks' to explain; there are: leaked_reservation"
    )


def test_explain_has_a_line_on_each_reason_and_each_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == DONE
    lines = capsys.readouterr().out.splitlines()
    for member in (*Reason, *Verdict):
        assert lines[lines.index(member.value) + 1].startswith("  "), member


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("outside_range", "Not an address that this network gives out on this node."),
        ("gone", "Somebody else, most likely the kubelet, had released it already."),
    ],
)
def test_explain_says_what_clean_means_by_a_word(word: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", word]) == DONE
    assert capsys.readouterr().out.startswith(f"{word}\n\n{text}")


# help


@pytest.mark.parametrize("command", ["run", "scan", "record", "clean", "restore", "journal"])
def test_help_explains_every_setting_with_its_variable_and_its_default(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == DONE
    page = " ".join(capsys.readouterr().out.split())
    for name, setting in settings_of(command).items():
        assert option(name) in page
        assert f"[{variable(name)}]" in page
        assert f"(default: {setting.default})" in page or not setting.default


def test_a_scan_has_no_settings_of_the_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["scan", "--help"])
    assert "--interval" not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["clean", "restore", "journal"])
def test_the_help_of_what_writes_has_examples_and_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    page = capsys.readouterr().out
    assert f"examples:\n  nodeleak {command}" in page
    assert "\nexit codes:\n  0  " in page


def test_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == DONE
    assert capsys.readouterr().out == f"nodeleak {version('nodeleak')}, commit not known: only an image knows\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["look"],
        ["scan", "--nonsense"],
        ["scan", "-o", "xml"],
        ["clean", "--app"],
        ["clean", "--apply", "--dry-run"],
        ["clean", "everything"],
        ["restore"],
        ["restore", "10.244.1.9", "--last"],
        ["journal", "--apply"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == USAGE
    assert "usage: nodeleak" in capsys.readouterr().err


# scan --recording


def test_a_recording_is_judged_without_the_node(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "--recording", recorded(node(LOST), node(LOST, later=timedelta(seconds=1)))]) == DONE
    assert "leaked_reservation: 10.244.1.9 is reserved for container" in capsys.readouterr().out


def test_a_recording_is_told_as_json(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "-o", "json", "--recording", recorded(node(LOST), node(LOST))]) == DONE
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
        (node(LOST), FOUND),
        (without_api(node()), DONE),
        (without_api(node(LOST)), FOUND),
        (without(node(), "containers"), UNAVAILABLE),
        (without(node(LOST), "pods"), UNAVAILABLE),
        (without(node(LOST), "cni_results"), FOUND),
    ],
    ids=["healthy", "leak", "api off", "leak, api off", "docker silent", "pods silent", "names missing"],
)
def test_exit_codes(snapshot: Snapshot, code: int, recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(snapshot, snapshot)
    assert main(["scan", "--exit-code", "--recording", path]) == code
    assert main(["scan", "--recording", path]) == (UNAVAILABLE if code == UNAVAILABLE else DONE)
    assert capsys.readouterr().err == ""


def test_a_recording_can_be_judged_with_another_patience(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded(node(LOST), node(LOST))
    main(["scan", "--recording", path, "--grace", "3h"])
    assert "OK: no findings" in capsys.readouterr().out
    assert main(["scan", "--recording", path, "--grace", "3"]) == USAGE
    assert capsys.readouterr().err == "nodeleak: --grace: '3': say a span with its unit, such as 90s, 5m or 1h30m\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "it is not JSON"),
        ('{"schema": "nodeleak.recording/v9"}', "this version reads 'nodeleak.recording/v1'"),
        ("{}", "`nodeleak record` writes recordings"),
    ],
)
def test_a_recording_that_cannot_be_read_is_wrong_usage(
    text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "node.json"
    path.write_text(text)
    assert main(["scan", "--recording", str(path)]) == USAGE
    error = capsys.readouterr().err
    assert error.startswith(f"nodeleak: {path}: ")
    assert complaint in error


def test_a_recording_that_is_not_there_or_not_text_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "node.bin"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "nowhere.json", tmp_path, binary):
        assert main(["scan", "--recording", str(path)]) == USAGE
        assert str(path) in capsys.readouterr().err


def test_a_recording_whose_address_is_none_is_wrong_usage(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(recorded(node(LOST)))
    path.write_text(path.read_text().replace(LOST.ip, "banana"))
    assert main(["scan", "--recording", str(path)]) == USAGE
    assert "banana" in capsys.readouterr().err
