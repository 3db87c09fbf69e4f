"""nodeleak restore: undo a release."""

import argparse
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from agent.app import cleaning
from agent.cleanup.journal import Entry, Journal
from agent.cli.output import DONE, FAILED, write
from agent.cli.parser import add_apply, config_of
from agent.config import UsageError
from agent.exporters.text.clean import restoration_text
from agent.model.release import Verdict
from agent.model.text import count_of, quote

HELP: Final = """\
It puts back the files of a release, byte for byte. It changes nothing without --apply. It refuses
if the address has been reserved again, or if the container has another address now.

examples:
  nodeleak restore 10.244.1.9             check whether it can be undone
  nodeleak restore 10.244.1.9 --apply     undo it
  nodeleak restore --last --apply         undo the last release

exit codes:
  0  restored, or with a dry run: it can be restored
  2  wrong usage or configuration, or the journal has no such release
  4  it cannot be, or was not, restored; the message says why
"""

_LIST: Final = "run 'nodeleak journal' for a list of releases"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "nodeleak restore (ADDRESS | ENTRY | --last) [options]"
    which = parser.add_mutually_exclusive_group()
    text = "an address (its last release), or an entry of the journal"
    which.add_argument("entry", nargs="?", metavar="ADDRESS|ENTRY", help=text)
    which.add_argument("--last", action="store_true", help="the last release that was not restored")
    add_apply(parser, "put it back")


def execute(arguments: argparse.Namespace) -> int:
    if arguments.entry is None and not arguments.last:
        raise UsageError(
            "no release given: expected an address, an entry of the journal, or --last", _LIST
        )

    config = config_of(arguments)
    journal = cleaning.read_journal(config)
    name = arguments.entry
    state_dir = config.state_dir
    entry = _last(journal, state_dir) if name is None else _find(journal, name, state_dir)

    dry_run = not arguments.apply
    restoration = cleaning.restore_entry(config, entry, journal, dry_run=dry_run)
    following = None
    if arguments.last and arguments.apply and restoration.failure is None:
        following = _next_last(journal, entry)

    write(restoration_text(restoration, journal, dry_run=dry_run, following=following))
    return DONE if restoration.failure is None else FAILED


def _last(journal: Journal, state_dir: Path) -> Entry:
    """Return what `--last` means. Raises UsageError."""
    released = [entry for entry in journal.entries if _restorable(entry)]
    if not released:
        raise _not_found(f"the journal in {state_dir} has no release that can be restored", journal)
    last = released[-1]
    if last.verdict is Verdict.IN_DOUBT:
        raise UsageError(last.why, f"run 'nodeleak restore {last.name}' to restore it nevertheless")
    return last


def _next_last(journal: Journal, entry: Entry) -> Entry | None:
    """Return what `--last` means once this entry is restored; None: nothing."""
    others = [each for each in journal.entries if _restorable(each) and each.name != entry.name]
    return others[-1] if others else None


def _find(journal: Journal, name: str, state_dir: Path) -> Entry:
    """Find an entry of the journal; an address means its last release that was not restored."""
    newest_first = journal.entries[::-1]
    ip = name
    with suppress(ValueError):
        ip = str(ip_address(name))  # as host-local writes it

    for entry in newest_first:
        if entry.name == name or (ip in entry.ips and _restorable(entry)):
            return entry
    for entry in newest_first:
        if ip in entry.ips and entry.restored:
            raise _not_found(f"{ip} is already restored, by entry {entry.name}", journal)
    raise _not_found(f"the journal in {state_dir} has no release of {quote(name)}", journal)


def _restorable(entry: Entry) -> bool:
    """An unfinished entry counts: otherwise, an older one would be restored by mistake."""
    return entry.released or entry.unfinished


def _not_found(text: str, journal: Journal) -> UsageError:
    if journal.damage:
        damaged = count_of(len(journal.damage), "damaged entry", "damaged entries")
        text += f" ({damaged} skipped)"
    return UsageError(text, _LIST)
