"""The steps that release addresses: what to check first, the command, and what none can release."""

from collections.abc import Iterator
from shlex import join, quote
from typing import Final

from agent.checks.detector import Step
from agent.cleanup.plan import Batch, Blocked, Plan
from agent.exporters.release_commands import Release, count_addresses, format_wait
from agent.model.release import Reason
from agent.model.text import count_of, join_names

_REMEDIES: Final = {
    Reason.RUNTIME_UNORDERED: (
        "Upgrade it: containerd to 1.6.9 or later (or 1.5.15), CRI-O to 1.20 or later. Then scan "
        "again."
    ),
    Reason.HALTED: "`nodeleak clean` says what to do before `nodeleak resume` lets cleanup go on.",
    Reason.JOURNAL_UNWRITABLE: "Make --state-dir writable, with space left on its disk.",
    Reason.PLUGIN_AT_WORK: "It passes when that process ends. Then scan again.",
}
"""What ends a refusal that no option lifts."""


def release_steps(
    plan: Plan,
    release: Release,
    node: str,
    *,
    docker: bool,
    urgency: str = "",
    preview: bool = True,
) -> Iterator[Step]:
    """Yield for each command what to check first, then the command and what it releases.

    `urgency`: a sentence for the first command. `preview`: with the command that only lists.
    `docker`: whether the pods' runtime is docker.
    """
    known = "docker ps -aq --no-trunc" if docker else "crictl pods -q"
    for batch in plan.batches:
        yield from _checks(batch, release, node, known)
        show = (release.preview(node, batch),) if preview else ()
        commands = (*show, release.apply(node, batch))
        yield Step(f"{urgency}{_describe(batch, release, preview=preview)}:", commands)
        urgency = ""

        if release.by_job:
            yield Step(
                "Without the plugin or the DaemonSet, run the first lines of "
                "deploy/clean-one-node.yaml with:",
                (f"OPTIONS='{release.manifest_options(batch)}'",),
            )


def _describe(batch: Batch, release: Release, *, preview: bool) -> str:
    """Return what the command of a batch releases, when and where."""
    what = count_addresses(batch)
    if batch.by_name:
        what += " by name"
    text = f"See the list, then release {what}" if preview else f"Release {what}"

    if batch.wait:
        when = f"In {format_wait(batch.wait)} (`nodeleak explain {batch.waits_for}`)"
        text = f"{when}: {text[0].lower()}{text[1:]}"
    if release.probes:
        text += " (each is probed first, and kept if anything answers)"
    if release.by_job:
        text += ". This pod does not release: run this on your machine"
    return text


def _checks(batch: Batch, release: Release, node: str, known: str) -> Iterator[Step]:
    """Yield what to check before the options of a batch take a protection away.

    `known`: the command that lists the containers of the runtime.
    """
    if Reason.NETWORK_NOT_ALLOWED in {refusal.reason for refusal in batch.lifted}:
        names = ", ".join(sorted(batch.networks))
        yield Step(
            f"Check first that podman, nerdctl or another program does not use network {names}. "
            "`auto` leaves it out, because the runtime does not attach every pod to it. "
            f"{_named_pods(batch)}".rstrip()
        )

    for refusal in batch.lifted:
        if refusal.reason is Reason.IMPLAUSIBLE_SHARE:
            yield Step(
                f"{refusal.why}. The first command must list containers, the second must print 0:",
                _comparison(release, node, known),
            )

    if batch.by_name:
        yield from _checks_of_names(batch)


def _comparison(release: Release, node: str, known: str) -> tuple[str, str]:
    """Return what lists the runtime's containers, and what counts those that look leaked."""
    if release.in_pod:
        listing = join(["kubectl", "nodeleak", "clean", node, "--output=json"])
        known = f"ssh {quote(f'root@{node}')} {known}"
    else:
        listing = f"{release.preview(node, Batch(()))} --output=json"
    return f"{known} | tee /tmp/known", f"{listing} | grep -cFf /tmp/known"


def _checks_of_names(batch: Batch) -> Iterator[Step]:
    reasons = {refusal.reason for refusal in batch.lifted}
    empty = [request for request in batch.requests if not request.container_id]

    if Reason.OUTSIDE_RANGE in reasons:
        yield Step(
            "Check first that no other program uses the addresses that are in no known range: they "
            "belong to an earlier pod CIDR, or to somebody else."
        )

    if empty:
        names = join_names([ip for request in empty for ip in request.ips])
        yield Step(
            "Check first that nobody keeps these addresses free on purpose. Their files are empty, "
            f"which a crash leaves too: {names}."
        )

    # Each has a refusal of its own.
    unconfirmed = [each for each in batch.lifted if each.reason is Reason.NOT_CONFIRMED]
    if len(unconfirmed) > len(empty):
        yield Step(
            "Check first who restored an address after its release, and why: whoever has it may "
            "be visible to nobody here."
        )


def _named_pods(batch: Batch) -> str:
    """Say how many sandboxes are known to be those of pods; empty: none."""
    named = sum(bool(request.pod) for request in batch.requests)
    if not named:
        return ""
    sandboxes = count_of(len(batch.requests), "sandbox", "sandboxes")
    return f"Of these {sandboxes}, {named} had a pod."


def blocked_step(blocked: Blocked) -> Step:
    """Return what stands in the way of a release, and what ends it."""
    reason = blocked.refusal.reason
    if reason is Reason.SOURCE_UNAVAILABLE:
        return Step(
            "Restore what is unavailable (below): nothing is released before. Then scan again."
        )

    what = count_of(blocked.count, "address", "addresses")
    text = f"No command releases {what} now: {blocked.refusal.why}."
    if reason in _REMEDIES:
        return Step(f"{text} {_REMEDIES[reason]}")
    return Step(text, (f"nodeleak explain {reason.value}",))
