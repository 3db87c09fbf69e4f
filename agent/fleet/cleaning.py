"""`kubectl nodeleak clean --apply`: ask once, clean wave by wave, stop at the first surprise."""

import argparse
import os
import signal
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import ceil
from threading import Event
from typing import Final, NamedTuple

from agent.cli.output import DOCUMENTS, DONE, FAILED, INTERRUPTED, UNAVAILABLE, warn, write
from agent.config import UsageError
from agent.exporters.json import Document
from agent.fleet.nodes import Answer, Target, merged, natural_order
from agent.fleet.session import (
    Session,
    command_line,
    reachable,
    run_on_nodes,
)
from agent.model.text import count_of, escape, format_number, truncate

CLEAN_SCHEMA: Final = "nodeleak.clean/v1"
_MAX_SHOWN: Final = 5
"""Names of nodes in the question."""

_INTERRUPTED: Final = b"nodeleak: interrupted: waiting for the nodes of this wave\n"
_STEP: Final = 0.1
"""Seconds, after which a pause looks whether it was interrupted."""


class Result(NamedTuple):
    """What one node made of the command."""

    text: str
    entry: Document
    """Its part of a merged document."""
    released: int = 0
    unexpected: bool = False
    """Anything but released, refused, and nothing to release."""


def clean_nodes(arguments: argparse.Namespace) -> int:
    """Clean the chosen nodes, or print what would be released; return the exit code."""
    return _apply(arguments) if arguments.apply else run_on_nodes(arguments)


def _apply(arguments: argparse.Namespace) -> int:
    """Ask, clean, and print what was done, also after an interruption. Raises UsageError."""
    session = Session(arguments)
    chosen = session.targets()
    skipped = {target.node: target.unreachable for target in chosen if target.unreachable}
    targets = reachable(chosen)
    _confirm(arguments, session, targets, skipped)

    results: dict[str, Result] = {}
    with _stopping() as stop:
        _clean(arguments, session, results, targets, stop)

    pending = [target.node for target in targets if target.node not in results]
    reasons = skipped | dict.fromkeys(pending, "not asked: cleaning stopped before it")
    entries = [result.entry for result in results.values()]
    entries += [Answer(node, None, error=reason).entry() for node, reason in reasons.items()]
    if as_text := DOCUMENTS.get(arguments.output):
        entries.sort(key=lambda entry: natural_order(entry["node"]))
        write(as_text(merged("clean", entries)))

    unexpected = _conclude(arguments, results, skipped, pending)
    # A node that is away does not hide an unexpected result: summary and document name it anyway.
    if unexpected or pending:
        return FAILED if unexpected else INTERRUPTED
    return UNAVAILABLE if skipped else DONE


