"""The command line: help, version, wrong usage."""

import re
from importlib.metadata import version

from tests.cli.commands import nodeleak, options_of

COMMANDS = (
    "scan",
    "status",
    "explain",
    "timeline",
    "clean",
    "restore",
    "resume",
    "journal",
    "record",
    "run",
    "version",
    "completion",
)
SCREEN = 44  # Lines


def output(*arguments: str, columns: str = "") -> str:
    done = nodeleak(*arguments, COLUMNS=columns)
    assert (done.code, done.err) == (0, "")
    return done.out


def error(*arguments: str) -> list[str]:
    done = nodeleak(*arguments)
    assert (done.code, done.out) == (2, "")
    return done.err.splitlines()


# Help


def test_help_fits_a_screen_the_overview_has_every_command_and_the_full_one_every_setting() -> None:
    for name in COMMANDS:
        for columns in (80, 100, 300):
            page = output(name, "--help", columns=str(columns))
            assert max(map(len, page.splitlines())) <= min(columns, 100)
        assert page.startswith(f"usage: nodeleak {name}")
        assert len(page.splitlines()) <= SCREEN
        assert page == output("help", name, columns="300") == output(name, "-h", columns="300")
        if name != "version":
            assert "\nexamples:\n  " in page
            assert "\nexit codes:\n  0  " in page
    settings = {option: text for option, text in options_of("run").items() if "NODELEAK_" in text}
    assert len(settings) > 30
    for option, text in settings.items():
        assert f"[NODELEAK_{option[2:].replace('-', '_').upper()}" in text
    for arguments in ((), ("help",), ("--help",), ("-h",), ("--help-all",)):
        page = output(*arguments)
        # Each on a line with what it does.
        listed = page.partition("\ncommands:\n")[2].partition("\n\n")[0]
        assert tuple(re.findall(r"^  ([a-z]+) +[A-Z]", listed, re.MULTILINE)) == COMMANDS
        assert len(listed.splitlines()) == len(COMMANDS)
        assert "examples:\n  kubectl " in page
        assert len(page.splitlines()) <= SCREEN
    for argument in ("version", "--version"):
        assert (
            output(argument)
            == f"nodeleak {version('nodeleak')}, commit unknown (not built as an image)\n"
        )


# Wrong usage


def test_wrong_usage_is_one_line_and_a_hint() -> None:
    for arguments, message in (
        ("scna", 'unknown command "scna": did you mean "scan"?'),
        ("help scna", 'unknown command "scna": did you mean "scan"?'),
        ("Scan", 'unknown command "Scan": did you mean "scan"?'),
        ("frobnicate", 'unknown command "frobnicate"'),
        (
            "--api=off scan",
            'unknown option "--api=off": options follow the command: nodeleak scan ...',
        ),
        ("scan --frobnicate", 'unknown option "--frobnicate"'),
        ("scan --kubecofnig x", 'unknown option "--kubecofnig": did you mean "--kubeconfig"?'),
        ("clean --app", 'unknown option "--app": did you mean "--apply"?'),
        ("scan --api_timeout 5s", 'unknown option "--api_timeout": did you mean "--api-timeout"?'),
        ("scan --API=off", 'unknown option "--API": did you mean "--api"?'),
        ("scan --kube x", 'unknown option "--kube": did you mean "--kubeconfig"?'),
        ("scan -x", 'unknown option "-x"'),
        ("scan --interval 5s", 'unknown option "--interval" of scan: it is an option of run'),
        (
            "journal --apply",
            'unknown option "--apply" of journal: it is an option of clean, restore',
        ),
        ("scan -o xml", "-o/--output: invalid choice: 'xml' (choose from "),
        ("clean --sort-by=state", "--sort-by: invalid choice: 'state' (choose from "),
        ("scan --node", "--node: expected one argument"),
        ("clean --apply --dry-run", "--dry-run: not allowed with argument --apply"),
        (
            "clean --ip=banana",
            '--ip: invalid value "banana": expected an IP address such as 10.244.1.9',
        ),
        ("clean --ip=10.0.0.1,,fd00::1", "--ip: invalid value "),
        ("clean --max=0", '--max: invalid value "0": expected a whole number of 1 or more'),
        (
            "timeline --since=yesterday",
            '--since: invalid value "yesterday": expected a duration such as 90s or 5m',
        ),
        ("clean everything", 'unexpected argument "everything"'),
        ("restore 10.244.1.9 --last", "--last: not allowed with argument ADDRESS|ENTRY"),
    ):
        name = arguments.split(maxsplit=1)[0]
        command = f"nodeleak {name}" if name in COMMANDS else "nodeleak"
        line, hint = error(*arguments.split())
        assert line.startswith(f"nodeleak: {message}")
        assert hint == f"run '{command} --help' for usage"
    assert error("restore") == [
        "nodeleak: no release given: expected an address, an entry of the journal, or --last",
        "run 'nodeleak journal' for a list of releases",
    ]
    for words in (["\x1b[2J"], ["scan", "--\x1b[2J"], ["scan", "\x1b[2J"], ["explain", "\x1b[2J"]):
        assert "\x1b" not in "".join(error(*words))
    others = {
        "-v": ["-v"],
        "-o wide": ["-o", "wide"],
        "-o json": ["-o", "json"],
        "--sort-by": ["--sort-by", "age"],
    }
    for other, options in others.items():
        (line,) = error("scan", "--map", *options)
        assert line == f"nodeleak: --map and {other} cannot be combined: remove one of them"
    for command in ("scan", "clean"):
        (line,) = error(command, "-o", "json", "--sort-by", "age", "--api=off")
        assert line == "nodeleak: --sort-by and -o json cannot be combined: remove one of them"
