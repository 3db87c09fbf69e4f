"""The console script `kubectl-nodeleak`, which kubectl runs as `kubectl nodeleak`: its commands and their options."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from agent.cli import exit_code_of, version
from agent.cli.output import reflow
from agent.cli.parser import COMMANDS as NODE_COMMANDS
from agent.cli.parser import HELP, Parser, options_of, see_help, value, with_command
from agent.config import UsageError, duration_between, matching, positive
from agent.fleet.clean_job import print_or_run_job
from agent.fleet.cleaning import clean_nodes
from agent.fleet.reading import run_on_nodes, show_status
from agent.model.text import did_you_mean, quote

_url = matching(r"https?://[^\s/?#]+[^\s?#]*", "a URL such as http://localhost:9090", str)
_service = matching(
    r"[a-z0-9-]+/(https?:)?[a-z0-9-]+:[a-z0-9-]+",
    "a service such as monitoring/prometheus:9090",
    str,
)
_INTRO: Final = "kubectl nodeleak asks the nodeleak agents of many nodes at once, with your kubeconfig and your rights."
_EPILOG: Final = """\
examples:
  kubectl nodeleak status                            every node, the worst first
  kubectl nodeleak status -l pool=web -o wide        some nodes, with pods and cleanup settings
  kubectl nodeleak status --prometheus=http://localhost:9090   every node, without asking each agent
  kubectl nodeleak scan worker-7                     everything about one node
  kubectl nodeleak clean --all                       dry run: what would be released
  kubectl nodeleak clean --all --apply               release it: asks once, then wave by wave
  kubectl nodeleak clean-job worker-7 --apply --run  release on one node, without changing the DaemonSet
  kubectl nodeleak timeline worker-7 -- --since 1h   options after -- are those of nodeleak timeline

exit codes:
  0  every node was asked, and its command ended with 0
  1  status --exit-code: there are critical findings or warnings
  2  wrong usage
  3  incomplete: some node has no agent or gave no answer, or its data are incomplete
  4  clean --apply stopped: a node gave an unexpected result
  5  clean --apply was interrupted between two waves
  Otherwise the highest exit code of the nodes. 4 and 5 of clean --apply come before 3, and 3 before all others.

