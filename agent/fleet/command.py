"""The console script `kubectl-nodeleak`, which kubectl runs as `kubectl nodeleak`."""

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Sequence

import yaml  # type: ignore[import-untyped]

from agent.cli import prepare_output, report_error, version
from agent.cli.exit_codes import DONE, UNAVAILABLE
from agent.cli.output import write
from agent.config import UsageError, option, settings_of
from agent.fleet.clean_job import clean_job
from agent.fleet.cleaning import apply_on_nodes
from agent.fleet.inventory import LABELS
from agent.fleet.kubectl import KubectlError
from agent.fleet.options import cluster_options, parse_arguments
from agent.fleet.reading import run_on_nodes, show_status
from agent.fleet.session import Session, note


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    prepare_output()
    try:
        parsed = parse_arguments(sys.argv[1:] if arguments is None else arguments)
        code = _execute(parsed)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except KubectlError as error:
        note(str(error))
        return UNAVAILABLE
    except Exception as error:  # noqa: BLE001 (Python's own exit code for a bug is 1, which means findings here)
        return report_error(error)
    return code


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes a value twice instead of an anchor, which nobody expects in a manifest."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _execute(parsed: argparse.Namespace) -> int:
    match parsed.command:
        case "help":
            write(parsed.page)
            return DONE
        case "version":
            return version.execute(parsed)
        case "status":
            return show_status(parsed)
        case "clean-job":
            return _print_job(parsed)
        case "clean" if parsed.apply:
            return apply_on_nodes(parsed)
        case _:
            return run_on_nodes(parsed)


def _again(arguments: argparse.Namespace) -> str:
    """Write the command that prints this manifest."""
    rest = ["--", *arguments.rest] if arguments.rest else []
    options = [*(["--apply"] if arguments.apply else []), *cluster_options(arguments)]
    words = ["clean-job", *arguments.nodes, *options, *rest]
    return f"kubectl nodeleak {shlex.join(words)}"


def _print_job(arguments: argparse.Namespace) -> int:
    session = Session(arguments)
    (target,) = session.targets(arguments.nodes)
    listed = session.kubectl.get("daemonsets", *session.agents_in, f"--selector={LABELS}", "--output=json")
    found = json.loads(listed)["items"]
    if len(found) != 1:
        names = ", ".join(one["metadata"]["namespace"] for one in found) or "none"
        hint = "choose one with --namespace"
        raise UsageError(f"expected one DaemonSet with the labels {LABELS}, found: {names}", hint)
    try:
        job = clean_job(found[0], target.node, arguments.rest, _cleaning_options(), apply=arguments.apply)
    except ValueError as error:
        raise UsageError(str(error)) from error
    namespace = job["metadata"]["namespace"]
    write(f"# JOB=$({_again(arguments)} | kubectl create -f - -o name)\n")
    write(f"# until kubectl -n {namespace} logs -f $JOB; do sleep 2; done\n")
    write(yaml.dump(job, Dumper=_Dumper, sort_keys=False))
    return DONE


def _cleaning_options() -> frozenset[str]:
    return frozenset(map(option, settings_of("clean")))
