"""A CNI plugin hangs: its pod waits for it, and other pods may wait for a lock that it has.

host-local takes a lock for each network, and waits for it without an end. One process that does not
end, as on a disk or a server that does not answer, then stops every ADD and DEL of the network. The
runtime ends a plugin after minutes, but not what the plugin has started.

Means: a CNI plugin has been running for a minute or more, or a FIFO is in the directory of a
network: host-local opens each file of it, and waits forever for whoever writes to a FIFO. Severity
critical: a plugin has been running for five minutes, pods wait, and none with a network of its own
has started meanwhile.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.checks.waiting_pods import WAITS_AFTER, unstarted_pods
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.snapshot import (
    DEFAULT_DATA_DIR,
    EntryKind,
    NetworkStore,
    NotRequested,
    PluginProcess,
    Snapshot,
    known_or,
)
from agent.model.text import count_of, format_age, format_time, join_names

NAME = "hanging_plugin"
SEVERITIES: Final = (Severity.WARNING, Severity.CRITICAL)
NOUN: Final = Noun(
    "CNI plugin that hangs",
    "CNI plugins that hang",
    headline="a CNI plugin hangs",
    critical_headline="a CNI plugin hangs, and no pod starts",
)
_LOCK: Final = "lock"
_PROCESS: Final = "process"
_FIFO: Final = "fifo"
ADVICE: Final = Advice(
    steps=(
        Step(
            "If a FIFO is in the directory of a network, remove it with the command above, which "
            "also ends the wait of the plugin that has opened it. Find out who has made it.",
            kind=_FIFO,
        ),
        Step(
            "See what the oldest process waits for, and repair that:",
            ("cat /proc/PID/stack",),
            kind=_PROCESS,
        ),
        Step(
            "If host-local waits for its lock, the command above names the process that holds the "
            "lock, and so does `/proc/locks`. End that process only if it never goes on.",
            kind=_LOCK,
        ),
        Step(
            "Leave /etc/cni/net.d alone meanwhile: containerd since 2.0.2 waits for all plugins "
            "when it loads a changed configuration."
        ),
    ),
    runbook="FailingPlugin.md#nodeleakhangingplugin",
)

PLUGIN_TIMEOUT: Final = timedelta(minutes=1)
"""No plugin that works takes longer."""
_NO_POD_STARTS: Final = timedelta(minutes=5)
_HOST_LOCAL: Final = "host-local"
_SUBJECT: Final = "plugin processes"


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    fifos = tuple(_fifos(snapshot))
    yield from fifos

    processes = snapshot.processes.known()
    latest = snapshot.taken_at - PLUGIN_TIMEOUT
    hanging = [plugin for plugin in processes.plugins if plugin.started <= latest]
    if not hanging:
        return
    hanging.sort(key=lambda plugin: (plugin.started, plugin.pid))

    oldest = hanging[0]
    lock = "" if fifos else _lock(hanging, snapshot)
    yield Finding(
        NAME,
        _SUBJECT,
        f"{_processes(hanging, snapshot)}{lock}",
        severity=Severity.CRITICAL if _no_pod_starts(oldest, assessment) else Severity.WARNING,
        since=oldest.started,
        kinds=(_PROCESS, _LOCK) if lock else (_PROCESS,),
    )


def _fifos(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield each FIFO in the directory of a network that pods use."""
    for store in snapshot.reservations:
        if isinstance(store.reading, NotRequested):
            continue
        for entry in store.unrecognized:
            if entry.kind is EntryKind.FIFO:
                path = quote(f"{_directory(store)}/{entry.name}")
                yield Finding(
                    NAME,
                    f"{store.network}/{entry.name}",
                    f"{path} is a FIFO: host-local opens it in each ADD and DEL of "
                    f"{store.network}, and waits forever: remove it with "
                    f"`(exec 3<>{path}; rm {path})`",
                    network=store.network,
                    kinds=(_FIFO,),
                )


def _directory(store: NetworkStore) -> str:
    return store.directory if store.data_dir else f"{DEFAULT_DATA_DIR}/{store.network}"


def _processes(hanging: Sequence[PluginProcess], snapshot: Snapshot) -> str:
    """Describe the processes, the oldest first."""
    oldest = hanging[0]
    age = format_age(snapshot.taken_at - oldest.started)
    running = (
        f"CNI plugin {oldest.command} (process {oldest.pid}) has been running for {age}, since "
        f"{format_time(oldest.started)}"
    )

    # A plugin runs until those end that it has started, such as host-local.
    pids = {plugin.pid for plugin in hanging}
    others = Counter(plugin.command for plugin in hanging[1:] if plugin.parent not in pids)
    if not others:
        return f"{running}: new pods may wait for it"
    numbers = ", ".join(f"{number} of {command}" for command, number in others.most_common())
    more = count_of(others.total(), "more plugin process", "more plugin processes")
    return f"{running}; {more} may wait for it ({numbers})"


def _lock(hanging: Sequence[PluginProcess], snapshot: Snapshot) -> str:
    """Return how to see who has the lock of host-local; empty: it does not wait for one."""
    oldest = next((plugin for plugin in hanging if plugin.command == _HOST_LOCAL), None)
    # The directory itself is the lock of host-local before 0.7.
    directories = [
        _directory(store)
        for store in snapshot.reservations
        if not isinstance(store.reading, NotRequested)
    ]
    if oldest is None or not directories:
        return ""

    paths = " ".join(f"{directory}/lock {directory}" for directory in directories)
    names = join_names([f"{directory}/lock" for directory in directories])
    return (
        f"; the oldest host-local is process {oldest.pid}, and the lock is {names}: see who holds "
        f"it with `fuser -v {paths}`"
    )


def _no_pod_starts(oldest: PluginProcess, assessment: Assessment) -> bool:
    """Return whether pods wait, and none has got a network since the oldest plugin started."""
    snapshot = assessment.snapshot
    lasted = snapshot.taken_at - oldest.started
    waits = (wait for wait in unstarted_pods(snapshot) if wait.pod.networked)
    longest = max((wait.time for wait in waits), default=None)
    if lasted < _NO_POD_STARTS or longest is None:
        return False

    # The first pod that waits was to start then.
    since = max(oldest.started, snapshot.taken_at - longest + WAITS_AFTER)
    return not any(created > since for created in _with_network(assessment))


def _with_network(assessment: Assessment) -> Iterator[datetime]:
    """Yield when each running sandbox of a pod with an address of its own was created."""
    with_address = {
        pod.uid for pod in known_or(assessment.snapshot.pods, ()) if pod.networked and pod.ips
    }
    for sandbox in assessment.index.running_sandboxes.values():
        if sandbox.pod_uid in with_address:
            yield datetime.fromtimestamp(sandbox.created, UTC)
