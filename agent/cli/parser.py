"""The commands and their options: `--help` is written here."""

import argparse
import sys
from collections.abc import Callable
from typing import Any, Final

from agent.cli import clean as releasing
from agent.cli import explain as explaining
from agent.cli import scan as looking
from agent.cli import timeline as telling
from agent.cli.exit_codes import DONE
from agent.cli.options import add_options

_DESCRIPTION = """\
Says what the records of a Kubernetes node disagree about: addresses that host-local reserved and nobody uses,
addresses in use that nobody reserved. It reads; only where that is asked for, it releases leaked addresses.
"""


_EPILOG: Final = """\
examples:
  nodeleak scan --node worker-1 --kubeconfig /var/lib/kubelet/kubeconfig
  nodeleak scan --api off                      on the node itself, without credentials
  kubectl exec ds/nodeleak -- nodeleak scan    in the agent's pod
  nodeleak record > node.json                  a look to send to somebody
  nodeleak scan --recording node.json          the same verdicts, anywhere
  nodeleak scan --map                          the addresses as a map
  nodeleak explain leaked_reservation          what a finding means, and what to do
  nodeleak timeline --since 1h                 what happened on the node, in order
  nodeleak clean                               what would be released, and what would not and why
  nodeleak clean --apply                       release it
  nodeleak journal                             what was released
  nodeleak restore --last --apply              put the last released address back

exit codes:
  0  done    1  findings (only with --exit-code)    2  wrong usage or configuration
  3  a required source could not be read: nothing was released
  4  a release or restoration failed    5  interrupted before all releases were done
  70 a bug in nodeleak, with a traceback    74  the output or the journal could not be written

Every option can be set as an environment variable: --stale-after is NODELEAK_STALE_AFTER. Options win.
"""


_CLEAN: Final = (
    """
A dry run unless --apply is given. It takes two snapshots, --confirm-after apart, and says of each address that docker
does not know whether it would be released, or which guard refuses and which setting would lift that. A release happens
under host-local's own locks, and the journal can restore it.
""",
    """
examples:
  nodeleak clean --api=off                     what would be released, and what would not and why
  nodeleak clean --api=off --apply --max=1     release the oldest leak, and see
  nodeleak clean --api=off --apply             release all that passes every guard
  nodeleak clean --api=off --ip=10.244.1.9     what of this one address?
  nodeleak explain outside_range               what a reason means

exit codes:
  0  done: also when there was nothing to release, or every release was refused
  2  wrong usage or configuration: nothing was touched
  3  a source could not be read: nothing was touched
  4  some release failed (lock busy, or a system error): the address is where it was
  5  interrupted by a signal: completed releases are in the output, no others began
  74 the output could not be written (see nodeleak journal), or the journal could not: then nothing was released

--apply, --dry-run, --ip and --max are options only: no environment can consent.
""",
)


_RESTORE: Final = (
    """
A dry run unless --apply is given. It refuses where the address is reserved again, or the container has another by now.
""",
    """
examples:
  nodeleak restore 10.244.1.9                  could the last release of this address be put back?
  nodeleak restore 10.244.1.9 --apply          put it back
  nodeleak restore --last --apply              put the last release back

exit codes:
  0  restored, or it would be
  2  wrong usage or configuration, or the journal has no such entry
  4  it cannot be restored: the message says why; nothing was touched
""",
)


_JOURNAL: Final = (
    "",
    """
examples:
  nodeleak journal                             when, by whom, which addresses, how it ended
  nodeleak journal -o json                     with every byte that was removed

exit codes:
  0  done: also when nothing was ever released    2  wrong usage, or the journal cannot be read
""",
)


