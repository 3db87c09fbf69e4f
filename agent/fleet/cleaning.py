"""`kubectl nodeleak clean --apply`: ask once, clean wave by wave, stop at the first unexpected result."""

import argparse
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import ceil
from threading import Event
from typing import Any, Final, NamedTuple

from agent.cli.output import DONE, FAILED, INTERRUPTED, UNAVAILABLE, as_json, warn, write
from agent.config import UsageError
from agent.fleet.nodes import Answer, Target, merged, natural
from agent.fleet.reading import run_on_nodes
from agent.fleet.session import Session, cluster_options, reachable
from agent.model.text import count_of, escape, format_number, truncate

CLEAN_SCHEMA: Final = "nodeleak.clean/v1"


class Result(NamedTuple):
    text: str
    entry: Mapping[str, Any]
    """Its part of a merged document."""
    released: int = 0
    unexpected: bool = False
    """Anything but released, refused, and nothing to release."""


def clean_nodes(arguments: argparse.Namespace) -> int:
    return _apply(arguments) if arguments.apply else run_on_nodes(arguments)


def _apply(arguments: argparse.Namespace) -> int:
    session = Session(arguments)
    found = session.targets(arguments.nodes)
    skipped = {target.node: target.unreachable for target in found if target.unreachable}
    agents, results = reachable(found), dict[str, Result]()
    _confirm(arguments, session, agents, skipped)
    with _stopping() as stop:
        _clean(arguments, session, results, agents, stop)
    pending = [agent.node for agent in agents if agent.node not in results]
    if arguments.output == "json":
        _write_document(
            results, skipped | dict.fromkeys(pending, "not asked: cleaning stopped before it")
        )
    unexpected = _conclude(arguments, results, skipped, pending)
    # A node that is away does not hide an unexpected result: the summary and the document name it anyway.
    if unexpected or pending:
        return FAILED if unexpected else INTERRUPTED
    return UNAVAILABLE if skipped else DONE


