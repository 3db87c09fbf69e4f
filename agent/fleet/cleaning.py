"""`kubectl nodeleak clean --apply`: ask once, clean wave by wave, stop at the first unexpected result."""

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event

from agent.cli.exit_codes import DONE, FAILED, INTERRUPTED, UNAVAILABLE
from agent.cli.output import write, write_json
from agent.config import UsageError
from agent.fleet.answers import Answer, merged
from agent.fleet.inventory import Agent, natural
from agent.fleet.options import cluster_options
from agent.fleet.session import Session, agents_of, note
from agent.fleet.waves import CleanReport, State, conclusion, waves
from agent.model.text import count_of, escape


def apply_on_nodes(arguments: argparse.Namespace) -> int:
    session = Session(arguments)
    found = sorted(session.targets(arguments.nodes), key=lambda one: natural(one.node))
    report = CleanReport(one.node for one in found)
    for target in found:
        if target.unreachable:
            report.leave_out(target.node, target.unreachable)
            note(f"{target.node} is skipped: {target.unreachable}")
    planned = waves(report.named(State.PENDING), arguments.max_nodes)
    if planned:
        _confirm(arguments, session.context(), planned)
    else:
        note("no node to clean")
    with _stopping() as stop:
        agents = {agent.node: agent for agent in agents_of(found)}
        _clean(arguments, session, report, [[agents[node] for node in wave] for wave in planned], stop)
    if arguments.output == "json":
        write_json(merged("clean", [dict(one.result) for one in report if one.result]))
    if planned:
        _conclude(arguments, report)
    return _exit_code(report, interrupted=stop.is_set())


def _clean(
    arguments: argparse.Namespace,
    session: Session,
    report: CleanReport,
    planned: Sequence[Sequence[Agent]],
    stop: Event,
) -> None:
    """Clean wave by wave until all are done, one had a surprise, or the operator interrupts."""

    def arrived(answer: Answer) -> None:
        result = report.answered(answer)
        if arguments.output != "json":
            mark = "" if result.state is State.DONE else "UNEXPECTED: "
            write(f"{escape(f'{result.node}: {mark}{result.text}')}\n")

    command = ("clean", "--apply", *arguments.rest, "-o", "json")
    for number, wave in enumerate(planned):
        if report.named(State.SURPRISE) or stop.wait(arguments.pause.total_seconds() if number else 0):
            return
        session.ask(wave, command, arrived)


def _confirm(arguments: argparse.Namespace, context: str, planned: Sequence[Sequence[str]]) -> None:
    nodes = [node for wave in planned for node in wave]
    shown = ", ".join(nodes[:5]) + (", …" if len(nodes) > 5 else "")  # noqa: PLR2004 (fits a line)
    where = f"{count_of(len(nodes), 'node')}{f' of {context}' if context else ''} ({shown})"
    what = f"release leaked addresses on {where}, in {count_of(len(planned), 'wave')}"
    if arguments.yes:
        note(what)
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
            os.write(sys.stderr.fileno(), b"nodeleak: interrupted: waiting for the nodes of this wave\n")

    before = {one: signal.signal(one, interrupted) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _conclude(arguments: argparse.Namespace, report: CleanReport) -> None:
    """Print what was done and what is left."""
    note(conclusion(report))
    if unexpected := report.named(State.SURPRISE):
        note(f"unexpected results on {', '.join(unexpected)}: inspect them first")
    if pending := report.named(State.PENDING):
        rest = ["--", *arguments.rest] if arguments.rest else []
        again = ["clean", "--apply", *pending, *cluster_options(arguments), *rest]
        note(f"to go on: kubectl nodeleak {shlex.join(again)}")


def _exit_code(report: CleanReport, *, interrupted: bool) -> int:
    if report.named(State.SURPRISE):
        return FAILED
    if report.named(State.PENDING):
        return INTERRUPTED if interrupted else FAILED
    return UNAVAILABLE if report.named(State.LEFT_OUT) else DONE
