"""The command line of kubectl nodeleak: help, and mistakes."""

import pytest

from agent.cli.exit_codes import DONE, USAGE
from agent.fleet.command import main
from agent.fleet.options import COMMANDS


def error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",), ("-h",)])
def test_the_overview_lists_every_command(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == DONE
    page = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in page
    assert len(page.splitlines()) <= 40
    assert max(map(len, page.splitlines())) <= 110


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
        (("sttus",), 'unknown command "sttus": did you mean "status"?'),
        (("--context=x", "status"), "options follow the command"),
        (("status", "--contxt=x"), 'unknown option "--contxt=x": did you mean "--context"?'),
        (("scan", "a", "--map"), 'unknown option "--map": it is an option of nodeleak scan: write it after --'),
        (("scan",), "no node given: name nodes, or use --selector or --all"),
        (("restore", "--", "--last"), "no node given: name it"),
        (("restore", "--all", "--", "--last"), 'unknown option "--all"'),
        (("scan", "a", "--all"), "cannot be combined"),
        (("status", "a", "-l", "x=y"), "cannot be combined"),
        (("status", "--", "--watch"), "status takes no options after --"),
        (("scan", "a", "--", "-o", "json"), "write -o before --"),
        (("scan", "a", "--", "-ojson"), "write -o before --"),
        (("clean", "a", "--", "--apply"), "write --apply before --"),
        (("clean", "a", "--yes"), "--yes needs --apply"),
        (("clean-job", "a", "b"), "expected the name of one node, got 2"),
        (("clean-job",), "expected the name of one node, got 0"),
        (("status", "--timeout", "5"), '--timeout: invalid value "5": expected a duration'),
        (("status", "--timeout", "0s"), "expected a duration from 1s to 1h"),
        (("status", "--parallel", "0"), '--parallel: invalid value "0": expected a whole number of 1 or more'),
        (("scan", "a", "-o", "wide"), "invalid choice: 'wide'"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in error(capsys, *arguments)


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == DONE
    assert capsys.readouterr().out.startswith("nodeleak ")
