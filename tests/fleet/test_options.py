"""The command line of kubectl nodeleak: help, and mistakes."""

import pytest

from tests.fleet.kubectl import FakeKubectl

COMMANDS = (
    "status",
    "scan",
    "timeline",
    "journal",
    "clean",
    "restore",
    "clean-job",
    "brake",
    "version",
    "completion",
)


def test_the_overview_lists_every_command_and_each_help_fits_a_screen(
    kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for arguments in ((), ("help",), ("--help",), ("-h",), ("--help-all",)):
        done = kubectl.run(*arguments)
        assert (done.code, all(f"\n  {name}  " in done.out for name in COMMANDS)) == (0, True)
        lines = done.out.splitlines()
        assert (len(lines) <= 45, max(map(len, lines)) <= 80) == (True, True)
    assert kubectl.run("--version").out == kubectl.run("version").out
    assert kubectl.run("version").out.startswith("nodeleak ")
    monkeypatch.setenv("COLUMNS", "100")
    for name in COMMANDS:
        done = kubectl.run(name, "--help")
        assert (done.code, done.out.startswith(f"usage: kubectl nodeleak {name} ")) == (0, True)
        lines = done.out.splitlines()
        assert (len(lines) <= 40, max(map(len, lines)) <= 100, kubectl.run("help", name)) == (
            True,
            True,
            done,
        )


def test_a_mistake_is_named_with_its_remedy(kubectl: FakeKubectl) -> None:
    mistakes = {
        "sttus": 'unknown command "sttus": did you mean "status"?',
        "--context=x status": "options follow the command",
        "status --contxt=x": 'unknown option "--contxt=x": did you mean "--context"?',
        "scan a --map": 'unknown option "--map": it is an option of nodeleak scan: write it after --',
        "scan": "one of the arguments NODE -l/--selector --all is required",
        "restore -- --last": "the following arguments are required: NODE",
        "restore a --all -- --last": 'unknown option "--all"',
        "scan a --all": "not allowed with argument",
        "status a -l x=y": "not allowed with argument",
        "status -- --watch": "status takes no options after --",
        "scan a -- -o json": "write -o before --",
        "scan a -- -ojson": "write -o before --",
        "scan a -- --output=json": "write -o before --",
        "clean a -- --apply": "write --apply before --",
        "clean-job a -- --apply": "write --apply before --",
        "clean-job a --parallel=2": 'unknown option "--parallel=2"',
        "brake on --parallel=2": 'unknown option "--parallel=2"',
        "clean-job a b": 'unexpected argument "b"',
        "version a": 'unexpected argument "a"',
        "version -- -o json": "write -o before --",
        "completion -- x": "completion takes no options after --",
        "clean-job": "the following arguments are required: NODE",
        "status --timeout 5": '--timeout: invalid value "5": expected a duration',
        "status --timeout 0s": "expected a duration from 1s to 1h",
        "status --parallel 0": '--parallel: invalid value "0": expected a whole number of 1 or more',
        "scan a -o wide": "invalid choice: 'wide'",
        "status --prometheus=localhost:9090": "expected a URL such as http://localhost:9090",
        "status --prometheus=file:///etc/passwd": "expected a URL such as",
        "status --prometheus-service=p:9090": "expected a service such as monitoring/prometheus:9090",
        "status --prometheus=http://a --prometheus-service=m/p:1": "not allowed with argument",
        "status --prometheus-cluster=a": "--prometheus-cluster needs --prometheus or --prometheus-service",
    }
    for arguments, text in mistakes.items():
        done = kubectl.run(*arguments.split())
        assert (done.code, done.out, text in done.err) == (2, "", True), done.err
