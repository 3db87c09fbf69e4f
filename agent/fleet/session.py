"""One command: its targets, its progress, and asking them."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final

from agent.cli.output import show_progress
from agent.config import UsageError
from agent.fleet.kubectl import Kubectl
from agent.fleet.nodes import (
    LABELS,
    WITHOUT_AGENT,
    Agent,
    Answer,
    Target,
    addresses,
    agents_in,
    natural,
    targets,
)
from agent.model.text import format_number, quote

_FEW: Final = 10
"""So many nodes are requested by name. For more, all are listed: that is fewer requests."""


class Session:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        options = [
            option for option in cluster_options(arguments) if not option.startswith("--namespace")
        ]
        self.kubectl = Kubectl(*options, timeout=arguments.timeout.total_seconds())
        self.agents_in = (
            [f"--namespace={arguments.namespace}"] if arguments.namespace else ["--all-namespaces"]
        )

    def context(self) -> str:
        return self._arguments.context or self.kubectl.context()

    def targets(self, names: Sequence[str]) -> list[Target]:
        few = names[:_FEW] if len(names) <= _FEW else ()
        nodes = self._nodes(few)
        agents = [agent for node in few or ("",) for agent in self._agents(node)]
        # Somebody may have made pods that could answer for any node.
        if len(namespaces := sorted({agent.namespace for agent in agents})) > 1:
            where = ", ".join(namespaces)
            raise UsageError(
                f"pods with the labels of the agent are in several namespaces: {where}: choose with --namespace"
            )
        return _chosen(targets(nodes, agents), names)

    def nodes(self, names: Sequence[str]) -> tuple[list[Target], dict[str, str]]:
        """Find nodes without asking for their agents, and every node of the cluster by name and internal address."""
        chosen = "" if names else self._nodes((), "--output=wide")
        selected = names or self._arguments.selector
        everything = (
            self.kubectl.get("nodes", "--no-headers", "--output=wide") if selected else chosen
        )
        found = _chosen(targets(everything if names else chosen, ()), names)
        return found, {
            **addresses(everything),
            **{target.node: target.node for target in targets(everything, ())},
        }

    def _nodes(self, names: Sequence[str], *options: str) -> str:
        if names:
            return self.kubectl.get("nodes", *names, "--no-headers", "--ignore-not-found", *options)
        selector = ",".join(filter(None, [self._arguments.selector, WITHOUT_AGENT]))
        return self.kubectl.get("nodes", f"--selector={selector}", "--no-headers", *options)

    def _agents(self, node: str) -> list[Agent]:
        of_node = [f"--field-selector=spec.nodeName={node}"] if node else []
        return agents_in(
            self.kubectl.items("pods", *self.agents_in, f"--selector={LABELS}", *of_node)
        )

    def ask(
        self,
        found: Sequence[Target],
        command: Sequence[str],
        finished: Callable[[Answer], None] = lambda _: None,
    ) -> list[Answer]:
        """Run a command in each pod, and call `finished` with each answer, also of nodes that cannot be asked.

        What was answered before Ctrl-C counts.
        """

        def execute(agent: Agent) -> Answer:
            answer = self.kubectl.execute(agent, command)
            # A command that changes nothing can be repeated.
            return (
                self.kubectl.execute(agent, command)
                if answer.lost and "--apply" not in command
                else answer
            )

        answers, agents = dict[str, Answer](), list[Agent]()
        for target in found:
            why = target.unreachable
            answers[target.node] = Answer(
                target.node, None, error=why or "interrupted before it answered"
            )
            if why:
                finished(answers[target.node])
            elif target.agent:
                agents.append(target.agent)
        with ThreadPoolExecutor(self._arguments.parallel) as pool:
            futures = [pool.submit(execute, agent) for agent in agents]
            try:
                show_progress(f"0 of {format_number(len(agents))} agents answered …")
                for number, future in enumerate(as_completed(futures), 1):
                    answer = future.result()
                    answers[answer.node] = answer
                    show_progress("")
                    finished(answer)
                    show_progress(
                        f"{format_number(number)} of {format_number(len(agents))} agents answered …"
                    )
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                self.kubectl.cancel()
                if not isinstance(error, KeyboardInterrupt):
                    raise
            finally:
                show_progress("")
        return list(answers.values())


def cluster_options(arguments: argparse.Namespace) -> list[str]:
    """Write the options that say which cluster, and where the agents are, for another command."""
    names = {
        "--context": arguments.context,
        "--kubeconfig": arguments.kubeconfig,
        "--namespace": arguments.namespace,
    }
    return [f"{name}={value}" for name, value in names.items() if value]


def _chosen(found: Sequence[Target], names: Sequence[str]) -> list[Target]:
    """Return the targets with these names, or without names all targets, each once, by name. Raises UsageError."""
    by_name = {target.node: target for target in found}
    if unknown := [name for name in names if name not in by_name]:
        raise UsageError(
            f"unknown node {', '.join(map(quote, unknown))}", "run 'kubectl get nodes' for names"
        )
    if not found:
        raise UsageError(
            "no node matches", "run 'kubectl get nodes --show-labels' for names and labels"
        )
    return [by_name[name] for name in sorted(dict.fromkeys(names or by_name), key=natural)]


def reachable(found: Iterable[Target]) -> list[Target]:
    return [target for target in found if not target.unreachable]