def _confirm(
    arguments: argparse.Namespace,
    session: Session,
    agents: Sequence[Target],
    skipped: Mapping[str, str],
) -> None:
    warn(*(f"{node} is skipped: {why}" for node, why in skipped.items()))
    if not agents:
        return
    context, waves = session.context(), ceil(len(agents) / arguments.max_nodes)
    shown = ", ".join(agent.node for agent in agents[:5]) + (", …" if len(agents) > 5 else "")  # noqa: PLR2004 (fits)
    where = f"{count_of(len(agents), 'node')}{f' of {context}' if context else ''} ({shown})"
    what = f"release leaked addresses on {where}, in {count_of(waves, 'wave')}"
    if arguments.yes:
        warn(what)
        return
    if not sys.stdin.isatty():
        raise UsageError("clean --apply asks before it begins, and there is no terminal: add --yes")
    print(f"{what}? Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() != "yes":
        raise UsageError("not confirmed: nothing was released")


@contextmanager
def _stopping() -> Iterator[Event]:
    """Give an event that Ctrl-C and SIGTERM set: the wave that runs then still ends."""
    stop = Event()

    def interrupted(_signal: int, _frame: object) -> None:
        stop.set()
        # Not with print: the signal may have interrupted one.
        with suppress(OSError):  # nobody reads it
            os.write(
                sys.stderr.fileno(), b"nodeleak: interrupted: waiting for the nodes of this wave\n"
            )

    before = {
        number: signal.signal(number, interrupted) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _clean(
    arguments: argparse.Namespace,
    session: Session,
    results: dict[str, Result],
    agents: Sequence[Target],
    stop: Event,
) -> None:
    """Clean wave by wave until all are done, one had an unexpected result, or the operator interrupts."""

    def arrived(answer: Answer) -> None:
        result = results[answer.node] = judge(answer)
        if arguments.output != "json":
            mark = "UNEXPECTED: " if result.unexpected else ""
            write(f"{escape(f'{answer.node}: {mark}{result.text}')}\n")

    for start in range(0, len(agents), arguments.max_nodes):
        wave = agents[start : start + arguments.max_nodes]
        if stop.wait(arguments.pause.total_seconds() if start else 0):
            return
        session.ask(wave, ("clean", "--apply", *arguments.rest, "-o", "json"), arrived)
        if any(results[agent.node].unexpected for agent in wave):
            return


def _write_document(results: Mapping[str, Result], without_result: Mapping[str, str]) -> None:
    """`without_result`: why each of the other nodes has none."""
    entries = [result.entry for result in results.values()]
    entries += [Answer(node, None, error=why).entry() for node, why in without_result.items()]
    write(as_json(merged("clean", sorted(entries, key=lambda entry: natural(entry["node"])))))


def _conclude(
    arguments: argparse.Namespace,
    results: Mapping[str, Result],
    skipped: Collection[str],
    pending: Sequence[str],
) -> list[str]:
    """Print what was done and what is left; return the nodes with an unexpected result."""
    unexpected = sorted(
        (node for node, result in results.items() if result.unexpected), key=natural
    )
    released = count_of(sum(result.released for result in results.values()), "address", "addresses")
    done = count_of(len(results) - len(unexpected), "node")
    others = {
        "unexpected": unexpected,
        f"skipped ({', '.join(skipped)})": skipped,
        "not asked": pending,
    }
    counts = [f"{format_number(len(names))} {what}" for what, names in others.items() if names]
    warn(", ".join([f"{released} released", f"{done} done", *counts]))
    if unexpected:
        warn(f"unexpected results on {', '.join(unexpected)}: inspect them first")
    if pending:
        rest = ["--", *arguments.rest] if arguments.rest else []
        again = ["clean", "--apply", *pending, *cluster_options(arguments), *rest]
        warn(f"to go on: kubectl nodeleak {shlex.join(again)}")
    return unexpected


def judge(answer: Answer) -> Result:
    """Describe a result on one line. It is expected if every address was released or refused, or there was none."""
    entry, document, released = answer.entry(), answer.document, 0
    if answer.exit_code is None:
        why = f"{answer.reason}; it is not known what it released: kubectl nodeleak journal {answer.node}"
    elif document is None:
        why = answer.reason
    elif (schema := document.get("schema")) != CLEAN_SCHEMA:
        why = f"answered with schema {truncate(schema)}, and this command reads {CLEAN_SCHEMA}: use one version"
    else:
        try:
            released = sum(address["verdict"] == "released" for address in document["addresses"])
            if not (why := _unexpected(answer.exit_code, document)):
                return Result(_outcome(document, released), entry, released)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            why = f"cannot read its {CLEAN_SCHEMA}: {truncate(repr(error))}"
    return Result(why, entry, released, unexpected=True)


def _unexpected(exit_code: int, document: Mapping[str, Any]) -> str:
    if document["halted"]:
        return f"cleanup halted: {document['halted']}"
    if document["unavailable"]:
        return ", ".join(
            f"{missing['source']} unavailable: {missing['why']}"
            for missing in document["unavailable"]
        )
    for address in document["addresses"]:
        if address["verdict"] not in {"released", "refused"}:
            why = address["why"] or "no reason given"
            return f"{address['ip']} in {address['network']}: {address['verdict']}: {why}"
    if document["applied"] is not True:
        return "it was a dry run"
    return f"exit code {exit_code}" if exit_code else ""


def _outcome(document: Mapping[str, Any], released: int) -> str:
    addresses = document["addresses"]
    if not addresses:
        return "nothing to release"
    reasons = Counter(address["reason"] for address in addresses if address["verdict"] == "refused")
    refused = ", ".join(f"{reason} ({format_number(n)})" for reason, n in sorted(reasons.items()))
    free = "; ".join(
        f"free addresses in {network['network']}: {format_number(network['free_before'])} before, "
        f"{format_number(network['free_after'])} after"
        for network in document["networks"]
    )
    return "; ".join(
        filter(
            None, [f"{format_number(released)} released", refused and f"refused: {refused}", free]
        )
    )
