"""The command line of `kubectl nodeleak`: its options, its help, and what follows `--`."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from agent.cli.output import width
from agent.cli.parser import COMMANDS as NODE_COMMANDS
from agent.cli.parser import did_you_mean, make_parser
from agent.config import UsageError, duration_between, invalid, positive, quote

_OVERVIEW: Final = """\
kubectl nodeleak asks the nodeleak agents of many nodes at once, with your kubeconfig and your rights.

usage: kubectl nodeleak COMMAND [NODE...] [options] [-- options of the command on the node]

commands:
{commands}

examples:
  kubectl nodeleak status                            every node, the worst first
  kubectl nodeleak status -l pool=web -o wide        some nodes, with pods and cleanup settings
  kubectl nodeleak status --prometheus=http://localhost:9090   every node, without asking each agent
  kubectl nodeleak scan worker-7                     everything about one node
  kubectl nodeleak clean --all                       dry run: what would be released
  kubectl nodeleak clean --all --apply               release it: asks once, then wave by wave
  kubectl nodeleak timeline worker-7 -- --since 1h   options after -- are those of nodeleak timeline

exit codes:
  0  every node was asked, and its command ended with 0
  1  status --exit-code: there are critical findings or warnings
  2  wrong usage
  3  incomplete: some node has no agent or gave no answer, or its data are incomplete
  4  clean --apply stopped: a node gave an unexpected result
  5  clean --apply was interrupted between two waves
  Otherwise the highest exit code of the nodes. 3 comes before all others.

Rights: 'list' nodes and pods, 'get' pods, 'create' and 'get' pods/exec (docs/kubectl.md has a ClusterRole).
Run 'kubectl nodeleak COMMAND --help' for the options of a command.
"""


@dataclass(frozen=True, slots=True)
class Command:
    summary: str
    description: str
    timeout: str
    """How long one node may take, unless --timeout says otherwise."""
    outputs: Sequence[str] = ("table", "json")
    every_node: bool = False
    """Whether it asks every node if none is named."""
    selects: bool = True
    """Whether nodes can be chosen by --all and --selector."""
    one_node: bool = False


COMMANDS: Final[Mapping[str, Command]] = {
    "status": Command(
        "which nodes have problems, the worst first",
        "Asks every agent what it last reported, and prints one row for each network of each node. It changes nothing.",
        "20s",
        ("table", "wide", "json"),
        every_node=True,
    ),
    "scan": Command("run nodeleak scan on nodes", "Takes a new snapshot of each node. It changes nothing.", "1m"),
    "timeline": Command("run nodeleak timeline on nodes", "Prints what happened on each node.", "1m"),
    "journal": Command("run nodeleak journal on nodes", "Lists past releases of each node.", "1m"),
    "clean": Command(
        "run nodeleak clean on nodes; --apply releases",
        "Without --apply, it prints what would be released. With --apply, it asks once, and cleans --max-nodes at a "
        "time, with a pause after each wave. It stops after a wave in which a node gave an unexpected result: anything "
        "but released, refused, or nothing to release, and says how to go on.",
        "5m",
    ),
    "restore": Command(
        "run nodeleak restore on named nodes",
        "Undoes a release. Name the nodes, and give the release after --: an address, an entry of the journal, or "
        "--last. Without --apply after --, it only checks.",
        "5m",
        ("table",),
        selects=False,
    ),
    "clean-job": Command(
        "print a Job that cleans one node, made from the DaemonSet",
        "Prints the manifest of a Job, and changes nothing. The Job has the image and the settings of the DaemonSet "
        "and runs 'nodeleak clean' on the node. With --apply, it mounts /var/lib/cni writable, so that the DaemonSet "
        "can stay read-only. Review it, then pipe it to 'kubectl create -f -'.",
        "20s",
        ("yaml",),
        selects=False,
        one_node=True,
    ),
}


def cluster_options(parsed: argparse.Namespace) -> list[str]:
    """Write the options that say which cluster, and where the agents are, for another command."""
    given = {"--context": parsed.context, "--kubeconfig": parsed.kubeconfig, "--namespace": parsed.namespace}
    return [f"{name}={value}" for name, value in given.items() if value]


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options, with `command`, and `rest`: what follows `--`. The command `help` has the `page` to print."""
    name, *given = arguments or ["help"]
    if name == "help" and given and given[0] in COMMANDS:
        name, given = given[0], ["--help"]
    if name in {"help", "-h", "--help"}:
        return argparse.Namespace(command="help", page=_overview())
    if name == "--version":
        return argparse.Namespace(command="version")
    if name not in COMMANDS:
        hint = "options follow the command: kubectl nodeleak status ..." if name.startswith("-") else _see_help("")
        raise UsageError(f"unknown command {quote(name)}{did_you_mean(name, list(COMMANDS))}", hint)
    split = given.index("--") if "--" in given else len(given)
    own, rest = given[:split], given[split + 1 :]
    parser = _parser(name)
    if {"-h", "--help"} & set(own):
        return argparse.Namespace(command="help", page=parser.format_help())
    parsed, unknown = parser.parse_known_intermixed_args(own, argparse.Namespace(command=name, rest=tuple(rest)))
    if unknown:
        raise _unknown_option(name, unknown[0], parser)
    _check(parsed)
    return parsed


