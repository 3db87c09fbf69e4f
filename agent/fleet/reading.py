"""Commands that ask agents and change nothing: `status`, and each command of nodeleak on several nodes."""

import argparse

from agent.cli.output import DONE, FOUND, UNAVAILABLE, as_json, warn, write
from agent.fleet.nodes import Answer, merged
from agent.fleet.prometheus import statuses as from_prometheus
from agent.fleet.session import Session
from agent.fleet.status import NodeStatus, Rank, node_status, status_table, worst_first
from agent.model.text import escape


def show_status(arguments: argparse.Namespace) -> int:
    session = Session(arguments)
    asks_prometheus = arguments.prometheus or arguments.prometheus_service
    statuses = worst_first(
        from_prometheus(arguments, session) if asks_prometheus else _asked(arguments, session)
    )
    entries, wide = (status.entry for status in statuses), arguments.output == "wide"
    write(
        as_json(merged("status", entries))
        if arguments.output == "json"
        else status_table(statuses, wide=wide)
    )
    if not all(status.complete for status in statuses):
        return UNAVAILABLE
    found_some = any(status.rank in {Rank.CRITICAL, Rank.WARNING} for status in statuses)
    return FOUND if arguments.exit_code and found_some else DONE


def _asked(arguments: argparse.Namespace, session: Session) -> list[NodeStatus]:
    found = session.targets(arguments.nodes)
    answers = session.ask(found, ("status", "-o", "json"))
    return [node_status(target, answer) for target, answer in zip(found, answers, strict=True)]


def run_on_nodes(arguments: argparse.Namespace) -> int:
    """Run the command of the same name on each node. Text is printed as it arrives, JSON as one document."""
    session = Session(arguments)
    found = session.targets(arguments.nodes)
    wants_json = arguments.output == "json"
    command = (arguments.command, *arguments.rest, *(("-o", "json") if wants_json else ()))

    def arrived(answer: Answer) -> None:
        if not wants_json:
            _print(answer, several=len(found) > 1)

    answers = session.ask(found, command, arrived)
    if wants_json:
        write(as_json(merged(arguments.command, (answer.entry() for answer in answers))))
    codes = {UNAVAILABLE if answer.exit_code is None else answer.exit_code for answer in answers}
    # Whatever else happened, it must not hide that a node was not read.
    return UNAVAILABLE if UNAVAILABLE in codes else max(codes, default=DONE)


def _print(answer: Answer, *, several: bool) -> None:
    """Print what a node answered. `several`: each line begins with the name of the node."""
    prefix = f"{answer.node}: " if several else ""
    write("".join(f"{prefix}{escape(line)}\n" for line in answer.output.splitlines()))
    errors = answer.error.splitlines() or ([] if answer.exit_code is not None else [answer.reason])
    warn(*errors, prefix=f"{answer.node}: ")
