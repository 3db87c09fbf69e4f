"""Commands that ask agents and change nothing: `status`, and each command of nodeleak on several nodes."""

import argparse

from agent.cli.output import DONE, FOUND, UNAVAILABLE, as_json, warn, write
from agent.fleet.nodes import Answer, merged, natural
from agent.fleet.prometheus import statuses as from_prometheus
from agent.fleet.session import Session, agents_of
from agent.fleet.status import NodeStatus, Rank, node_status, status_table, worst_first
from agent.model.text import escape


def show_status(arguments: argparse.Namespace) -> int:
    session = Session(arguments)
    asks_prometheus = arguments.prometheus or arguments.prometheus_service
    statuses = worst_first(from_prometheus(arguments, session) if asks_prometheus else _asked(arguments, session))
    entries, wide = (status.entry for status in statuses), arguments.output == "wide"
    write(as_json(merged("status", entries)) if arguments.output == "json" else status_table(statuses, wide=wide))
    if not all(status.complete for status in statuses):
        return UNAVAILABLE
    found_some = any(status.rank in {Rank.CRITICAL, Rank.WARNING} for status in statuses)
    return FOUND if arguments.exit_code and found_some else DONE


def _asked(arguments: argparse.Namespace, session: Session) -> list[NodeStatus]:
    found = session.targets(arguments.nodes)
    answers = {answer.node: answer for answer in session.ask(agents_of(found), ("status", "-o", "json"))}
    return [node_status(target, answers.get(target.node)) for target in found]


def run_on_nodes(arguments: argparse.Namespace) -> int:
    """Run the command of the same name on each node. Text is printed as it arrives, JSON as one document."""
    session = Session(arguments)
    found = sorted(session.targets(arguments.nodes), key=lambda target: natural(target.node))
    wants_json = arguments.output == "json"
    command = (arguments.command, *arguments.rest, *(("-o", "json") if wants_json else ()))

    def arrived(answer: Answer) -> None:
        if not wants_json:
            _print(answer, several=len(found) > 1)

    missed = [Answer(target.node, None, "", target.unreachable) for target in found if target.unreachable]
    for answer in missed:
        arrived(answer)
    answers = [*missed, *session.ask(agents_of(found), command, arrived)]
    if wants_json:
        entries = sorted((answer.entry() for answer in answers), key=lambda entry: natural(entry["node"]))
        write(as_json(merged(arguments.command, entries)))
    codes = {UNAVAILABLE if answer.exit_code is None else answer.exit_code for answer in answers}
    # Whatever else happened, it must not hide that a node was not read.
    return UNAVAILABLE if UNAVAILABLE in codes else max(codes, default=DONE)


def _print(answer: Answer, *, several: bool) -> None:
    """Print what a node answered. `several`: each line begins with the name of the node."""
    prefix = f"{answer.node}: " if several else ""
    write("".join(f"{prefix}{escape(line)}\n" for line in answer.output.splitlines()))
    errors = answer.error.splitlines() or ([] if answer.exit_code is not None else [answer.reason])
    warn(*errors, prefix=f"{answer.node}: ")