Rights: 'list' nodes and pods, 'get' pods, 'create' and 'get' pods/exec (docs/kubectl.md has a ClusterRole).
Run 'kubectl nodeleak COMMAND --help' for the options of a command.
"""
_STATUS: Final = """\
Asks every agent what it last reported, and prints one row for each network of each node. It changes nothing."""
_CLEAN: Final = """\
Without --apply, it prints what would be released. With --apply, it asks once, and cleans --max-nodes at a
time, with a pause after each wave. It stops after a wave in which a node gave an unexpected result: anything
but released, refused, or nothing to release, and says how to go on."""
_RESTORE: Final = """\
Undoes a release. Name the nodes, and give the release after --: an address, an entry of the journal, or
--last. Without --apply after --, it only checks."""
_CLEAN_JOB: Final = """\
Prints the manifest of a Job, and changes nothing. The Job has the image and the settings of the DaemonSet
and runs 'nodeleak clean' on the node. With --apply, it mounts /var/lib/cni writable, so that the DaemonSet
can stay read-only. With --run, the Job is created; the command waits for it, prints its log, and ends with
its exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(parse_arguments, arguments)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options, with `command`, `execute`, and `rest`: what follows `--`."""
    if list(arguments[:1]) == ["--version"]:
        return argparse.Namespace(execute=version.execute)
    root = _make_parser()
    split = arguments.index("--") if "--" in arguments else len(arguments)
    own = with_command(root.prog, arguments[:split], root.get_default("parsers"))
    parsed, unexpected = root.parse_known_args(own)
    parsed.rest = tuple(arguments[split + 1 :])
    # argparse takes no names of nodes on both sides of an option.
    more = (
        []
        if parsed.command == "clean-job"
        else [name for name in unexpected if not name.startswith("-")]
    )
    if len(more) < len(unexpected):
        raise _unexpected_argument(parsed, next(name for name in unexpected if name not in more))
    parsed.nodes = [*parsed.nodes, *more]
    if mistakes := list(_mistakes(parsed)):
        raise UsageError("\n".join(mistakes), see_help(f"{root.prog} {parsed.command}"))
    return parsed


def _unexpected_argument(parsed: argparse.Namespace, argument: str) -> UsageError:
    see = see_help(f"kubectl nodeleak {parsed.command}")
    if not argument.startswith("-"):
        return UsageError(f"unexpected argument {quote(argument)}", see)
    option, on_node = argument.partition("=")[0], parsed.command.removesuffix("-job")
    if on_node in NODE_COMMANDS and option in options_of(on_node):
        there = f"it is an option of nodeleak {on_node}: write it after --"
        return UsageError(f"unknown option {quote(argument)}: {there}", see)
    suggestion = did_you_mean(option, parsed.parsers[parsed.command]._option_string_actions)  # noqa: SLF001
    return UsageError(f"unknown option {quote(argument)}{suggestion}", see)


def _mistakes(parsed: argparse.Namespace) -> Iterator[str]:
    if parsed.command == "status" and parsed.rest:
        yield "status takes no options after --"
    if parsed.prometheus_cluster and not (parsed.prometheus or parsed.prometheus_service):
        yield "--prometheus-cluster needs --prometheus or --prometheus-service"
    if any(argument.startswith(("-o", "--output")) for argument in parsed.rest):
        yield "write -o before --"
    if parsed.command.startswith("clean") and "--apply" in parsed.rest:
        yield "write --apply before --"


def _make_parser() -> argparse.ArgumentParser:
    program = "kubectl nodeleak"
    usage = f"{program} COMMAND [NODE...] [options] [-- options of the command on the node]"
    root = Parser(prog=program, usage=usage, description=reflow(_INTRO), epilog=_EPILOG)
    root.add_argument(*HELP, action="help", help=argparse.SUPPRESS)
    commands = root.add_subparsers(
        dest="command", title="commands", metavar="COMMAND", prog=program
    )
    root.set_defaults(parsers=commands.choices)

    def add(
        name: str,
        execute: Callable[[argparse.Namespace], int],
        timeout: str,
        summary: str,
        description: str = "",
    ) -> argparse.ArgumentParser:
        rest = "" if name == "status" else f" [-- options of nodeleak {name.removesuffix('-job')}]"
        usage = f"{program} {name} {'NODE' if name == 'clean-job' else 'NODE...'} [options]{rest}"
        parser = commands.add_parser(
            name, usage=usage, help=summary, description=reflow(description or f"{summary}.")
        )
        parser.set_defaults(
            execute=execute, selector="", output="table", apply=False, prometheus_cluster=""
        )
        _add_common(parser, timeout)
        return parser

    text = "Print which nodes have problems, the worst first"
    _add_status(add("status", show_status, "20s", text, _STATUS))
    for name, summary in (
        ("scan", "Take a new snapshot of nodes, and print what is wrong"),
        ("timeline", "Print what happened on nodes"),
        ("journal", "List past releases of nodes"),
    ):
        _add_nodes(add(name, run_on_nodes, "1m", summary))
    _add_clean(
        add("clean", clean_nodes, "5m", "Run nodeleak clean on nodes; --apply releases", _CLEAN)
    )
    restore = add("restore", run_on_nodes, "5m", "Run nodeleak restore on named nodes", _RESTORE)
    restore.add_argument("nodes", nargs="+", metavar="NODE", help="name of a node")
    text = "Print or run a Job that cleans one node, made from the DaemonSet"
    _add_clean_job(add("clean-job", print_or_run_job, "5m", text, _CLEAN_JOB))
    return root


def _add_clean_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", nargs=1, metavar="NODE", help="name of the node")
    parser.add_argument(
        "--apply", action="store_true", help="a Job that releases; without it, a dry run"
    )
    parser.add_argument(
        "--run", action="store_true", help="create the Job, wait for it and print its log"
    )


def _add_common(parser: argparse.ArgumentParser, timeout: str) -> None:
    add, time = parser.add_argument, value(duration_between("1s", "1h"))
    add("-h", "--help", action="help", help="print this help")
    add(
        "--parallel",
        type=value(positive),
        default=20,
        metavar="N",
        help="ask at most N at once (20)",
    )
    add(
        "--timeout",
        type=time,
        default=timeout,
        metavar="TIME",
        help=f"how long one node may take ({timeout})",
    )
    add("--context", metavar="NAME", help="context of the kubeconfig")
    add("--kubeconfig", metavar="FILE", help="the kubeconfig")
    text = "namespace of the agents (default: any; needs the right to list pods in all)"
    add("-n", "--namespace", metavar="NAME", help=text)


def _add_nodes(
    parser: argparse.ArgumentParser,
    formats: Sequence[str] = ("table", "json"),
    *,
    default_all: bool = False,
) -> None:
    which = parser.add_mutually_exclusive_group(required=not default_all)
    which.add_argument("nodes", nargs="*", default=[], metavar="NODE", help="name of a node")
    which.add_argument("-l", "--selector", metavar="SELECTOR", help="nodes with these labels")
    if not default_all:
        which.add_argument("--all", action="store_true", help="every node")
    parser.add_argument(
        "-o", "--output", choices=formats, metavar="FORMAT", help=", ".join(formats)
    )


def _add_status(parser: argparse.ArgumentParser) -> None:
    _add_nodes(parser, ("table", "wide", "json"), default_all=True)
    add = parser.add_argument
    add(
        "--exit-code",
        action="store_true",
        help="exit with 1 if there are critical findings or warnings",
    )
    which = parser.add_mutually_exclusive_group()
    text = "ask this Prometheus instead of every agent, such as http://localhost:9090"
    which.add_argument("--prometheus", type=value(_url), metavar="URL", help=text)
    text = "ask this Prometheus through the API server, such as monitoring/prometheus:9090"
    which.add_argument(
        "--prometheus-service", type=value(_service), metavar="NAMESPACE/NAME:PORT", help=text
    )
    text = "the value of the label 'cluster', if that Prometheus has agents of several clusters"
    add("--prometheus-cluster", metavar="NAME", help=text)


def _add_clean(parser: argparse.ArgumentParser) -> None:
    _add_nodes(parser)
    add, time = parser.add_argument, value(duration_between("0s", "1h"))
    add("--apply", action="store_true", help="release every address that passes all guards")
    add("--yes", action="store_true", help="do not ask")
    add("--max-nodes", type=value(positive), default=5, metavar="N", help="nodes in one wave (5)")
    add("--pause", type=time, default="30s", metavar="TIME", help="between two waves (30s)")
