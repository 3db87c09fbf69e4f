"""The front door: run, scan, clean, restore, journal, record, explain.

What a command does not need is not imported: a scan through `kubectl exec` shares the daemon's memory limit.
"""

import argparse
import errno
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from agent.config import BUG, Config, UsageError, knobs, load, option, positive, span, variable

if TYPE_CHECKING:
    from agent.cleanup.journal import Entry, Journal
    from agent.model.recording import Recording

DONE, FOUND, FAILED, USAGE, UNREAD = 0, 1, 1, 2, 3

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
  nodeleak explain leaked_reservation          what a finding means, and what to do
  nodeleak clean                               what would be released, and what would not and why
  nodeleak clean --apply                       release it
  nodeleak restore --last --apply              put the last released address back

exit codes:
  0  done    1  findings (only with --exit-code); some release or restoration failed
  2  wrong usage or configuration    3  something needed was unread: nothing was touched
  70 a bug of ours, with a traceback

Every option can be set as an environment variable: --stale-after is NODELEAK_STALE_AFTER. Options win.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    # At once, and before the imports of a command: as a container's first process we must not ignore it.
    signal.signal(signal.SIGTERM, _leave)
    # Imports are most of a command's life, and collecting garbage a sixth of them; the daemon turns it on again.
    gc.disable()
    _prepare_output()
    try:
        given = _parser().parse_args(arguments)
        if given.command is not _run:
            # Half a look must not look like a whole one.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        command: Callable[[argparse.Namespace], int] = given.command
        code = command(given)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 (Python's own exit code for a bug, 1, means findings here)
        return _excuse(error)
    return code


def _excuse(error: Exception) -> int:
    """Tell the user what went wrong, as far as it is theirs to mend, and return the exit code."""
    match error:
        case UsageError():
            print("\n".join(f"nodeleak: {line}" for line in str(error).splitlines()), file=sys.stderr)
            return USAGE
        case BrokenPipeError():
            # Whoever read our output (head, less) has seen enough.
            _say_no_more()
            return DONE
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG):
            _say_no_more()
            print(f"nodeleak: the output is not whole: {error.strerror}", file=sys.stderr)
            return USAGE
        case _:
            traceback.print_exception(error)
            return BUG


def _prepare_output() -> None:
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (for as long as the process lives)
    # Names of files may be anything, and a terminal may know ASCII only.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _say_no_more() -> None:
    """Give what is still to be written to nobody, so that the interpreter does not try once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(_signal: int, _frame: object) -> NoReturn:
    sys.exit(DONE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nodeleak", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="say the version and leave")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    scan = _command(commands, "scan", _scan, "look at the node once, and say what was found")
    scan.add_argument("-o", "--output", choices=("table", "json"), default="table", help="for people, or for programs")
    scan.add_argument("--recording", metavar="FILE", help="judge a recording instead of this node; - is standard input")
    scan.add_argument("--exit-code", action="store_true", help="exit 1 when there are findings")

    clean = _command(commands, "clean", _clean, "say what would be released, and release it with --apply", _CLEAN)
    clean.add_argument("-o", "--output", choices=("table", "json"), default="table", help="for people, or for programs")
    clean.add_argument("--ip", action="append", metavar="ADDRESS", help="only this address; may be given again")
    clean.add_argument("--max", metavar="N", help="release N addresses at most, oldest first (default: all that pass)")
    _consent(clean, "release what passes every guard")

    restore = _command(commands, "restore", _restore, "put back what was released, byte for byte", _RESTORE)
    which = restore.add_mutually_exclusive_group(required=True)
    which.add_argument("entry", nargs="?", metavar="ENTRY|ADDRESS", help="of the journal; an address: its last release")
    which.add_argument("--last", action="store_true", help="the last release")
    _consent(restore, "put it back")

    journal = _command(commands, "journal", _journal, "list what was released")
    journal.add_argument("-o", "--output", choices=("table", "json"), default="table", help="json: with every byte")

    _command(commands, "run", _run, "the daemon: look every --interval, log changes, serve metrics")

    record = _command(commands, "record", _record, "write a look at the node as JSON, to replay anywhere")
    record.add_argument("--anonymous", action="store_true", help="hash the names of nodes, pods and processes")

    explain = commands.add_parser("explain", help="say what a finding means, and what to do")
    explain.add_argument("detector", nargs="?", metavar="DETECTOR", help="default: a line on each")
    explain.set_defaults(command=_explain)
    return parser


_CLEAN: Final = """

