"""The kubelet's socket `kubelet.sock` was removed while it runs: no device plugin can register.

Plugins register through `/var/lib/kubelet/device-plugins/kubelet.sock`, which the kubelet creates
only when it starts. Somebody removed the file, as with `rm -rf /var/lib/kubelet/device-plugins/*`.
A plugin that is connected goes on working, until it restarts: then the kubelet has none of its
devices, and rejects pods that request one.

Means: the directory has no `kubelet.sock`, and it is that of the running kubelet. A snapshot saw
this kubelet's socket in it, or this kubelet wrote the checkpoint there, or it still listens on the
removed socket.
"""

from collections.abc import Iterator
from typing import Final

from agent.checks.detector import Advice, Noun, Step
from agent.checks.devices.kubelet_versions import DRAIN_FIRST
from agent.checks.devices.resources import resource_states
from agent.checks.devices.view import DeviceView
from agent.model.assessment import Assessment
from agent.model.devices import KUBELET_SOCKET
from agent.model.finding import Finding, Severity
from agent.model.text import format_time

NAME = "missing_kubelet_socket"
SEVERITIES: Final = (Severity.WARNING,)
NOUN: Final = Noun(
    "kubelet without its socket for device plugins",
    "kubelets without their sockets for device plugins",
    headline="no device plugin can register, because kubelet.sock was removed",
)
ADVICE: Final = Advice(
    steps=(
        Step(DRAIN_FIRST),
        Step(
            "Restart the kubelet (`systemctl restart kubelet`; with k3s and RKE2, their service), "
            "which creates the socket again."
        ),
        Step("With docker a restart can leak addresses: run `nodeleak scan` afterwards."),
        Step("A plugin that does not notice the restart needs a restart of its own pod."),
        Step("Then find out what removed the file."),
    ),
    runbook="Devices.md#nodeleakmissingkubeletsocket",
)


def find(assessment: Assessment) -> Iterator[Finding]:
    view = DeviceView.of(assessment.snapshot)
    if view.plugins.kubelet_socket is not None:
        return
    processes = assessment.snapshot.processes.known()
    if processes.kubelet is None or not view.is_of_running_kubelet:
        return
    missing = [state.resource for state in resource_states(view) if state.registered is False]
    message = (
        f"no device plugin can register: {KUBELET_SOCKET} was removed, and the kubelet, which has "
        f"been running since {format_time(processes.kubelet)}, creates it only when it starts"
    )
    if missing:
        message = f"{message}; not registered: {', '.join(missing)}"
    gone = view.kubelet_socket_gone
    yield Finding(NAME, KUBELET_SOCKET, message, since=gone.at if gone else None)