def _unknown_option(name: str, given: str, parser: argparse.ArgumentParser) -> UsageError:
    option = given.partition("=")[0]
    on_node = name.removesuffix("-job")
    if on_node in NODE_COMMANDS and option in _options(make_parser(on_node)):
        there = f"it is an option of nodeleak {on_node}: write it after --"
        return UsageError(f"unknown option {quote(given)}: {there}", _see_help(name))
    return UsageError(f"unknown option {quote(given)}{did_you_mean(option, _options(parser))}", _see_help(name))


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [one for action in parser._actions for one in action.option_strings]  # noqa: SLF001 (no other way to ask)


def _overview() -> str:
    return _OVERVIEW.format(commands="\n".join(f"  {name:<10} {one.summary}" for name, one in COMMANDS.items()))


def _see_help(command: str) -> str:
    return f"run 'kubectl nodeleak {command}{' ' if command else ''}--help' for usage"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "), f"run '{self.prog} --help' for usage")


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=width())


def _parser(name: str) -> argparse.ArgumentParser:
    command = COMMANDS[name]
    operands = "NODE" if command.one_node else "[NODE...]" if command.every_node else "NODE..."
    rest = "" if name == "status" else f" [-- options of nodeleak {'clean' if command.one_node else name}]"
    parser = _Parser(
        prog=f"kubectl nodeleak {name}",
        usage=f"kubectl nodeleak {name} {operands} [options]{rest}",
        description=command.description,
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="name of a node")
    if command.selects:
        parser.add_argument("-l", "--selector", default="", metavar="SELECTOR", help="nodes with these labels")
    if command.selects and not command.every_node:
        parser.add_argument("--all", action="store_true", help="every node")
    if len(command.outputs) > 1:
        kinds = "|".join(command.outputs)
        parser.add_argument("-o", "--output", choices=command.outputs, default="table", metavar=kinds, help="format")
    if name in _OWN:
        _OWN[name](parser)
    _add_cluster(parser, command)
    parser.add_argument("-h", "--help", action="store_true", help="print this help")
    return parser


