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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from agent.config import BUG, Config, UsageError, knobs, load, option, positive, span, variable

if TYPE_CHECKING:
    from enum import StrEnum

    from agent.cleanup.journal import Entry, Journal
    from agent.model.recording import Recording

T = TypeVar("T")

DONE, FOUND, FAILED, USAGE, UNREAD = 0, 1, 1, 2, 3
_STANDARD_ERROR: Final = 2

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
  nodeleak journal                             what was released
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
    # What was closed by whoever started us is opened to nowhere: else the next file opened, which may be the journal,
    # is taken for standard output.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        pass
    os.close(handle)
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 (for as long as the process lives)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (as above)
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
    clean.add_argument(
        "--ip",
        action="append",
        metavar="ADDRESS",
        help="only this address, though it be outside the network's range; may be given again",
    )
    clean.add_argument("--max", metavar="N", help="release N addresses at most, oldest first (default: all that pass)")
    _consent(clean, "release what passes every guard")

    restore = _command(commands, "restore", _restore, "put back what was released, byte for byte", _RESTORE)
    which = restore.add_mutually_exclusive_group(required=True)
    which.add_argument("entry", nargs="?", metavar="ENTRY|ADDRESS", help="of the journal; an address: its last release")
    which.add_argument("--last", action="store_true", help="the last release that was not restored")
    _consent(restore, "put it back")

    journal = _command(
        commands, "journal", _journal, "list what was released, by whom, and what became of it", _JOURNAL
    )
    journal.add_argument("-o", "--output", choices=("table", "json"), default="table", help="json: with every byte")

    _command(commands, "run", _run, "the daemon: look every --interval, log changes, serve metrics")

    record = _command(commands, "record", _record, "write a look at the node as JSON, to replay anywhere")
    record.add_argument("--anonymous", action="store_true", help="hash the names of nodes, pods and processes")

    explain = commands.add_parser(
        "explain", help="say what a finding means and what to do, or why an address is not released"
    )
    explain.add_argument(
        "word", nargs="?", metavar="WORD", help="a detector, a reason or a verdict of clean; default: a line on each"
    )
    explain.set_defaults(command=_explain)
    return parser


_CLEAN: Final = (
    """
A dry run unless --apply is given. It looks twice, at least --confirm apart, and says of each address that docker does
not know whether it would be released, or which guard refuses and which setting would lift that. A release happens under
host-local's own locks, and the journal can restore it.
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
  1  some address could not be released (its lock was busy, or the system said no); it is where it was
  2  wrong usage or configuration: nothing was touched; or the output could not be written (see nodeleak journal)
  3  a source was unread, so nothing was touched

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
  0  restored, or it would be    1  it cannot be: the message says why; nothing was touched
  2  wrong usage or configuration, or the journal has no such entry
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
) -> argparse.ArgumentParser:
    """Add a command. `more`: what its help says before the options, and after them."""
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

    config, only, most = _asked(given)
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


def _asked(given: argparse.Namespace) -> tuple[Config, frozenset[str] | None, int | None]:
    """Read what `clean` was asked for; raises UsageError with everything that is wrong."""
    mistakes: list[str] = []
    config = _gather(mistakes, lambda: _config("clean", given))
    only = _gather(mistakes, lambda: _addresses(given.ip))
    most = _gather(mistakes, lambda: _at_most(given.max))
    if config is None or mistakes:
        raise UsageError("\n".join(mistakes))
    return config, only, most


def _gather(mistakes: list[str], read: Callable[[], T]) -> T | None:
    try:
        return read()
    except UsageError as error:
        mistakes.append(str(error))
        return None


def _addresses(given: list[str] | None) -> frozenset[str] | None:
    if given is None:
        return None
    listed = [part.strip() for one in given for part in one.split(",")]
    if mistakes := [part for part in listed if not _canonical(part)]:
        raise UsageError("\n".join(f"--ip: {part!r}: say an IP address, such as 10.244.1.9" for part in mistakes))
    return frozenset(map(_canonical, listed))


def _canonical(text: str) -> str:
    """Write an address as host-local does; empty where it is none."""
    from ipaddress import ip_address

    try:
        return str(ip_address(text))
    except ValueError:
        return ""


def _at_most(given: str | None) -> int | None:
    try:
        return None if given is None else positive(given)
    except ValueError as error:
        raise UsageError(f"--max: {given!r}: {error}") from error


def _restore(given: argparse.Namespace) -> int:
    from agent import wiring
    from agent.exporters.clean_table import restoration

    config = _config("restore", given)
    journal = wiring.read_journal(config)
    entry = _entry(journal, given)
    done = wiring.restore(config, entry) if given.apply else wiring.try_restore(config, entry)
    print(restoration(done, journal, applied=given.apply), end="")
    return DONE if done.done else FAILED


def _entry(journal: "Journal", given: argparse.Namespace) -> "Entry":
    """Find the entry that was asked for; an address, or `--last`, means the last release that was not restored yet."""
    if given.last:
        found = [entry for entry in journal.entries if entry.released]
        missing = "nothing was released that was not restored"
    else:
        ip = _canonical(given.entry)
        named = [entry for entry in journal.entries if entry.name == given.entry]
        found = named or [entry for entry in journal.entries if entry.released and ip in entry.ips]
        missing = f"the journal has no entry {given.entry!r}, and no release of such an address"
    if not found:
        damage = f" ({len(journal.damage)} damaged lines could not be read)" if journal.damage else ""
        raise UsageError(f"{missing}{damage}; `nodeleak journal` lists what there is")
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
    from agent.model.release import Reason, Verdict

    findings = {detector.NAME: inspect.getdoc(detector) or "" for detector in DETECTORS}
    reasons, verdicts = _members(Reason), _members(Verdict)
    pages = findings | reasons | verdicts
    if given.word is None:
        for heading, some in (
            ("", findings),
            ("\nWhy `nodeleak clean` refuses an address:", reasons),
            ("\nWhat it says of an address:", verdicts),
        ):
            print(*filter(None, [heading]), *_first_lines(some), sep="\n")
        print("\n`nodeleak explain DETECTOR` says what it means and what to do.")
    elif given.word in pages:
        print(f"{given.word}\n\n{pages[given.word]}")
        if given.word in reasons:
            print("\n`nodeleak clean` says why it holds for an address, and which setting would lift it, if one may.")
    else:
        raise UsageError(f"there is nothing called {given.word!r} to explain; there are: {', '.join(pages)}")
    return DONE


def _first_lines(pages: Mapping[str, str]) -> Iterator[str]:
    return (f"{name}\n  {page.splitlines()[0]}" for name, page in pages.items())


def _members(kind: "type[StrEnum]") -> dict[str, str]:
    """Read what is written below each member of an enum: Python itself does not keep it."""
    import ast
    import inspect
    from itertools import pairwise

    (tree,) = ast.parse(inspect.getsource(kind)).body
    pages = {}
    for member, text in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
        match member, text:
            case ast.Assign(value=ast.Constant(value=str(name))), ast.Expr(value=ast.Constant(value=str(page))):
                pages[name] = page
            case _:
                pass
    return pages


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