_TIMELINE: Final = (
    """
One line for each thing that happened, oldest first: the starts of the node, of docker and of the kubelet, what became
of its device plugins, which pods it refused for a device, since when addresses are leaked, what was released. It looks
as a scan does, and adds what the daemon wrote down; nothing is touched. Read it from a restart on: a pod that was
refused between the kubelet's start and a resource's registration lost a race.

A ~ before a time: it happened at about that time. Either a look saw it first, some time after it had happened, or the
time is by a clock of whole seconds which may be the API server's, or (leaks) it is the earliest that it can have been.
What a file dates is to the millisecond.
""",
    """
examples:
  nodeleak timeline --node worker-1 --kubeconfig /etc/kubernetes/kubelet.conf
  nodeleak timeline --api=off                  without credentials: no refused pods
  nodeleak timeline --since 1h                 the last hour only
  nodeleak timeline -o json                    every event; the table cuts a long run of one kind
  kubectl exec ds/nodeleak -- nodeleak timeline

exit codes:
  0  done: also when nothing is known to have happened
  2  wrong usage or configuration
  3  something that events come from was unread: the table says what, and may lack events

Without the daemon (nodeleak run) nobody writes down what files forget: a registration before the last one, a plugin
that was gone for a while. Kept in --state-dir.
""",
)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nodeleak", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="say version and commit, and leave")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    scan = _command(commands, "scan", looking.scan, "look at the node once, and say what was found")
    scan.add_argument("-o", "--output", choices=("table", "json"), default="table", help="for people, or for programs")
    scan.add_argument("--recording", metavar="FILE", help="judge a recording instead of this node; - is standard input")
    scan.add_argument("--map", action="store_true", help="draw the ranges, a letter an address, instead of the table")
    scan.add_argument("--exit-code", action="store_true", help="exit 1 when there are findings")

    timeline = _command(
        commands, "timeline", telling.timeline, "tell what happened on the node, in order", _TIMELINE, settings="scan"
    )
    timeline.add_argument(
        "-o", "--output", choices=("table", "json"), default="table", help="for people, or for programs"
    )
    timeline.add_argument("--since", metavar="SPAN", help="only the last SPAN, such as 1h (default: all that is known)")

    clean = _command(
        commands, "clean", releasing.clean, "say what would be released, and release it with --apply", _CLEAN
    )
    clean.add_argument("-o", "--output", choices=("table", "json"), default="table", help="for people, or for programs")
    clean.add_argument(
        "--ip",
        action="append",
        metavar="ADDRESS",
        help="only this address, though it be outside the network's range; may be given again",
    )
    clean.add_argument("--max", metavar="N", help="release N addresses at most, oldest first (default: all that pass)")
    _consent(clean, "release what passes every guard")

    restore = _command(commands, "restore", releasing.restore, "put back what was released, byte for byte", _RESTORE)
    which = restore.add_mutually_exclusive_group(required=True)
    which.add_argument("entry", nargs="?", metavar="ENTRY|ADDRESS", help="of the journal; an address: its last release")
    which.add_argument("--last", action="store_true", help="the last release that was not restored")
    _consent(restore, "put it back")

    journal = _command(
        commands, "journal", releasing.journal, "list what was released, by whom, and what became of it", _JOURNAL
    )
    journal.add_argument("-o", "--output", choices=("table", "json"), default="table", help="json: with every byte")

    _command(commands, "run", looking.run, "the daemon: look every --interval, log changes, serve metrics")

    record = _command(commands, "record", looking.record, "write a look at the node as JSON, to replay anywhere")
    record.add_argument("--anonymous", action="store_true", help="hash the names of nodes, pods and processes")

    explain = commands.add_parser(
        "explain", help="say what a finding means and what to do, or why an address is not released"
    )
    explain.add_argument(
        "word", nargs="?", metavar="WORD", help="a detector, a reason or a verdict of clean; default: a line on each"
    )
    explain.set_defaults(command=explaining.explain)
    return parser


def _consent(parser: argparse.ArgumentParser, text: str) -> None:
    """`--apply` is the consent: an option only, so that no environment can give it."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--apply", action="store_true", help=text)
    either.add_argument("--dry-run", action="store_true", help="say what would be done, and touch nothing (default)")


def _command(
    commands: Any,
    name: str,
    command: Callable[[argparse.Namespace], int],
    text: str,
    more: tuple[str, str] = ("", ""),
    settings: str = "",
) -> argparse.ArgumentParser:
    """Add a command. `more`: what its help says before the options, and after them; `settings`: whose it takes."""
    before, after = more
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.\n{before.rstrip()}",
        epilog=after.strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # What is short for one option today would be two tomorrow; and nobody consents in half a word.
        allow_abbrev=False,
    )
    parser.set_defaults(command=command)
    add_options(parser, settings or name)
    return parser


class _Version(argparse.Action):
    def __call__(self, *_: Any, **__: Any) -> None:
        from agent.cli.version import built

        print(built())
        sys.exit(DONE)