A dry run unless --apply is given. It looks twice, at least --confirm apart, and says of each address that docker does
not know whether it would be released, or which guard refuses and which setting would lift that. A release happens under
host-local's own locks, and the journal can restore it.
"""
_RESTORE: Final = """

A dry run unless --apply is given. It refuses where the address is reserved again, or the container has another by now.
"""


def _consent(parser: argparse.ArgumentParser, text: str) -> None:
    """`--apply` is the consent: an option only, so that no environment can give it."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--apply", action="store_true", help=text)
    either.add_argument("--dry-run", action="store_true", help="say what would be done, and touch nothing (default)")


def _command(
    commands: Any, name: str, command: Callable[[argparse.Namespace], int], text: str, more: str = ""
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.{more.rstrip()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=command)
    settings = knobs(name)
    groups = {
        group: parser.add_argument_group(group) for group in dict.fromkeys(one.group for one in settings.values())
    }
    for field, knob in settings.items():
        default = f" (default: {knob.default})" if knob.default else ""
        groups[knob.group].add_argument(
            option(field),
            dest=field,
            metavar=knob.metavar,
            action="append" if knob.many else "store",
            help=f"{knob.help}{default} [{variable(field)}]".replace("%", "%%"),
        )
    return parser


class _Version(argparse.Action):
    def __call__(self, *_: Any, **__: Any) -> None:
        from importlib.metadata import version

        print(f"nodeleak {version('nodeleak')}")
        sys.exit(DONE)


def _config(name: str, given: argparse.Namespace) -> Config:
    return load(name, {field: getattr(given, field) for field in knobs(name)}, os.environ)


def _scan(given: argparse.Namespace) -> int:
    from agent import cycle

    recording = _look(_config("scan", given)) if given.recording is None else _recorded(given)
    report = cycle.replay(recording.looks, patience=recording.patience, period=recording.period)
    if given.output == "json":
        import json

        from agent.exporters.document import document

        json.dump(document(report), sys.stdout, indent=1)
        print()
    else:
        from agent.exporters.table import table

        print(table(report), end="")
    if not report.complete:
        return UNREAD
    return FOUND if given.exit_code and report.findings else DONE


def _clean(given: argparse.Namespace) -> int:
    from agent import wiring

    config = _config("clean", given)
    only = _addresses(given.ip)
    most = _at_most(given.max)
    sources = wiring.sources_for_a_look(config)
    with _progress("looking at the node, twice if there is something to release"):
        cleaning = wiring.clean_once(config, sources, only=only, most=most, mode="auto" if given.apply else "dry-run")
    if given.output == "json":
        import json

        from agent.exporters.clean_document import document

        json.dump(document(cleaning), sys.stdout, indent=1)
        print()
    else:
        from agent.exporters.clean_table import table

        print(table(cleaning), end="")
    if cleaning.unread:
        return UNREAD
    return FAILED if cleaning.failed else DONE


def _addresses(given: list[str] | None) -> frozenset[str] | None:
    from ipaddress import ip_address

    if given is None:
        return None
    try:
        return frozenset(str(ip_address(one)) for one in given)
    except ValueError as error:
        raise UsageError(f"--ip: {error}") from error


def _at_most(given: str | None) -> int | None:
    try:
        return None if given is None else positive(given)
    except ValueError as error:
        raise UsageError(f"--max: {given!r}: {error}") from error


def _restore(given: argparse.Namespace) -> int:
    from agent import wiring
    from agent.exporters.clean_table import restoration

    config = _config("restore", given)
    entry = _entry(wiring.read_journal(config), given)
    done = wiring.restore(config, entry) if given.apply else wiring.try_restore(config, entry)
    print(restoration(done, applied=given.apply), end="")
    return DONE if done.done else FAILED


def _entry(journal: "Journal", given: argparse.Namespace) -> "Entry":
    """Find the entry that was asked for; an address, or `--last`, means the last release that was not restored yet."""
    if given.last:
        found = [entry for entry in journal.entries if entry.released]
        missing = "nothing was released that was not restored"
    else:
        named = [entry for entry in journal.entries if entry.name == given.entry]
        found = named or [entry for entry in journal.entries if entry.released and given.entry in entry.ips]
        missing = f"the journal has no entry {given.entry!r}, and no release of such an address"
    if not found:
        raise UsageError(f"{missing}; `nodeleak journal` lists what there is")
    return found[-1]


def _journal(given: argparse.Namespace) -> int:
    from agent import wiring
    from agent.exporters import clean_document, clean_table

    journal = wiring.read_journal(_config("journal", given))
    if given.output == "json":
        import json

        json.dump(clean_document.journal(journal), sys.stdout, indent=1)
        print()
    else:
        print(clean_table.journal(journal), end="")
    return DONE


def _record(given: argparse.Namespace) -> int:
    from agent.model import recording

    text = recording.dumps(_look(_config("record", given)))
    if given.anonymous:
        import secrets

        text = recording.anonymous(text, secrets.token_hex())
    print(text)
    return DONE


def _explain(given: argparse.Namespace) -> int:
    import inspect

    from agent.detectors import DETECTORS

    pages = {detector.NAME: inspect.getdoc(detector) or "" for detector in DETECTORS}
    if given.detector is None:
        for name, page in pages.items():
            print(f"{name}\n  {page.splitlines()[0]}")
        print("\n`nodeleak explain DETECTOR` says what it means and what to do.")
    elif given.detector in pages:
        print(f"{given.detector}\n\n{pages[given.detector]}")
    else:
        raise UsageError(f"there is no detector {given.detector!r}; there are: {', '.join(pages)}")
    return DONE


def _look(config: Config) -> "Recording":
    from datetime import timedelta

    from agent import daemon, wiring
    from agent.model.recording import Recording

    sources = wiring.sources_for_a_look(config)
    with _progress("looking at the node, twice if there is something to confirm"):
        looks = daemon.look_twice(sources, wiring.node_name(config), config.grace, config.confirm)
    return Recording(patience=config.grace, period=timedelta(0), looks=looks)


@contextmanager
def _progress(text: str) -> Iterator[None]:
    """Say on a terminal what takes a moment, and take it back when it is done."""
    if not sys.stderr.isatty():
        yield
        return
    print(f"{text} …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _recorded(given: argparse.Namespace) -> "Recording":
    from agent.model.recording import Damaged, loads

    name = given.recording
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text()
        recording = loads(text)
    except (OSError, UnicodeDecodeError, Damaged) as error:
        raise UsageError(f"{name}: {getattr(error, 'strerror', None) or error}") from error
    without_effect = [
        option(field) for field in knobs("scan") if field != "grace" and getattr(given, field) is not None
    ]
    if without_effect:
        raise UsageError(
            f"{', '.join(without_effect)}: a recording was read where it was taken; only --grace has effect"
        )
    if given.grace is None:
        return recording
    try:
        return replace(recording, patience=span(given.grace))
    except ValueError as error:
        raise UsageError(f"--grace: {given.grace!r}: {error}") from error


def _run(given: argparse.Namespace) -> int:
    from agent import wiring

    return wiring.run_daemon(_config("run", given))
