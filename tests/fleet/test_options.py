"""The command line of kubectl nodeleak: help, and mistakes."""

import pytest

from agent.cli.exit_codes import DONE, USAGE
from agent.fleet.command import main

COMMANDS = ("status", "scan", "timeline", "journal", "clean", "restore", "clean-job")


def test_the_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("help",), ("--help",), ("-h",), ("--help-all",)):
        assert main(arguments) == DONE
        page = capsys.readouterr().out
        assert all(f"\n    {name}" in page for name in COMMANDS)
        assert len(page.splitlines()) <= 45


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_a_screen(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main([name, "--help"]) == DONE
    page = capsys.readouterr().out
    assert page.startswith(f"usage: kubectl nodeleak {name} ")
    assert len(page.splitlines()) <= 40
    assert max(map(len, page.splitlines())) <= 100
    assert main(["help", name]) == DONE
    assert capsys.readouterr().out == page


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("sttus", 'unknown command "sttus": did you mean "status"?'),
        ("--context=x status", "options follow the command"),
        ("status --contxt=x", 'unknown option "--contxt=x": did you mean "--context"?'),
        ("scan a --map", 'unknown option "--map": it is an option of nodeleak scan: write it after --'),
        ("scan", "one of the arguments NODE -l/--selector --all is required"),
        ("restore -- --last", "the following arguments are required: NODE"),
        ("restore a --all -- --last", 'unknown option "--all"'),
        ("scan a --all", "not allowed with argument"),
        ("status a -l x=y", "not allowed with argument"),
        ("status -- --watch", "status takes no options after --"),
        ("scan a -- -o json", "write -o before --"),
        ("scan a -- -ojson", "write -o before --"),
        ("scan a -- --output=json", "write -o before --"),
        ("clean a -- --apply", "write --apply before --"),
        ("clean-job a -- --apply", "write --apply before --"),
        ("clean-job a b", 'unexpected argument "b"'),
        ("clean-job", "the following arguments are required: NODE"),
        ("status --timeout 5", '--timeout: invalid value "5": expected a duration'),
        ("status --timeout 0s", "expected a duration from 1s to 1h"),
        ("status --parallel 0", '--parallel: invalid value "0": expected a whole number of 1 or more'),
        ("scan a -o wide", "invalid choice: 'wide'"),
        ("status --prometheus=localhost:9090", "expected a URL such as http://localhost:9090"),
        ("status --prometheus=file:///etc/passwd", "expected a URL such as"),
        ("status --prometheus-service=p:9090", "expected a service such as monitoring/prometheus:9090"),
        ("status --prometheus=http://a --prometheus-service=m/p:1", "not allowed with argument"),
        ("status --prometheus-cluster=a", "--prometheus-cluster needs --prometheus or --prometheus-service"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(arguments: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == USAGE
    captured = capsys.readouterr()
    assert (captured.out, text in captured.err) == ("", True), captured.err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == DONE
    assert capsys.readouterr().out.startswith("nodeleak ")
