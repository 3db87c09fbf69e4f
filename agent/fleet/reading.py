"""Commands that ask agents and change nothing: `status`, and each command of nodeleak on several nodes."""

import argparse
import sys
from typing import Any

from agent.cli.exit_codes import DONE, FOUND, UNAVAILABLE
from agent.cli.output import write, write_json
from agent.fleet.answers import Answer, merged
from agent.fleet.inventory import Target, natural
from agent.fleet.prometheus import statuses as from_prometheus
from agent.fleet.session import Session, agents_of
from agent.fleet.status import NodeStatus, Rank, node_status, worst_first
from agent.fleet.status_table import status_table
from agent.model.text import escape


def show_status(arguments: argparse.Namespace) -> int:
    session = Session(arguments)
    asks_agents = not (arguments.prometheus or arguments.prometheus_service)
    statuses = worst_first(_asked(arguments, session) if asks_agents else from_prometheus(arguments, session))
    if arguments.output == "json":
        write_json(merged("status", [_status_entry(one) for one in statuses]))
    else:
        write(status_table(statuses, wide=arguments.output == "wide"))
    if not all(one.complete for one in statuses):
        return UNAVAILABLE
    found_some = any(one.rank in {Rank.CRITICAL, Rank.WARNING} for one in statuses)
    return FOUND if arguments.exit_code and found_some else DONE


def _asked(arguments: argparse.Namespace, session: Session) -> list[NodeStatus]:
    found = session.targets(arguments.nodes)
    answers = {one.node: one for one in session.ask(agents_of(found), ("status", "-o", "json"))}
    return [node_status(target, answers.get(target.node)) for target in found]


def _status_entry(status: NodeStatus) -> dict[str, Any]:
    if status.answer is None or status.answer.document is None:
        code = status.answer.exit_code if status.answer else None
        return {"node": status.target.node, "exit_code": code, "error": status.text}
    return status.answer.entry()


def run_on_nodes(arguments: argparse.Namespace) -> int:
    """Run the command of the same name on each node. Text is printed as it arrives, JSON as one document."""
    session = Session(arguments)
    found = sorted(session.targets(arguments.nodes), key=lambda one: natural(one.node))
    as_json = getattr(arguments, "output", "table") == "json"
    command = (arguments.command, *arguments.rest, *(("-o", "json") if as_json else ()))
    several = len(found) > 1

    def arrived(answer: Answer) -> None:
        if not as_json:
            _print(answer, several=several)

    missed = [_not_asked(one) for one in found if one.unreachable]
    for answer in missed:
        arrived(answer)
    answers = [*missed, *session.ask(agents_of(found), command, arrived)]
    if as_json:
        entries = sorted((one.entry() for one in answers), key=lambda one: natural(one["node"]))
        write_json(merged(arguments.command, entries))
    codes = {UNAVAILABLE if one.exit_code is None else one.exit_code for one in answers}
    # Whatever else happened, it must not hide that a node was not read.
    return UNAVAILABLE if UNAVAILABLE in codes else max(codes, default=DONE)


def _not_asked(target: Target) -> Answer:
    return Answer(target.node, None, "", target.unreachable)


def _print(answer: Answer, *, several: bool) -> None:
    """Print what a node answered. `several`: each line begins with the name of the node."""
    prefix = f"{answer.node}: " if several else ""
    write("".join(f"{prefix}{escape(line)}\n" for line in answer.output.splitlines()))
    errors = answer.error.splitlines() or ([] if answer.exit_code is not None else [answer.reason])
    for line in errors:
        print(f"{answer.node}: {escape(line)}", file=sys.stderr, flush=True)
