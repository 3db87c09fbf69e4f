"""What must hold in every state, and after one cleaner has run alone."""

from collections.abc import Callable, Iterable

from agent.cleanup.journal import Journal
from agent.model.release import Verdict
from tests.proof.world import Sandbox, World, unowned

Law = Callable[[World], str]  # Returns what is wrong with a world; empty if nothing is


def reserved(world: World) -> str:
    """A sandbox that exists or is being made has its reservation, from when the file is created until DEL."""
    for sandbox in world.sandboxes:
        if lost := _lost(world, sandbox, sandbox.ips):
            return f"{sandbox.pod} exists and has lost its reservation of {lost}"
    return ""


def in_use(world: World) -> str:
    """A sandbox has a reservation for every address that it has configured, or that a running ADD will configure.

    Weaker than `reserved`: a sandbox whose ADD died before it configured anything has no address to lose.
    """
    for sandbox in world.sandboxes:
        adding = sandbox.ips if sandbox.setup in {"started", "writing", "reserved"} else ()
        if lost := _lost(world, sandbox, {*adding, *sandbox.configured}.intersection(sandbox.ips)):
            return f"{sandbox.pod} uses {lost} and has lost its reservation"
    return ""


def _lost(world: World, sandbox: Sandbox, ips: Iterable[str]) -> str:
    """Return one of these addresses that a sandbox which exists has lost."""
    for ip in ips if sandbox.exists else ():
        file = world.file(ip, sandbox.network)
        content = "" if sandbox.setup == "writing" and ip == sandbox.ips[-1] else sandbox.id
        if file is None or file.content != content:
            return ip
    return ""


def owned_once(world: World) -> str:
    """No two live sandboxes have the same address."""
    held = [
        (sandbox.network, ip) for sandbox in world.sandboxes if sandbox.exists for ip in sandbox.ips
    ]
    twice = {address for address in held if held.count(address) > 1}
    return f"two live sandboxes have {min(twice)[1]}" if twice else ""


def answering(world: World) -> str:
    """An address that a network namespace without a process has stays reserved."""
    gone = [namespace.ip for namespace in world.pinned if world.file(namespace.ip) is None]
    return f"a network namespace has {gone[0]}, which is no longer reserved" if gone else ""


def journaled(world: World) -> str:
    """Whatever a cleaner removed was in the journal before, byte for byte."""
    return f"{world.lost} was removed and is not in the journal" if world.lost else ""


def restored(world: World) -> str:
    """A restored sandbox is in place, and a released one is not, until it is released again."""
    last = {entry.container_id: entry for entry in world.journal}
    for entry in last.values():
        mine = [
            file
            for file in world.files
            if entry.container_id and file.content == entry.container_id
        ]
        if entry.restored and len(mine) < len(entry.reservations):
            return f"the sandbox {entry.container_id[:2]} is restored according to the journal, and is not in place"
        if entry.released and entry.verdict is Verdict.RELEASED and mine:
            return f"the sandbox {entry.container_id[:2]} is released according to the journal, and is in place"
    return ""


def kept(world: World) -> str:
    """The journal keeps every release."""
    return f"the journal has dropped entry {world.dropped}" if world.dropped else ""


def obeyed(world: World) -> str:
    """No cleaner removes anything while the journal has a halt, whoever recorded it."""
    return f"{world.defied} was removed although cleanup had halted" if world.defied else ""


def braked(world: World) -> str:
    """Once the brake is set, no release begins: the one that has begun may end."""
    count = len(world.overrun)
    return f"{count} sandboxes were released after the brake was set" if count > 1 else ""


LAWS: tuple[Law, ...] = (
    reserved,
    owned_once,
    answering,
    journaled,
    restored,
    kept,
    obeyed,
    braked,
)
IN_USE: tuple[Law, ...] = (
    in_use,
    owned_once,
    journaled,
    kept,
    obeyed,
)  # The laws for nodes where docker returns a wrong list


def whole(world: World) -> str:
    """No entry is unfinished, and the sandbox of each is complete, or gone, or has lost its address to another."""
    for entry in world.journal:
        if entry.unfinished:
            return f"entry {entry.name} is unfinished"
        mine = {
            file.ip
            for file in world.files
            if entry.container_id and file.content == entry.container_id
        }
        if mine and any(
            world.file(image.name) is None for image in entry.reservations if image.name not in mine
        ):
            return f"the sandbox {entry.container_id[:2]} is partly released"
    return ""


def clean(before: World, after: World) -> str:
    """Every leak is gone, if the runtime's list is complete, the API server is up to date, and the journal has room.

    Empty files stay, and what was restored: they are released only by name.
    """
    truthful = before.room >= len(unowned(before)) and all(
        not sandbox.hidden
        and (not sandbox.status or sandbox.listed)
        and (sandbox.container != "running" or sandbox.checkpoint or sandbox.record)
        for sandbox in before.sandboxes
    )  # fmt: skip
    held = {namespace.ip for namespace in before.pinned}
    by_name = {"", *Journal(after.journal).restored_sandboxes()}
    due = [file for file in unowned(before) if file.content not in by_name and file.ip not in held]
    if truthful and (left := [file for file in due if file in after.files]):
        return f"{left[0].ip} is still leaked after a cleaner has run to its end"
    return ""


def untouched(*names: str) -> Law:
    """These files are never removed."""

    def law(world: World) -> str:
        gone = [name for name in names if not any(file.ip == name for file in world.files)]
        return f"{gone[0]} was removed" if gone else ""

    return law


def at_most(removed: int, of: int) -> Law:
    """At most `removed` of the `of` files are removed."""

    def law(world: World) -> str:
        gone = of - len(world.files)
        return f"{gone} files were removed, and at most {removed} may be" if gone > removed else ""

    return law