def _add_cluster(parser: argparse.ArgumentParser, command: Command) -> None:
    timeout = _value("--timeout", duration_between("1s", "1h"))
    parser.set_defaults(timeout=timeout(command.timeout))
    if not command.one_node:
        parser.add_argument(
            "--parallel",
            type=_value("--parallel", positive),
            default=20,
            metavar="N",
            help="ask at most N at once (20)",
        )
        text = f"how long one node may take ({command.timeout})"
        parser.add_argument("--timeout", type=timeout, metavar="TIME", help=text)
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    parser.add_argument("--kubeconfig", metavar="FILE", help="the kubeconfig")
    text = "namespace of the agents (default: any; needs the right to list pods in all)"
    parser.add_argument("-n", "--namespace", metavar="NAME", help=text)


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--exit-code", action="store_true", help="exit with 1 if there are critical findings or warnings"
    )
    text = "ask this Prometheus instead of every agent, such as http://localhost:9090"
    parser.add_argument("--prometheus", type=_value("--prometheus", _url), metavar="URL", help=text)
    text = "ask this Prometheus through the API server, such as monitoring/prometheus:9090"
    service = _value("--prometheus-service", _service)
    parser.add_argument("--prometheus-service", type=service, metavar="NAMESPACE/NAME:PORT", help=text)
    text = "the value of the label 'cluster', if that Prometheus has agents of several clusters"
    parser.add_argument("--prometheus-cluster", default="", metavar="NAME", help=text)


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", text):
        raise ValueError("expected a URL such as http://localhost:9090")
    return text


def _service(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9-]+/(https?:)?[a-z0-9-]+:[a-z0-9-]+", text):
        raise ValueError("expected a service such as monitoring/prometheus:9090")
    return text


def _add_clean(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--apply", action="store_true", help="release every address that passes all guards")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    most = _value("--max-nodes", positive)
    parser.add_argument("--max-nodes", type=most, default=5, metavar="N", help="nodes in one wave (5)")
    pause = _value("--pause", duration_between("0s", "1h"))
    parser.add_argument("--pause", type=pause, default=pause("30s"), metavar="TIME", help="between two waves (30s)")


def _add_clean_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--apply", action="store_true", help="a Job that releases; without it, a dry run")


_OWN: Final[Mapping[str, Callable[[argparse.ArgumentParser], None]]] = {
    "status": _add_status,
    "clean": _add_clean,
    "clean-job": _add_clean_job,
}


def _value(name: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Make a type for argparse whose errors name the option, the value and what was expected."""

    def read(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise UsageError(invalid(name, text, error)) from error

    return read


def _check(parsed: argparse.Namespace) -> None:
    """Refuse what cannot be combined; raises UsageError with every mistake."""
    checks = (_nodes_mistake, _rest_mistake, _prometheus_mistake, _clean_mistake)
    mistakes = [text for check in checks if (text := check(parsed))]
    if mistakes:
        raise UsageError("\n".join(mistakes), _see_help(parsed.command))


def _nodes_mistake(parsed: argparse.Namespace) -> str:
    command = COMMANDS[parsed.command]
    selector, everything = getattr(parsed, "selector", ""), getattr(parsed, "all", False)
    ways = [bool(parsed.nodes), bool(selector), everything]
    if sum(ways) > 1:
        return "node names, --selector and --all cannot be combined: use one of them"
    if command.one_node and len(parsed.nodes) != 1:
        return f"expected the name of one node, got {len(parsed.nodes)}"
    if not any(ways) and not command.every_node:
        return "no node given: name nodes, or use --selector or --all" if command.selects else "no node given: name it"
    return ""


def _rest_mistake(parsed: argparse.Namespace) -> str:
    names = {one.partition("=")[0] for one in parsed.rest}
    if parsed.command == "status" and parsed.rest:
        return "status takes no options after --"
    if any(one.startswith("-o") for one in names) or "--output" in names:
        return "write -o before --"
    if parsed.command.startswith("clean") and "--apply" in names:
        return "write --apply before --"
    return ""


def _prometheus_mistake(parsed: argparse.Namespace) -> str:
    if parsed.command != "status":
        return ""
    if parsed.prometheus and parsed.prometheus_service:
        return "--prometheus and --prometheus-service cannot be combined: use one of them"
    if parsed.prometheus_cluster and not (parsed.prometheus or parsed.prometheus_service):
        return "--prometheus-cluster needs --prometheus or --prometheus-service"
    return ""


def _clean_mistake(parsed: argparse.Namespace) -> str:
    return "--yes needs --apply" if parsed.command == "clean" and parsed.yes and not parsed.apply else ""
