"""scan, record and run: the commands that look."""

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from agent.cli.exit_codes import DONE, FOUND, UNAVAILABLE
from agent.cli.options import config_of
from agent.cli.progress import progress
from agent.config import Config, UsageError, duration, option, settings_of

if TYPE_CHECKING:
    from agent.model.recording import Recording


def scan(given: argparse.Namespace) -> int:
    from agent.checks import engine

    if given.map and given.output == "json":
        raise UsageError("--map: a map is for people, and -o json is for programs: leave one of them out")
    recording = look(config_of("scan", given)) if given.recording is None else _recorded(given)
    report = engine.replay(recording.snapshots, grace=recording.grace, confirm_after=recording.confirm_after)
    if given.output == "json":
        import json

        from agent.exporters.json.scan import document

        json.dump(document(report), sys.stdout, indent=1)
        print()
    elif given.map:
        from agent.exporters.text.map import map_table

        print(map_table(report, color=_has_colours(), unicode=_knows_more_than_ascii()), end="")
    else:
        from agent.exporters.text.scan import table

        print(table(report), end="")
    if not report.complete:
        return UNAVAILABLE
    return FOUND if given.exit_code and report.problems else DONE


def _has_colours() -> bool:
    # https://no-color.org: set to anything but the empty string.
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _knows_more_than_ascii() -> bool:
    return (sys.stdout.encoding or "").lower().startswith("utf")


def record(given: argparse.Namespace) -> int:
    from agent.model import recording

    text = recording.dumps(look(config_of("record", given)))
    if given.anonymous:
        import secrets

        text = recording.anonymous(text, secrets.token_hex())
    print(text)
    return DONE


def run(given: argparse.Namespace) -> int:
    from agent.app import daemon as running

    return running.run_daemon(config_of("run", given))


def look(config: Config) -> "Recording":
    """Look at the node: twice where there is something to confirm."""
    from datetime import timedelta

    from agent.app import loop
    from agent.app import sources as looking
    from agent.model.recording import Recording

    sources = looking.for_command(config).snapshot
    with progress("looking at the node, twice if there is something to confirm"):
        snapshots = loop.take_snapshots(sources, looking.node_name(config), config.grace, config.confirm_after)
    return Recording(grace=config.grace, confirm_after=timedelta(0), snapshots=snapshots)


def _recorded(given: argparse.Namespace) -> "Recording":
    from agent.model.recording import Damaged, loads

    name = given.recording
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text()
        recording = loads(text)
    except (OSError, UnicodeDecodeError, Damaged) as error:
        raise UsageError(f"{name}: {getattr(error, 'strerror', None) or error}") from error
    without_effect = [
        option(field) for field in settings_of("scan") if field != "grace" and getattr(given, field) is not None
    ]
    if without_effect:
        raise UsageError(
            f"{', '.join(without_effect)}: a recording was read where it was taken; only --grace has effect"
        )
    if given.grace is None:
        return recording
    try:
        return replace(recording, grace=duration(given.grace))
    except ValueError as error:
        raise UsageError(f"--grace: {given.grace!r}: {error}") from error
