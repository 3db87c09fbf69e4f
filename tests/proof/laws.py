"""What must be true in every state, and of what an only cleaner leaves behind."""

from collections.abc import Callable

from agent.cleanup.journal import Entry
from tests.proof.world import Sandbox, World, unowned

Law = Callable[[World], str]
"""Says what is wrong with a world; nothing where nothing is."""


def reserved(world: World) -> str:
    """No live sandbox loses its reservation: from the moment its file is made until its DEL it is there."""
    for box in world.sandboxes:
        if not box.exists:
            continue
        for ip in box.ips:
            file = world.file(ip, box.network)
            if file is None or file.content != _content(box, ip):
                return f"{box.pod} lives and has lost its reservation of {ip}"
    return ""


def in_use(world: World) -> str:
    """No sandbox loses an address that it has configured, or that an ADD under way is about to configure.

    Less than `reserved`: a sandbox whose ADD died before it configured anything has no address to lose.
    """
    for box in world.sandboxes:
        adding = box.ips if box.setup in {"started", "writing", "reserved"} else ()
        for ip in {*adding, *box.configured}.intersection(box.ips) if box.exists else ():
            file = world.file(ip, box.network)
            if file is None or file.content != _content(box, ip):
                return f"{box.pod} uses {ip} and has lost its reservation"
    return ""


def _content(box: Sandbox, ip: str) -> str:
    return "" if box.setup == "writing" and ip == box.ips[-1] else box.id


def owned_once(world: World) -> str:
    """No address is in the hands of two live sandboxes."""
    held = [(box.network, ip) for box in world.sandboxes if box.exists for ip in box.ips]
    twice = {one for one in held if held.count(one) > 1}
    return f"two live sandboxes have {min(twice)[1]}" if twice else ""


def written_down(world: World) -> str:
    """Whatever we removed was written down before, to the byte."""
    return f"{world.lost} was removed and is not in the journal" if world.lost else ""


LAWS: tuple[Law, ...] = (reserved, owned_once, written_down)
IN_USE: tuple[Law, ...] = (in_use, owned_once, written_down)
"""Where docker lies."""


def whole(world: World) -> str:
    """No entry is left open, and the sandbox of each is whole, or gone, or has lost its address to another."""
    for entry in world.journal:
        if entry.verdict is None:
            return f"entry {entry.name} never ended"
        if wrong := _half(world, entry):
            return wrong
    return ""


def _half(world: World, entry: Entry) -> str:
    mine = {one.ip for one in world.files if entry.container_id and one.content == entry.container_id}
    names = {one.name for one in entry.reservations}
    if not mine or names <= mine:
        return ""
    if all(world.file(name) is not None for name in names - mine):
        return ""
    return f"half of the sandbox {entry.container_id[:2]} is there"


def clean(before: World, after: World) -> str:
    """Every leak is gone, where docker tells the truth and the API server has heard of everybody's end."""
    believable = all(
        not box.hidden
        and (not box.told or box.listed)
        and (box.container != "running" or box.checkpoint)
        for box in before.sandboxes
    )  # fmt: skip
    if believable and (left := [one for one in unowned(before) if one in after.files]):
        return f"{left[0].ip} is still leaked when a cleaner has run to its end"
    return ""


def untouched(*names: str) -> Law:
    """Say that nothing happens to some files, whatever happens."""

    def law(world: World) -> str:
        gone = [name for name in names if not any(one.ip == name for one in world.files)]
        return f"{gone[0]} was removed" if gone else ""

    return law


def at_most(removed: int, of: int) -> Law:
    """Say that no more than so many of so many files are removed."""

    def law(world: World) -> str:
        gone = of - len(world.files)
        return f"{gone} files were removed, and no more than {removed} may be" if gone > removed else ""

    return law
