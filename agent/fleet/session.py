"""One command: its targets, its progress, and asking them."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from agent.config import UsageError, quote
from agent.fleet.answers import Answer
from agent.fleet.asking import ask_all
from agent.fleet.inventory import (
    JSONPATH,
    LABELS,
    WITHOUT_AGENT,
    Agent,
    Target,
    Untrusted,
    addresses,
    agents_in,
    only,
    targets,
)
from agent.fleet.kubectl import Kubectl
from agent.model.text import escape, format_number

_MANY: Final = 500
_FEW: Final = 10
"""So many nodes are requested by name. For more, all are listed: that is fewer requests."""


_FEWER: Final = {"clean": "", "status": "; -l SELECTOR asks fewer, --prometheus asks none"}
"""What to say of a question to many agents."""


class Session:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        given = {"--context": arguments.context, "--kubeconfig": arguments.kubeconfig}
        options = (f"{name}={value}" for name, value in given.items() if value)
        self.kubectl = Kubectl(*options, timeout=arguments.timeout.total_seconds())
        self.agents_in = [f"--namespace={arguments.namespace}"] if arguments.namespace else ["--all-namespaces"]

    def context(self) -> str:
        return self._arguments.context or self.kubectl.context()

    def targets(self, names: Sequence[str]) -> list[Target]:
        """Find nodes and their agents; without names, all that are selected."""
        few = names[:_FEW] if len(names) <= _FEW else ()
        nodes = self._nodes(few)
        try:
            found = targets(nodes, [agent for node in few or ("",) for agent in agents_in(self._pods(node))])
        except Untrusted as error:
            raise UsageError(str(error)) from error
        return self._chosen(found, names)

    def nodes(self, names: Sequence[str]) -> tuple[list[Target], dict[str, str]]:
        """Find nodes without asking for their agents, and every node of the cluster by name and internal address."""
        chosen = "" if names else self._nodes((), "--output=wide")
        selected = names or getattr(self._arguments, "selector", "")
        everything = self.kubectl.get("nodes", "--no-headers", "--output=wide") if selected else chosen
        found = self._chosen(targets(everything if names else chosen, ()), names)
        return found, {**addresses(everything), **{one.node: one.node for one in targets(everything, ())}}

    def _chosen(self, found: Sequence[Target], names: Sequence[str]) -> list[Target]:
        chosen, unknown = only(found, names)
        if unknown:
            raise UsageError(f"unknown node {', '.join(map(quote, unknown))}", "run 'kubectl get nodes' for names")
        if not chosen:
            raise UsageError("no node matches", "run 'kubectl get nodes --show-labels' for names and labels")
        return chosen

    def _nodes(self, names: Sequence[str], *options: str) -> str:
        if names:
            return self.kubectl.get("nodes", *names, "--no-headers", "--ignore-not-found", *options)
        selector = ",".join(filter(None, [getattr(self._arguments, "selector", ""), WITHOUT_AGENT]))
        return self.kubectl.get("nodes", f"--selector={selector}", "--no-headers", *options)

    def _pods(self, node: str) -> str:
        of_node = [f"--field-selector=spec.nodeName={node}"] if node else []
        return self.kubectl.get("pods", *self.agents_in, f"--selector={LABELS}", *of_node, f"--output={JSONPATH}")

    def ask(
        self, agents: Sequence[Agent], command: Sequence[str], finished: Callable[[Answer], None] = lambda _: None
    ) -> list[Answer]:
        """Run a command of the agent in each pod, at most `--parallel` at once."""
        timeout, parallel = self._arguments.timeout.total_seconds(), self._arguments.parallel
        if len(agents) > _MANY:
            few = _FEWER.get(self._arguments.command, "; -l SELECTOR asks fewer")
            note(f"asking {format_number(len(agents))} agents, {parallel} at a time{few}")
        progress = _Progress(len(agents))

        def arrived(answer: Answer) -> None:
            progress.clear()
            finished(answer)
            progress.step()

        def execute(agent: Agent) -> Answer:
            answer = self.kubectl.execute(agent, command, timeout)
            # A command that changes nothing can be repeated.
            return self.kubectl.execute(agent, command, timeout) if answer.lost and "--apply" not in command else answer

        try:
            return ask_all(agents, execute, parallel, self.kubectl.cancel, arrived)
        finally:
            progress.clear()


class _Progress:
    """A line on a terminal that says how many agents have answered."""

    def __init__(self, count: int) -> None:
        self._count, self._done = count, -1
        self._visible = sys.stderr.isatty()
        self.step()

    def step(self) -> None:
        self._done += 1
        self._write(f"{format_number(self._done)} of {format_number(self._count)} agents answered …")

    def clear(self) -> None:
        self._write("\r\033[K")

    def _write(self, text: str) -> None:
        if self._visible:
            print(text, end="", file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Write to standard error: the output is for what was asked."""
    print(f"nodeleak: {escape(text)}", file=sys.stderr, flush=True)


def agents_of(found: Iterable[Target]) -> list[Agent]:
    """Return the agents that can be asked."""
    return [one.agent for one in found if one.agent and not one.unreachable]
