"""Commands on many nodes: which nodes, running the command there, and what is printed."""

import argparse
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Final

from agent.cli.output import DOCUMENTS, DONE, FOUND, UNAVAILABLE, show_progress, warn, write
from agent.config import UsageError
from agent.fleet import prometheus
from agent.fleet.kubectl import Kubectl
from agent.fleet.nodes import (
    CAN_RUN_AGENT,
    LABELS,
    Agent,
    Answer,
    KubeObject,
    Target,
    agents_in,
    merged,
    natural_order,
    nodes_by_address,
    targets,
)
from agent.fleet.status import NodeStatus, Rank, node_status, status_table, worst_first
from agent.model.text import escape, format_number, quote

_MAX_NAMED: Final = 10
"""So many nodes are requested by name. For more, all are listed: that is fewer requests."""


class Session:
    """One command of `kubectl nodeleak`, with its connection to the cluster."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        cluster = _options(arguments, "context", "kubeconfig")
        self.kubectl = Kubectl(*cluster, timeout=arguments.timeout.total_seconds())

    def context(self) -> str:
        """Return the context of the kubeconfig that is used; empty without one, as in a pod."""
        return self._arguments.context or self.kubectl.context()

    def targets(self) -> list[Target]:
        """Return the chosen nodes with their agents. Raises UsageError and KubectlError."""
        names: Sequence[str] = self._arguments.nodes
        requested = names if len(names) <= _MAX_NAMED else ()
        nodes = self._nodes(requested)
        agents: list[Agent] = []
        for node in requested or ("",):
            options = [f"--field-selector=spec.nodeName={node}"] if node else []
            agents += agents_in(self.objects("pods", *options))

        # Somebody may have created pods that could answer for any node.
        namespaces = sorted({agent.namespace for agent in agents})
        if len(namespaces) > 1:
            raise UsageError(
                "pods with the labels of the agent are in several namespaces: "
                f"{', '.join(namespaces)}: choose with --namespace"
            )
        return _chosen(targets(nodes, agents), names)

    def nodes(self) -> tuple[list[Target], dict[str, str]]:
        """Return the chosen nodes without their agents, and every node by name and address.

        Raises UsageError and KubectlError.
        """
        names: Sequence[str] = self._arguments.nodes
        # Without names and a selector, what is chosen is everything.
        selected = "" if names else self._nodes((), "--output=wide")
        everything = selected
        if names or self._arguments.selector:
            everything = self.kubectl.get("nodes", "--no-headers", "--output=wide")

        candidates = targets(everything if names else selected, ())
        chosen = _chosen(candidates, names)
        by_name = {target.node: target.node for target in targets(everything, ())}
        return chosen, nodes_by_address(everything) | by_name

    def _nodes(self, names: Sequence[str], *options: str) -> str:
        """Return the lines of `kubectl get nodes`. No names: of all that `--selector` matches."""
        if names:
            return self.kubectl.get("nodes", *names, "--no-headers", "--ignore-not-found", *options)

        selectors = [CAN_RUN_AGENT]
        if self._arguments.selector:
            selectors.insert(0, self._arguments.selector)
        selector = f"--selector={','.join(selectors)}"
        return self.kubectl.get("nodes", selector, "--no-headers", *options)

    def objects(self, kind: str, *options: str) -> list[KubeObject]:
        """Return the objects of a kind, such as `daemonsets`, that have the labels of the agent."""
        where = _options(self._arguments, "namespace") or ["--all-namespaces"]
        return self.kubectl.items(kind, *where, f"--selector={LABELS}", *options)

    def run(
        self,
        chosen: Sequence[Target],
        command: Sequence[str],
        finished: Callable[[Answer], None] = lambda _: None,
    ) -> list[Answer]:
        """Run a command on each node, and call `finished` with each answer.

        Nodes that cannot be reached have an answer, too. After Ctrl-C, return what was answered.
        """
        answers: dict[str, Answer] = {}
        for target in chosen:
            error = target.unreachable or "interrupted before it answered"
            answers[target.node] = Answer(target.node, None, error=error)
            if target.unreachable:
                finished(answers[target.node])

        with ThreadPoolExecutor(self._arguments.parallel) as pool, self._canceling(pool):
            futures = [
                pool.submit(self._execute, target.agent, command)
                for target in reachable(chosen)
                if target.agent
            ]
            for answer in _with_progress(futures):
                answers[answer.node] = answer
                finished(answer)
        return list(answers.values())

    def _execute(self, agent: Agent, command: Sequence[str]) -> Answer:
        """Return the answer of one node. A command that only reads is repeated if it got lost."""
        answer = self.kubectl.execute(agent, command)
        if answer.lost and "--apply" not in command:
            return self.kubectl.execute(agent, command)
        return answer

    @contextmanager
    def _canceling(self, pool: ThreadPoolExecutor) -> Iterator[None]:
        """End all commands if anything is raised. Ctrl-C goes no further."""
        try:
            yield
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            self.kubectl.cancel()
            if not isinstance(error, KeyboardInterrupt):
                raise
        finally:
            show_progress("")


def _with_progress(futures: Sequence[Future[Answer]]) -> Iterator[Answer]:
    """Yield the answers as they arrive, and show their number in between."""
    total = format_number(len(futures))
    show_progress(f"0 of {total} agents answered …")
    for number, future in enumerate(as_completed(futures), 1):
        answer = future.result()
        show_progress("")
        yield answer
        show_progress(f"{format_number(number)} of {total} agents answered …")


def _options(arguments: argparse.Namespace, *names: str) -> list[str]:
    """Return those of these options that have a value, for another command."""
    values = {name: getattr(arguments, name) for name in names}
    return [f"--{name}={value}" for name, value in values.items() if value]


def command_line(arguments: argparse.Namespace, *words: str) -> str:
    """Return another command for the same agents, with the same options on the nodes, to copy."""
    cluster = _options(arguments, "context", "kubeconfig", "namespace")
    on_node = ["--", *arguments.rest] if arguments.rest else []
    return shlex.join(["kubectl", "nodeleak", *words, *cluster, *on_node])


def _chosen(nodes: Sequence[Target], names: Sequence[str]) -> list[Target]:
    """Return the nodes with these names, or all, each once and in order. Raises UsageError."""
    by_name = {target.node: target for target in nodes}
    unknown = [quote(name) for name in names if name not in by_name]
    if unknown:
        hint = "run 'kubectl get nodes' for names"
        raise UsageError(f"unknown node {', '.join(unknown)}", hint)

    if not nodes:
        hint = "run 'kubectl get nodes --show-labels' for names and labels"
        raise UsageError("no node matches", hint)
    chosen = sorted(dict.fromkeys(names or by_name), key=natural_order)
    return [by_name[name] for name in chosen]


def reachable(nodes: Iterable[Target]) -> list[Target]:
    """Return the nodes on which a command can be run."""
    return [target for target in nodes if not target.unreachable]


def show_status(arguments: argparse.Namespace) -> int:
    """Print the status of the chosen nodes; return the exit code."""
    session = Session(arguments)
    if arguments.prometheus or arguments.prometheus_service:
        statuses = _from_prometheus(arguments, session)
    else:
        chosen = session.targets()
        answers = session.run(chosen, ("status", "-o", "json"))
        statuses = list(map(node_status, chosen, answers))

    statuses = worst_first(statuses)
    if as_text := DOCUMENTS.get(arguments.output):
        write(as_text(merged("status", [status.entry for status in statuses])))
    else:
        write(status_table(statuses, wide=arguments.output == "wide"))

    if not all(status.complete for status in statuses):
        return UNAVAILABLE
    has_problems = any(status.rank in {Rank.CRITICAL, Rank.WARNING} for status in statuses)
    return FOUND if arguments.exit_code and has_problems else DONE


def _from_prometheus(arguments: argparse.Namespace, session: Session) -> list[NodeStatus]:
    chosen, node_of = session.nodes()
    seconds = arguments.timeout.total_seconds()
    if arguments.prometheus:
        server = prometheus.by_url(arguments.prometheus, seconds)
    else:
        service = arguments.prometheus_service
        server = prometheus.through_api_server(service, session.kubectl, seconds)
    return prometheus.statuses(server, arguments.prometheus_cluster, chosen, node_of)


def run_on_nodes(arguments: argparse.Namespace) -> int:
    """Run the command of the same name on each node; return the exit code.

    It is the highest of the nodes, or `UNAVAILABLE` if any gave no answer.
    """
    session = Session(arguments)
    chosen = session.targets()
    as_text = DOCUMENTS.get(arguments.output)

    def finished(answer: Answer) -> None:
        if as_text is None:
            _print(answer, several=len(chosen) > 1)

    # Nodes of any version answer JSON, of which one document is made at the end.
    options = ("-o", "json") if as_text else ()
    answers = session.run(chosen, (arguments.command, *arguments.rest, *options), finished)
    if as_text:
        write(as_text(merged(arguments.command, [answer.entry() for answer in answers])))

    codes = {UNAVAILABLE if answer.exit_code is None else answer.exit_code for answer in answers}
    # Whatever else happened, it must not hide that a node was not read.
    return UNAVAILABLE if UNAVAILABLE in codes else max(codes, default=DONE)


def _print(answer: Answer, *, several: bool) -> None:
    """Print what a node answered. `several`: each line begins with the name of the node."""
    prefix = f"{answer.node}: " if several else ""
    lines = [f"{prefix}{escape(line)}\n" for line in answer.output.splitlines()]
    write("".join(lines))

    errors = answer.error.splitlines()
    if not errors and answer.exit_code is None:
        errors = [answer.reason]
    warn(*errors, prefix=f"{answer.node}: ")
