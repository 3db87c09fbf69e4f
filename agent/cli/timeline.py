"""timeline: the command that tells what happened."""

import argparse
import sys
from typing import TYPE_CHECKING

from agent.cli.exit_codes import DONE, UNAVAILABLE
from agent.cli.options import config_of
from agent.cli.scan import look
from agent.config import UsageError, duration

if TYPE_CHECKING:
    from datetime import timedelta


def timeline(given: argparse.Namespace) -> int:
    from agent.app import cleaning
    from agent.checks import engine
    from agent.exporters import timeline as merging

    since = _since(given.since)
    # It looks as a scan does, so a scan's settings are its own.
    config = config_of("scan", given)
    recording = look(config)
    report = engine.replay(recording.snapshots, grace=recording.grace, confirm_after=recording.confirm_after)
    told = merging.build_timeline(report, *cleaning.releases(config))
    if since is not None:
        told = told.last(since)
    if given.output == "json":
        import json

        from agent.exporters.json.timeline import document

        json.dump(document(told), sys.stdout, indent=1)
        print()
    else:
        from agent.exporters.text.timeline import table

        print(table(told, given.since or ""), end="")
    return DONE if told.complete else UNAVAILABLE


def _since(given: str | None) -> "timedelta | None":
    try:
        return None if given is None else duration(given)
    except ValueError as error:
        raise UsageError(f"--since: {given!r}: {error}") from error
