"""The command line: help, version, wrong usage."""

from importlib.metadata import version

import pytest

from agent.cli import main
from agent.cli.exit_codes import DONE, USAGE
from agent.cli.parser import COMMANDS
from agent.config import option, settings_of, variable

SCREEN = 40
"""Lines."""


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == DONE
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def error(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(arguments) == USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


# Help


def test_the_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("help",), ("--help",), ("-h",), ("--help-all",)):
        page = output(capsys, *arguments)
        assert all(f"\n    {name}" in page for name in COMMANDS)
        assert "examples:\n  kubectl " in page
        assert len(page.splitlines()) <= SCREEN


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_a_screen(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns in (80, 100, 300):
        monkeypatch.setenv("COLUMNS", str(columns))
        page = output(capsys, name, "--help")
        assert max(map(len, page.splitlines())) <= min(columns, 100)
    assert page.startswith(f"usage: nodeleak {name}")
    assert len(page.splitlines()) <= SCREEN + 4
    assert page == output(capsys, "help", name) == output(capsys, name, "-h")
    if name != "version":
        assert "\nexamples:\n  " in page
        assert "\nexit codes:\n  0  " in page


@pytest.mark.parametrize("name", [name for name in COMMANDS if settings_of(name)])
def test_the_full_help_has_every_setting_and_the_short_one_the_common_ones(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    page = " ".join(output(capsys, name, "--help-all").split())
    short = output(capsys, name, "--help")
    for field, setting in settings_of(name).items():
        assert f"[{variable(field)}]" in page
        assert f"(default: {setting.default})" in page or not setting.default
        assert (f" {option(field)} " in short) == setting.common


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, argument) == f"nodeleak {version('nodeleak')}, commit unknown (not built as an image)\n"


# Wrong usage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("scna", 'unknown command "scna": did you mean "scan"?'),
        ("help scna", 'unknown command "scna": did you mean "scan"?'),
        ("Scan", 'unknown command "Scan": did you mean "scan"?'),
        ("frobnicate", 'unknown command "frobnicate"'),
        ("--api=off scan", 'unknown option "--api=off": options follow the command: nodeleak scan ...'),
        ("scan --frobnicate", 'unknown option "--frobnicate"'),
        ("scan --kubecofnig x", 'unknown option "--kubecofnig": did you mean "--kubeconfig"?'),
        ("clean --app", 'unknown option "--app": did you mean "--apply"?'),
        ("scan --api_timeout 5s", 'unknown option "--api_timeout": did you mean "--api-timeout"?'),
        ("scan --API=off", 'unknown option "--API": did you mean "--api"?'),
        ("scan --kube x", 'unknown option "--kube": did you mean "--kubeconfig"?'),
        ("scan -x", 'unknown option "-x"'),
        ("scan --interval 5s", 'unknown option "--interval" of scan: it is an option of run'),
        ("journal --apply", 'unknown option "--apply" of journal: it is an option of clean, restore'),
        ("scan -o xml", "-o/--output: invalid choice: 'xml' (choose from "),
        ("clean --sort-by=state", "--sort-by: invalid choice: 'state' (choose from "),
        ("scan --node", "--node: expected one argument"),
        ("clean --apply --dry-run", "--dry-run: not allowed with argument --apply"),
        ("clean --ip=banana", '--ip: invalid value "banana": expected an IP address such as 10.244.1.9'),
        ("clean --ip=10.0.0.1,,fd00::1", "--ip: invalid value "),
        ("clean --max=0", '--max: invalid value "0": expected a whole number of 1 or more'),
        ("timeline --since=yesterday", '--since: invalid value "yesterday": expected a duration such as 90s or 5m'),
        ("clean everything", 'unexpected argument "everything"'),
        ("restore 10.244.1.9 --last", "--last: not allowed with argument ADDRESS|ENTRY"),
    ],
)
def test_wrong_usage_is_one_line_and_a_hint(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = arguments.split(maxsplit=1)[0]
    command = f"nodeleak {name}" if name in COMMANDS else "nodeleak"
    line, hint = error(capsys, *arguments.split())
    assert line.startswith(f"nodeleak: {message}")
    assert hint == f"run '{command} --help' for usage"


def test_options_of_a_table_exclude_others(capsys: pytest.CaptureFixture[str]) -> None:
    others = {"-v": ["-v"], "-o wide": ["-o", "wide"], "-o json": ["-o", "json"], "--sort-by": ["--sort-by", "age"]}
    for other, options in others.items():
        (line,) = error(capsys, "scan", "--map", *options)
        assert line == f"nodeleak: --map and {other} cannot be combined: remove one of them"
    for command in ("scan", "clean"):
        (line,) = error(capsys, command, "-o", "json", "--sort-by", "age", "--api=off")
        assert line == "nodeleak: --sort-by and -o json cannot be combined: remove one of them"


def test_restore_needs_to_know_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert error(capsys, "restore") == [
        "nodeleak: no release given: expected an address, an entry of the journal, or --last",
        "run 'nodeleak journal' for a list of releases",
    ]


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["\x1b[2J"], ["scan", "--\x1b[2J"], ["scan", "\x1b[2J"], ["explain", "\x1b[2J"]):
        assert "\x1b" not in "".join(error(capsys, *arguments))
