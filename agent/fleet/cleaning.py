"""`kubectl nodeleak clean --apply`: ask once, clean wave by wave, stop at the first unexpected result."""

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event

from agent.cli.exit_codes import DONE, FAILED, INTERRUPTED, OUTPUT, UNAVAILABLE
from agent.cli.output import write, write_json
from agent.config import UsageError, quote
from agent.fleet.answers import Answer, merged
from agent.fleet.inventory import Agent, Target, natural
from agent.fleet.options import cluster_options
from agent.fleet.report_file import create, locked, read
from agent.fleet.session import Session, agents_of, note
from agent.fleet.waves import CleanReport, NodeResult, State, conclusion, waves
from agent.model.text import count_of, escape
from agent.state.atomic_file import StateFile


def apply_on_nodes(arguments: argparse.Namespace) -> int:
    with ExitStack() as until_done:
        return _apply(arguments, Session(arguments), until_done)


def _apply(arguments: argparse.Namespace, session: Session, until_done: ExitStack) -> int:
    if arguments.resume:
        until_done.enter_context(locked(Path(arguments.resume)))
    path, report, found = _begin(arguments, session)
    _leave_out(report, found)
    planned = waves(report.named(State.PENDING), arguments.max_nodes)
    if not planned:
        note("no node to clean")
        _print_results(arguments, report)
        return _exit_code(report, interrupted=False)
    _confirm(arguments, report.context, planned)
    # A new file is made only now, so that an answer of "no" leaves none.
    if path is None:
        path = create(arguments.report)
        until_done.enter_context(locked(path))
    again = ["clean", "--apply", "--continue", str(path), *cluster_options(arguments)]
    with _stopping() as stop:
        run = _Run(path, report, {agent.node: agent for agent in agents_of(found)}, stop)
        run.quiet = arguments.output == "json"
        written = _clean(arguments, session, run, planned)
        _print_results(arguments, report)
        code = _conclude(path, report, f"kubectl nodeleak {shlex.join(again)}", interrupted=stop.is_set())
        return code if written else OUTPUT


def _print_results(arguments: argparse.Namespace, report: CleanReport) -> None:
    """Print the one document of `-o json`. Text was printed as it arrived."""
    if arguments.output == "json":
        write_json(merged("clean", [dict(one.result) for one in report if one.result]))


def _leave_out(report: CleanReport, found: Sequence[Target]) -> None:
    """Leave out nodes that cannot be asked, or that are gone since the report was begun."""
    why = dict.fromkeys(report.named(State.PENDING), "this node does not exist any more")
    why |= {target.node: target.unreachable for target in found}
    for node, reason in why.items():
        if reason:
            report.leave_out(node, reason)
            note(f"{node} is left out: {reason}")


def _begin(arguments: argparse.Namespace, session: Session) -> tuple[Path | None, CleanReport, list[Target]]:
    """Return the report, its file if there is one already, and the nodes that are still to be cleaned."""
    if not arguments.resume:
        found = sorted(session.targets(arguments.nodes), key=lambda one: natural(one.node))
        return None, CleanReport(session.context(), arguments.rest, [NodeResult(one.node) for one in found]), found
    path = Path(arguments.resume)
    report = read(path)
    if (context := session.context()) != report.context:
        remedy = f"add --context={report.context}" if report.context else "use the same kubeconfig"
        raise UsageError(
            f"--continue: {path} is of the context {quote(report.context)}, not {quote(context)}: {remedy}"
        )
    report.not_asked(report.named(State.LEFT_OUT))  # the agent may be there by now
    pending = report.named(State.PENDING)
    return path, report, session.targets(pending, gone=True) if pending else []


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


class _Run:
    """A cleanup that has begun."""

    def __init__(self, path: Path, report: CleanReport, agents: dict[str, Agent], stop: Event) -> None:
        self.report, self.agents, self.stop = report, agents, stop
        self.quiet = False
        """Whether no result is printed as it arrives."""
        self._file = StateFile(path.resolve(), lambda why: note(f"cannot write the report: {why}"))

    def save(self) -> bool:
        return self._file.write(f"{json.dumps(self.report.document(), indent=1)}\n".encode())

    def arrived(self, answer: Answer) -> None:
        result = self.report.answered(answer)
        if not self.quiet:
            mark = "" if result.state is State.DONE else "UNEXPECTED: "
            write(f"{escape(f'{result.node}: {mark}{result.text}')}\n")


def _clean(arguments: argparse.Namespace, session: Session, run: _Run, planned: Sequence[Sequence[str]]) -> bool:
    """Clean wave by wave until all are done, one had a surprise, or the operator interrupts.

    Return whether the report has every result.
    """
    command = ("clean", "--apply", *run.report.options, "-o", "json")
    for number, wave in enumerate(planned):
        if run.stop.wait(arguments.pause.total_seconds() if number else 0):
            break
        run.report.asked(wave)
        # What is not in the report could not be continued: a wave that cannot be noted does not begin.
        if not run.save():
            run.report.not_asked(wave)
            return False
        try:
            session.ask([run.agents[node] for node in wave], command, run.arrived)
        finally:  # what was answered is in the report, also if the output cannot be written
            saved = run.save()
        if not saved:
            return False
        # Not those of an earlier run, whose report this one continues.
        if set(run.report.named(State.SURPRISE)) & set(wave):
            break
    return True


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


def _conclude(path: Path, report: CleanReport, again: str, *, interrupted: bool) -> int:
    """Print what was done and what is left, and return the exit code."""
    note(f"{conclusion(report)}; report: {path}")
    unexpected = report.named(State.SURPRISE, State.ASKED)
    pending = report.named(State.PENDING)
    if unexpected:
        note(f"no expected result: look at {', '.join(unexpected)} first; --continue does not clean these again")
    if pending or report.named(State.LEFT_OUT):
        note(f"to go on: {again}")
    return _exit_code(report, interrupted=interrupted)


def _exit_code(report: CleanReport, *, interrupted: bool) -> int:
    if report.named(State.SURPRISE, State.ASKED):
        return FAILED
    if report.named(State.PENDING):
        return INTERRUPTED if interrupted else FAILED
    return UNAVAILABLE if report.named(State.LEFT_OUT) else DONE
