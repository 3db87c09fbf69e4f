"""The console script `kubectl-nodeleak`, which kubectl runs as `kubectl nodeleak`."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, NamedTuple

from agent.cli import exit_code_of, version
from agent.cli.candidates import COMPLETE
from agent.cli.output import DOCUMENTS, DONE, reflow, write
from agent.cli.parser import COMMANDS as NODE_COMMANDS
from agent.cli.parser import HELP_OPTIONS, Parser, options_of, see_help, value, with_command
from agent.config import UsageError, duration_between, matching, positive
from agent.model.text import did_you_mean, quote

_url = matching(r"https?://[^\s/?#]+[^\s?#]*", "a URL such as http://localhost:9090", str)
_service = matching(
    r"[a-z0-9-]+/(https?:)?[a-z0-9-]+:[a-z0-9-]+",
    "a service such as monitoring/prometheus:9090",
    str,
)
_PROGRAM: Final = "kubectl nodeleak"
_INTRO: Final = (
    "kubectl nodeleak asks the nodeleak agents of many nodes at once, with your kubeconfig and "
    "your rights."
)
_EPILOG: Final = """\
examples:
  kubectl nodeleak status                         every node, the worst first
  kubectl nodeleak status -l pool=web -o wide     some nodes, with more columns
  kubectl nodeleak scan worker-7                  everything about one node
  kubectl nodeleak timeline worker-7 -- --since 1h
  kubectl nodeleak clean --all                    dry run: changes nothing
  kubectl nodeleak clean --all --apply            asks once, releases in waves
  kubectl nodeleak clean-job worker-7 --apply --run    DaemonSet unchanged
  kubectl nodeleak brake on --reason 'incident 42'     stop all releases

exit codes:
  0  every node was asked, and its command ended with 0
  1  status --exit-code: critical findings or warnings. brake: it is on
  2  wrong usage
  3  incomplete: a node has no agent, gave no answer or has incomplete data
  4  clean --apply stopped: a node gave an unexpected result
  5  clean --apply was interrupted between two waves
  Otherwise the highest exit code of the nodes.
  4 and 5 of clean --apply come before 3, and 3 before all others.

Rights: 'list' nodes and pods, 'get' pods, 'create' and 'get' pods/exec.
brake: 'list' daemonsets; 'get', 'create', 'patch' and 'delete' the ConfigMap
nodeleak-brake. docs/kubectl.md has a ClusterRole.
Run 'kubectl nodeleak COMMAND --help' for the options of a command.
"""
_STATUS: Final = """\
Asks every agent what it last reported, and prints one row for each network of each node. It
changes nothing."""
_CLEAN: Final = """\
Without --apply, it prints what would be released. With --apply, it asks once, and cleans
--max-nodes at a time, with a pause after each wave. It stops after a wave in which a node gave
an unexpected result: anything but released, refused, or nothing to release, and says how to go
on."""
_RESTORE: Final = """\
Undoes a release. Name the nodes, and give the release after --: an address, an entry of the
journal, or --last. Without --apply after --, it only checks."""
_CLEAN_JOB: Final = """\
Prints the manifest of a Job, and changes nothing. The Job has the image and the settings of the
DaemonSet and runs 'nodeleak clean' on the node. With --apply, it mounts /var/lib/cni writable,
so that the DaemonSet can stay read-only. With --run, the Job is created; the command waits for
it, prints its log, and ends with its exit code."""
_VERSION: Final = """\
Asks no cluster. 'kubectl nodeleak status' prints the version of each agent."""
_COMPLETION: Final = """\
kubectl runs the program kubectl_complete-nodeleak of PATH for the words after 'kubectl nodeleak'.
pip installs it. After krew:

kubectl nodeleak completion > ~/.local/bin/kubectl_complete-nodeleak

chmod +x ~/.local/bin/kubectl_complete-nodeleak"""


_BRAKE: Final = """\
Without an argument, it prints whether the brake is on, and ends with 1 if it is. 'on' makes the
ConfigMap that the agents read, and 'off' deletes it. While it exists, no agent and no
'nodeleak clean --apply' in a pod releases anything, on any node. An agent that cannot read it
releases nothing either. It takes effect within seconds."""


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(parse_arguments, arguments)


def complete() -> int:
    """Run as the console script `kubectl_complete-nodeleak`."""
    return main([COMPLETE, *sys.argv[1:]])


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options, with `command`, `execute`, and `rest`: what follows `--`."""
    if list(arguments[:1]) == ["--version"]:
        return argparse.Namespace(execute=version.execute)
    if list(arguments[:1]) == [COMPLETE]:
        return argparse.Namespace(execute=_complete, words=arguments[1:])

    split = arguments.index("--") if "--" in arguments else len(arguments)
    own_arguments = with_command(_PROGRAM, arguments[:split], _COMMANDS)
    root = _make_parser(own_arguments[0])
    parsed, unexpected = root.parse_known_args(own_arguments)
    parsed.rest = tuple(arguments[split + 1 :])

    for argument in unexpected:
        # argparse takes no names of nodes on both sides of an option.
        if argument.startswith("-") or parsed.command in _WITHOUT_MORE_NODES:
            raise _unexpected_argument(parsed, argument)
        parsed.nodes.append(argument)

    if mistakes := list(_mistakes(parsed)):
        raise UsageError("\n".join(mistakes), see_help(f"{_PROGRAM} {parsed.command}"))
    return parsed


