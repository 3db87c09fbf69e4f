"""The command line: help, version, wrong usage."""

from importlib.metadata import version

import pytest

from agent.cli import main
from agent.cli.exit_codes import DONE, USAGE
from agent.cli.parser import COMMANDS, make_parser
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


@pytest.mark.parametrize(
    "arguments", [(), ("help",), ("--help",), ("-h",), ("--help-all",), ("help", "--help"), ("help", "help")]
)
def test_the_overview_lists_every_command(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    page = output(capsys, *arguments)
    for name in (*COMMANDS, "help"):
        assert f"\n  {name} " in page
    assert "examples:\n  kubectl " in page
    assert len(page.splitlines()) <= SCREEN


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_a_screen(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    page = output(capsys, name, "--help")
    assert page.startswith(f"usage: nodeleak {name} ")
    assert len(page.splitlines()) <= SCREEN
    assert max(map(len, page.splitlines())) <= 100
    assert page == output(capsys, "help", name) == output(capsys, name, "-h")


@pytest.mark.parametrize("columns", [80, 100, 300])
@pytest.mark.parametrize("arguments", [("help",), ("explain",), *((name, "--help") for name in COMMANDS)])
def test_a_page_is_as_wide_as_the_terminal_and_at_most_100_columns(
    arguments: tuple[str, ...], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, output(capsys, *arguments).splitlines())) <= min(columns, 100)


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - {"version"}))
def test_the_help_has_examples_and_exit_codes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = output(capsys, name, "--help")
    assert "\nexamples:\n  " in page
    assert "\nexit codes:\n  0  " in page


@pytest.mark.parametrize(
    "name", ["run", "scan", "status", "timeline", "record", "clean", "restore", "resume", "journal"]
)
def test_the_full_help_has_every_setting_with_variable_and_default(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    page = " ".join(output(capsys, name, "--help-all").split())
    assert "--help-all' for all settings" not in page
    for field, setting in settings_of("scan" if name == "timeline" else name).items():
        assert option(field) in page
        assert f"[{variable(field)}]" in page
        assert f"(default: {setting.default})" in page or not setting.default


def test_the_short_help_has_the_common_settings_only(capsys: pytest.CaptureFixture[str]) -> None:
    page = output(capsys, "scan", "--help")
    assert "--kubeconfig" in page
    assert "--docker-timeout" not in page
    assert "Run 'nodeleak scan --help-all' for all settings" in page


def test_a_scan_has_no_settings_of_the_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--interval" not in output(capsys, "scan", "--help-all")


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
        ("scan --confrim=5s", 'unknown option "--confrim": did you mean "--confirm-after"?'),
        ("scan --confirm 5s", 'unknown option "--confirm": did you mean "--confirm-after"?'),
        ("run --max-per-round 5", 'unknown option "--max-per-round": did you mean "--max-per-sync"?'),
        ("scan --json", 'unknown option "--json": did you mean "--output=json"?'),
        ("clean --app", 'unknown option "--app": did you mean "--apply"?'),
        ("clean --yes", 'unknown option "--yes": did you mean "--apply"?'),
        ("clean --max-per-round 5", 'unknown option "--max-per-round": did you mean "--max"?'),
        ("scan --max-per-round 5", 'unknown option "--max-per-round": did you mean "--max-per-sync" of run?'),
        ("scan --intervall 5s", 'unknown option "--intervall": did you mean "--interval" of run?'),
        ("scan --api_timeout 5s", 'unknown option "--api_timeout": did you mean "--api-timeout"?'),
        ("scan --API=off", 'unknown option "--API": did you mean "--api"?'),
        ("scan -output json", 'unknown option "-output": did you mean "--output"?'),
        ("scan -verbose", 'unknown option "-verbose": did you mean "--verbose"?'),
        ("scan --kube x", 'unknown option "--kube": did you mean "--kubeconfig"?'),
        ("scan -x", 'unknown option "-x"'),
        ("explain --foo", 'unknown option "--foo"'),
        ("-help", 'unknown option "-help": did you mean "--help"?'),
        ("scan --interval 5s", 'unknown option "--interval" of scan: it is an option of run'),
        ("journal --apply", 'unknown option "--apply" of journal: it is an option of clean, restore'),
        ("scan -o xml", '--output: invalid value "xml": expected one of: table, wide, name, json'),
        ("journal -o wide", '--output: invalid value "wide": expected one of: table, json'),
        ("scan --sort-by=verdict", '--sort-by: invalid value "verdict": expected one of: ip, age, state, cause, pod'),
        ("clean --sort-by=", '--sort-by: invalid value "": expected one of: ip, age, verdict, cause, pod'),
        ("scan --node", "--node: missing value"),
        ("clean --apply --dry-run", "--apply and --dry-run cannot be combined: remove one of them"),
        ("clean everything", 'unexpected argument "everything"'),
        ("restore 10.244.1.9 --last", "ADDRESS|ENTRY and --last cannot be combined: remove one of them"),
    ],
)
def test_wrong_usage_is_one_line_and_a_hint(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = arguments.split(maxsplit=1)[0]
    command = f"nodeleak {name}" if name in COMMANDS else "nodeleak"
    assert error(capsys, *arguments.split()) == [f"nodeleak: {message}", f"run '{command} --help' for usage"]


def test_restore_needs_to_know_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert error(capsys, "restore") == [
        "nodeleak: no release given: expected an address, an entry of the journal, or --last",
        "run 'nodeleak journal' for a list of releases",
    ]


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["\x1b[2J"], ["scan", "--\x1b[2J"], ["scan", "\x1b[2J"]):
        assert "\x1b" not in "".join(error(capsys, *arguments))


def test_every_setting_of_a_command_is_an_option() -> None:
    for name, command in COMMANDS.items():
        options = set(make_parser(name)._option_string_actions)  # noqa: SLF001 (argparse has no way to ask)
        assert {option(field) for field in settings_of(command.SETTINGS)} <= options
