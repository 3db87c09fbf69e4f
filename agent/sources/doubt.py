"""A reading that the others contradict is no reading. Pure.

Runtimes do answer wrongly: an empty list after a restart, a list without what they failed to load. Believed once, it
makes every address of the node look leaked.
"""

from agent.model.snapshot import (
    Address,
    Checkpoint,
    Container,
    Daemons,
    Node,
    Pod,
    Reading,
    Seen,
    Unread,
)


def containers(reading: Reading[Container], pods: Reading[Pod]) -> Reading[Container]:
    """Disbelieve a list that holds none of the pods that run here by the API server's word."""
    if not isinstance(reading, Seen) or not isinstance(pods, Seen):
        return reading
    running = {pod.name for pod in pods.items if pod.phase == "Running" and not pod.deleting}
    if not running or running & {container.pod for container in reading.items}:
        return reading
    listed = f"{len(reading.items)} containers, none of them" if reading.items else "no container, not one"
    return Unread(
        "containers", f"the runtime lists {listed} of the {len(running)} pods that run here by the API server's word"
    )


def checkpoints(reading: Reading[Checkpoint], runtime: Reading[Container]) -> Reading[Checkpoint]:
    """Believe that there are no checkpoint directories where the runtime has no sandbox that would be in them."""
    if not isinstance(reading, Unread) or not isinstance(runtime, Seen):
        return reading
    if reading.why.startswith("none of these exists") and not any(container.sandbox for container in runtime.items):
        return Seen(())
    return reading


def addresses(reading: Reading[Address], daemons: Reading[Daemons]) -> Reading[Address]:
    """Disbelieve namespaces that were seen through the process table of a container."""
    if isinstance(reading, Seen) and isinstance(daemons, Unread):
        return Unread("addresses", daemons.why)
    return reading


def pods(reading: Reading[Pod], node: Reading[Node], name: str) -> Reading[Pod]:
    """Disbelieve an empty list of the pods of a node that does not exist: a wrong name has no pods either."""
    if isinstance(reading, Seen) and not reading.items and node == Seen(()):
        return Unread("pods", f"the API server has no Node named {name!r}: is the node's name right?")
    return reading