def _confirm(
    arguments: argparse.Namespace,
    session: Session,
    targets: Sequence[Target],
    skipped: Mapping[str, str],
) -> None:
    """Ask the operator. Raises UsageError."""
    warn(*(f"{node} is skipped: {reason}" for node, reason in skipped.items()))
    if not targets:
        return

    shown = [target.node for target in targets[:_MAX_SHOWN]]
    if len(targets) > _MAX_SHOWN:
        shown.append("…")
    context = session.context()
    where = f" of {context}" if context else ""
    nodes = f"{count_of(len(targets), 'node')}{where} ({', '.join(shown)})"
    waves = count_of(ceil(len(targets) / arguments.max_nodes), "wave")
    what = f"release leaked addresses on {nodes}, in {waves}"

    if arguments.yes:
        warn(what)
        return
    if not sys.stdin.isatty():
        raise UsageError("clean --apply asks before it begins, and there is no terminal: add --yes")
    print(f"{what}? Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() != "yes":
        raise UsageError("not confirmed: nothing was released")


class _Stop:
    """What a signal handler may set, in place of `threading.Event`.

    A handler that interrupts `Event.wait` while that has its lock would wait for the lock for ever.
    """

    is_set = False

    def wait(self, seconds: float) -> bool:
        """Return whether it is set within that time.

        Python runs a handler when a call returns, so no call is long.
        """
        pause = Event()  # which nobody sets
        left = seconds
        while not self.is_set and left > 0:
            pause.wait(min(left, _STEP))
            left -= _STEP
        return self.is_set


@contextmanager
def _stopping() -> Iterator[_Stop]:
    """Return an event that Ctrl-C and SIGTERM set: the wave that runs then still ends."""
    stop = _Stop()

    def interrupted(_signal: int, _frame: object) -> None:
        stop.is_set = True
        # Not with print: the signal may have interrupted one.
        with suppress(OSError):  # nobody reads it
            os.write(sys.stderr.fileno(), _INTERRUPTED)

    handlers = {
        number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _clean(
    arguments: argparse.Namespace,
    session: Session,
    results: dict[str, Result],
    targets: Sequence[Target],
    stop: _Stop,
) -> None:
    """Clean wave by wave until all are done, one result is unexpected, or the operator interrupts.

    Adds to `results`.
    """

    def finished(answer: Answer) -> None:
        result = results[answer.node] = judge(answer)
        if arguments.output not in DOCUMENTS:
            mark = "UNEXPECTED: " if result.unexpected else ""
            write(f"{escape(f'{answer.node}: {mark}{result.text}')}\n")

    command = ("clean", "--apply", *arguments.rest, "-o", "json")
    for start in range(0, len(targets), arguments.max_nodes):
        wave = targets[start : start + arguments.max_nodes]
        if stop.wait(arguments.pause.total_seconds() if start else 0):
            return
        session.run(wave, command, finished)
        if any(results[target.node].unexpected for target in wave):
            return


def _conclude(
    arguments: argparse.Namespace,
    results: Mapping[str, Result],
    skipped: Collection[str],
    pending: Sequence[str],
) -> list[str]:
    """Print what was done and what is left; return the nodes with an unexpected result."""
    surprises = (node for node, result in results.items() if result.unexpected)
    unexpected = sorted(surprises, key=natural_order)
    released = sum(result.released for result in results.values())
    counts = [
        f"{count_of(released, 'address', 'addresses')} released",
        f"{count_of(len(results) - len(unexpected), 'node')} done",
    ]

    if unexpected:
        counts.append(f"{format_number(len(unexpected))} unexpected")
    if skipped:
        counts.append(f"{format_number(len(skipped))} skipped ({', '.join(skipped)})")
    if pending:
        counts.append(f"{format_number(len(pending))} not asked")
    warn(", ".join(counts))

    if unexpected:
        warn(f"unexpected results on {', '.join(unexpected)}: inspect them first")
    if pending:
        warn(f"to go on: {command_line(arguments, 'clean', '--apply', *pending)}")
    return unexpected


def judge(answer: Answer) -> Result:
    """Describe an answer on one line.

    It is expected if every address was released or refused, or there was none.
    """
    document = answer.document
    released = 0

    surprise: str | None
    if answer.exit_code is None:
        surprise = (
            f"{answer.reason}; it is not known what it released: "
            f"kubectl nodeleak journal {answer.node}"
        )
    elif document is None:
        surprise = answer.reason
    elif (schema := document.get("schema")) != CLEAN_SCHEMA:
        surprise = (
            f"answered with schema {truncate(schema)}, and this command reads {CLEAN_SCHEMA}: "
            "use one version"
        )
    else:
        try:
            released = sum(address["verdict"] == "released" for address in document["addresses"])
            surprise = _surprise(answer.exit_code, document)
            if surprise is None:
                return Result(_summary(document, released), answer.entry(), released)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            surprise = f"cannot read its {CLEAN_SCHEMA}: {truncate(repr(error))}"
    return Result(surprise, answer.entry(), released, unexpected=True)


def _surprise(exit_code: int, document: Document) -> str | None:
    """Return what is unexpected in the result of a node, or None."""
    if document["halted"]:
        return f"cleanup halted: {document['halted']}"
    if unavailable := document["unavailable"]:
        return ", ".join(f"{each['source']} unavailable: {each['why']}" for each in unavailable)

    for address in document["addresses"]:
        if address["verdict"] not in {"released", "refused"}:
            reason = address["why"] or "no reason given"
            return f"{address['ip']} in {address['network']}: {address['verdict']}: {reason}"
    if document["applied"] is not True:
        return "it was a dry run"
    return f"exit code {exit_code}" if exit_code else None


def _summary(document: Document, released: int) -> str:
    """Return on one line what a node released and refused, and how many addresses are free."""
    addresses = document["addresses"]
    if not addresses:
        return "nothing to release"
    parts = [f"{format_number(released)} released"]
    reasons = Counter(address["reason"] for address in addresses if address["verdict"] == "refused")
    if reasons:
        counts = (f"{reason} ({format_number(n)})" for reason, n in sorted(reasons.items()))
        parts.append(f"refused: {', '.join(counts)}")

    for network in document["networks"]:
        before = format_number(network["free_before"])
        after = format_number(network["free_after"])
        parts.append(f"free addresses in {network['network']}: {before} before, {after} after")
    return "; ".join(parts)