def _complete(arguments: argparse.Namespace) -> int:
    from agent.fleet import completion

    write(completion.candidates(arguments.words, _SUMMARIES, parser_of).lines())
    return DONE


def parser_of(command: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = _make_parser(command).get_default("parsers")[command]
    return parser


def _unexpected_argument(parsed: argparse.Namespace, argument: str) -> UsageError:
    see = see_help(f"{_PROGRAM} {parsed.command}")
    if not argument.startswith("-"):
        return UsageError(f"unexpected argument {quote(argument)}", see)

    option = argument.partition("=")[0]
    on_node = parsed.command.removesuffix("-job")
    if on_node in NODE_COMMANDS and option in options_of(on_node):
        there = f"it is an option of nodeleak {on_node}: write it after --"
        return UsageError(f"unknown option {quote(argument)}: {there}", see)

    options = parsed.parsers[parsed.command]._option_string_actions  # noqa: SLF001 (no other way)
    return UsageError(f"unknown option {quote(argument)}{did_you_mean(option, options)}", see)


def _mistakes(parsed: argparse.Namespace) -> Iterator[str]:
    """Yield the options that cannot be combined, or stand at the wrong place."""
    if parsed.rest and not _COMMANDS[parsed.command].runs_on_nodes:
        yield f"{parsed.command} takes no options after --"
    if parsed.prometheus_cluster and not (parsed.prometheus or parsed.prometheus_service):
        yield "--prometheus-cluster needs --prometheus or --prometheus-service"
    if any(argument.startswith(("-o", "--output")) for argument in parsed.rest):
        yield "write -o before --"
    if parsed.command.startswith("clean") and "--apply" in parsed.rest:
        yield "write --apply before --"


def _add_status(parser: argparse.ArgumentParser) -> None:
    _add_nodes(parser, ("table", "wide", *DOCUMENTS), default_all=True)
    add = parser.add_argument
    text = "exit with 1 if there are critical findings or warnings"
    add("--exit-code", action="store_true", help=text)

    which = parser.add_mutually_exclusive_group()
    text = "ask this Prometheus instead of every agent, such as http://localhost:9090"
    which.add_argument("--prometheus", type=value(_url), metavar="URL", help=text)
    text = "ask this Prometheus through the API server, such as monitoring/prometheus:9090"
    service = "NAMESPACE/NAME:PORT"
    which.add_argument("--prometheus-service", type=value(_service), metavar=service, help=text)
    text = "the value of the label 'cluster', if that Prometheus has agents of several clusters"
    add("--prometheus-cluster", metavar="NAME", help=text)


def _add_nodes(
    parser: argparse.ArgumentParser,
    formats: Sequence[str] = ("table", *DOCUMENTS),
    *,
    default_all: bool = False,
) -> None:
    """Add which nodes, and `--output` with these formats. `default_all`: of every node."""
    which = parser.add_mutually_exclusive_group(required=not default_all)
    which.add_argument("nodes", nargs="*", default=[], metavar="NODE", help="name of a node")
    which.add_argument("-l", "--selector", metavar="LABELS", help="nodes with these labels")
    if not default_all:
        which.add_argument("--all", action="store_true", help="every node")
    parser.add_argument(
        "-o", "--output", choices=formats, metavar="FORMAT", help=", ".join(formats)
    )
    _add_parallel(parser)


def _add_named_nodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", nargs="+", metavar="NODE", help="name of a node")
    _add_parallel(parser)


def _add_parallel(parser: argparse.ArgumentParser) -> None:
    text = "ask at most N at once (20)"
    parser.add_argument("--parallel", type=value(positive), default=20, metavar="N", help=text)


def _add_clean(parser: argparse.ArgumentParser) -> None:
    _add_nodes(parser)
    add = parser.add_argument
    pause = value(duration_between("0s", "1h"))
    add("--apply", action="store_true", help="release every address that passes all guards")
    add("--yes", action="store_true", help="do not ask")
    add("--max-nodes", type=value(positive), default=5, metavar="N", help="nodes in one wave (5)")
    add("--pause", type=pause, default="30s", metavar="TIME", help="between two waves (30s)")


def _add_nothing(_: argparse.ArgumentParser) -> None:
    pass


def _add_clean_job(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("nodes", nargs=1, metavar="NODE", help="name of the node")
    add("--apply", action="store_true", help="a Job that releases; without it, a dry run")
    add("--run", action="store_true", help="create the Job, wait for it and print its log")


def _add_brake(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("state", nargs="?", choices=("on", "off"), metavar="on|off", help="set it, or end it")
    add("--reason", metavar="TEXT", help="why it is set, for everybody who sees it; with on")


class _Command(NamedTuple):
    module: str
    """Of this package. Only that of the given command is imported."""
    function: str
    """Executes the command, with its arguments, and returns the exit code."""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    timeout: str
    """Of one node. Empty: the command asks no cluster, and has no options of one."""
    summary: str
    description: str = ""
    """Empty: the summary."""
    nodes: str = "{NODE...|-l LABELS|--all}"
    """Which, for the usage."""
    runs_on_nodes: bool = True
    """Whether it runs a command of nodeleak on each, whose options follow `--`."""


_COMMANDS: Final[Mapping[str, _Command]] = {
    "status": _Command(
        "session",
        "show_status",
        _add_status,
        "20s",
        "Print which nodes have problems, the worst first",
        _STATUS,
        nodes="[NODE...|-l LABELS]",
        runs_on_nodes=False,
    ),
    "scan": _Command(
        "session",
        "run_on_nodes",
        _add_nodes,
        "1m",
        "Take a new snapshot of nodes, and print what is wrong",
    ),
    "timeline": _Command(
        "session", "run_on_nodes", _add_nodes, "1m", "Print what happened on nodes"
    ),
    "journal": _Command("session", "run_on_nodes", _add_nodes, "1m", "List past releases of nodes"),
    "clean": _Command(
        "cleaning",
        "clean_nodes",
        _add_clean,
        "5m",
        "Run nodeleak clean on nodes; --apply releases",
        _CLEAN,
    ),
    "restore": _Command(
        "session",
        "run_on_nodes",
        _add_named_nodes,
        "5m",
        "Run nodeleak restore on named nodes",
        _RESTORE,
        nodes="NODE...",
    ),
    "clean-job": _Command(
        "clean_job",
        "print_or_run_job",
        _add_clean_job,
        "5m",
        "Print or run a Job that cleans one node, made from the DaemonSet",
        _CLEAN_JOB,
        nodes="NODE",
    ),
    "brake": _Command(
        "brake",
        "show_or_set_brake",
        _add_brake,
        "20s",
        "Stop all releases in the cluster (on, off), or show the state",
        _BRAKE,
        nodes="[on|off]",
        runs_on_nodes=False,
    ),
    "version": _Command(
        "offline",
        "print_version",
        _add_nothing,
        "",
        "Print the version of this program",
        _VERSION,
        nodes="",
        runs_on_nodes=False,
    ),
    "completion": _Command(
        "offline",
        "print_completion",
        _add_nothing,
        "",
        "Print the program with which kubectl completes commands",
        _COMPLETION,
        nodes="",
        runs_on_nodes=False,
    ),
}
_SUMMARIES: Final = {name: command.summary for name, command in _COMMANDS.items()}
_WITHOUT_MORE_NODES: Final = {
    name for name, command in _COMMANDS.items() if "..." not in command.nodes
}


def _make_parser(chosen: str) -> argparse.ArgumentParser:
    """Return a parser of the chosen command, which lists them all."""
    usage = f"{_PROGRAM} COMMAND [NODE...] [options] [-- options on the node]"
    root = Parser(prog=_PROGRAM, usage=usage, description=reflow(_INTRO), epilog=_EPILOG)
    root.add_argument(*HELP_OPTIONS, action="help", help=argparse.SUPPRESS)
    parsers = root.add_subparsers(
        dest="command", title="commands", metavar="COMMAND", prog=_PROGRAM
    )
    root.set_defaults(parsers=parsers.choices)

    for name, command in _COMMANDS.items():
        if name == chosen:
            _add_command(parsers, name, command)
        else:
            parsers.add_parser(name, help=command.summary)
    return root


def _add_command(parsers: Any, name: str, command: _Command) -> None:
    on_node = "[-- options on the node]" * command.runs_on_nodes
    words = filter(None, (_PROGRAM, name, command.nodes, "[options]", on_node))
    parser = parsers.add_parser(
        name,
        usage=" ".join(words),
        help=command.summary,
        description=reflow(command.description or f"{command.summary}."),
    )
    parser.set_defaults(
        execute=getattr(import_module(f"agent.fleet.{command.module}"), command.function),
        selector="",
        output="table",
        apply=False,
        prometheus_cluster="",
    )

    parser.add_argument("-h", "--help", action="help", help="print this help")
    if command.timeout:
        _add_common(parser, command.timeout)
    command.add_arguments(parser)


def _add_common(parser: argparse.ArgumentParser, timeout: str) -> None:
    add = parser.add_argument
    seconds = value(duration_between("1s", "1h"))
    text = f"how long one node may take ({timeout})"
    add("--timeout", type=seconds, default=timeout, metavar="TIME", help=text)
    add("--context", metavar="NAME", help="context of the kubeconfig")
    add("--kubeconfig", metavar="FILE", help="the kubeconfig")
    text = "namespace of the agents (default: any; needs the right to list pods in all)"
    add("-n", "--namespace", metavar="NAME", help=text)
