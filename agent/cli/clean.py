"""clean, restore and journal: the commands that give addresses back, take that back, and tell of it."""

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from agent.cli.exit_codes import DONE, FAILED, UNAVAILABLE
from agent.cli.options import config_of
from agent.cli.progress import progress, say_no_more
from agent.config import Config, UsageError, positive

if TYPE_CHECKING:
    from agent.cleanup.journal import Entry, Journal
    from agent.model.release import Cleaning

T = TypeVar("T")


def clean(given: argparse.Namespace) -> int:
    from agent.app.cleaning import clean_once
    from agent.app.sources import for_command

    config, only, most = _asked(given)
    mode = "auto" if given.apply else "dry-run"
    sources = for_command(config)
    with ExitStack() as until_told:
        with progress("looking at the node, twice if there is something to release"):
            cleaning = clean_once(config, sources, until_told, only=only, most=most, mode=mode)
        if given.output == "json":
            _write(_json(cleaning))
        else:
            from agent.exporters.text.clean import table

            _write(table(cleaning))
    if cleaning.unavailable:
        return UNAVAILABLE
    return FAILED if cleaning.failed else DONE


def _json(cleaning: "Cleaning") -> str:
    import json

    from agent.exporters.json.clean import document

    return f"{json.dumps(document(cleaning), indent=1)}\n"


def _write(text: str) -> None:
    """Write it, and go on where nobody reads: what was done was done, and the exit code says what."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        say_no_more()


def restore(given: argparse.Namespace) -> int:
    from agent.app import cleaning
    from agent.exporters.text.clean import restoration

    config = config_of("restore", given)
    journal = cleaning.read_journal(config)
    entry = _entry(journal, given)
    done = cleaning.restore(config, entry) if given.apply else cleaning.try_restore(config, entry)
    _write(restoration(done, journal, applied=given.apply))
    return DONE if done.done else FAILED


def journal(given: argparse.Namespace) -> int:
    from agent.app.cleaning import read_journal
    from agent.exporters.json import clean as clean_json
    from agent.exporters.text import clean as clean_text

    journal = read_journal(config_of("journal", given))
    if given.output == "json":
        import json

        json.dump(clean_json.journal(journal), sys.stdout, indent=1)
        print()
    else:
        print(clean_text.journal(journal), end="")
    return DONE


def _asked(given: argparse.Namespace) -> tuple[Config, frozenset[str] | None, int | None]:
    """Read what `clean` was asked for; raises UsageError with everything that is wrong."""
    mistakes: list[str] = []
    config = _gather(mistakes, lambda: config_of("clean", given))
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
