"""The node's CNI configuration does not work: no file, one that does not parse, a missing plugin.

Without a usable configuration, the runtime makes no pod that needs an address, and the kubelet says
that the node is not ready. containerd loads nothing if the file that it reads first cannot be
parsed, even if another one is valid. CRI-O skips such a file, so that pods may get the network of
another file. A plugin that is configured and not installed stops every ADD and DEL, and so does
flannel's `subnet.env` if flannel's daemon has not written it.

Means: the runtime itself says that its network is not ready, or the files show what will fail.
Severity critical: pods have waited for a minute. Severity info: the node booted or registered less
than five minutes ago, and its CNI may not be up yet.
"""

from collections.abc import Iterator
from typing import Final

from agent.checks import node_network
from agent.checks.detector import Advice, Noun, Step
from agent.checks.kubelet_service import Distribution, distribution
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.remedy import Remedy
from agent.model.runtime import CONTAINERD
from agent.model.snapshot import Snapshot, known_or, require_available

NAME = "broken_cni_config"
SEVERITIES: Final = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)
NOUN: Final = Noun(
    "fault in the CNI configuration",
    "faults in the CNI configuration",
    critical_headline="pods get no network: fault in the CNI configuration",
)
ADVICE: Final = Advice(
    steps=(
        Step(
            "Change nothing else in the directory: pods that run need their network's file for "
            "their teardown. While a CNI plugin hangs, change nothing at all, or containerd from "
            "2.0.2 stops answering."
        ),
        Step("The runtime reads a changed directory by itself."),
    ),
    runbook="Networks.md#nodeleakbrokencniconfig",
)


def find(assessment: Assessment) -> Iterator[Finding]:
    snapshot = assessment.snapshot
    runtime = node_network.spelled(assessment.runtime.name)
    if reason := node_network.why_no_network(snapshot):
        yield _no_network(reason, runtime, snapshot)
        return
    # What follows is true only of a runtime that has a network.
    require_available(snapshot.runtime_status, snapshot.runtimes)
    yield from _next_failure(runtime, snapshot)
    yield from _no_subnet(snapshot)
    require_available(snapshot.cni_files)


def _no_network(reason: node_network.NoNetwork, runtime: str, snapshot: Snapshot) -> Finding:
    message = f"{runtime} has no network for pods: {reason.reason}"
    step = reason.step
    plugin = node_network.hanging_plugin(snapshot)
    if step and plugin:
        step = (
            f"end the CNI plugin {plugin.command} (process {plugin.pid}), which hangs, then {step}"
        )
    return _finding("the runtime", message, step, snapshot, may_come=reason.may_come)


def _next_failure(runtime: str, snapshot: Snapshot) -> Iterator[Finding]:
    """Yield a finding for a file that does no harm yet, or that makes the runtime use another."""
    files = known_or(snapshot.cni_files, None)
    if files is None or not files.files:
        return
    first = files.files[0]
    if first.problem and runtime != CONTAINERD:
        require_available(snapshot.networks)  # is another one configured?
    if skipped := node_network.first_file_skipped(snapshot):
        message = (
            f"{runtime} skips the first file of {files.directory} and uses {skipped.used.name} "
            f"(network {skipped.used.network}): {skipped.reason}"
        )
        step = "see why the pod of the CNI's DaemonSet does not run here, or repair it yourself"
        yield _warning(skipped.file, message, step)
        return
    if first.problem and runtime == CONTAINERD and snapshot.network_ready:
        message = (
            f"{first.name} {first.problem} (in {files.directory}): {runtime} runs with what it "
            "loaded before, and loads nothing when it reads the directory again"
        )
        yield _warning(first.name, message, "repair the file, or move it out of the directory")
    if plugins := node_network.missing_plugins(snapshot):
        network = f"network {', '.join(snapshot.network_names)}"
        message = f"{node_network.not_installed(plugins, network)}: every ADD and DEL fails"
        subject = f"plugin {', '.join(plugins)}"
        yield _finding(subject, message, node_network.INSTALL, snapshot, may_come=True)


def _no_subnet(snapshot: Snapshot) -> Iterator[Finding]:
    files = known_or(snapshot.cni_files, None)
    if files and files.subnet_env and files.subnet_env.problem:
        require_available(snapshot.networks)

    if subnet_env := node_network.missing_subnet_env(snapshot):
        message = f"{subnet_env.path} {subnet_env.problem}: flannel gives no pod an address"
        step = "see why flannel's pod does not run here, and do not write the file by hand"
        if distribution(snapshot) is Distribution.K3S:
            step = (
                "see why flannel, which is part of k3s, does not start: `journalctl -u 'k3s*' | "
                "grep -i flannel`; do not write the file by hand"
            )

        node = known_or(snapshot.node, None)
        if node is not None and not node.pod_cidrs:
            message += (
                "; the Node has no pod CIDR, without which flannel does not start, unless it "
                "keeps its subnets in etcd"
            )
            step = (
                "see in the log of kube-controller-manager why the Node gets no pod CIDR: its "
                "`--cluster-cidr` may be used up, or `--allocate-node-cidrs` is not set"
            )
        yield _finding(subnet_env.path, message, step, snapshot, may_come=True)


def _finding(
    subject: str, message: str, step: str, snapshot: Snapshot, *, may_come: bool
) -> Finding:
    """Return a finding of what stops new pods now."""
    waiting = node_network.waiting(snapshot)
    severity = Severity.CRITICAL if waiting else Severity.WARNING
    is_starting = may_come and node_network.is_young(snapshot)
    if is_starting:
        severity = Severity.INFO
        step = "wait a few minutes: the node is new, and its CNI may not be up yet"
    if waiting:
        message = f"{message}; {waiting}"
    return Finding(NAME, subject, message, severity=severity, steps=_sentence(step))


def _warning(subject: str, message: str, step: str) -> Finding:
    return Finding(NAME, subject, message, steps=_sentence(step))


def _sentence(step: str) -> tuple[Remedy, ...]:
    """Return a clause as a step; none if it is empty."""
    return (Remedy(f"{step[0].upper()}{step[1:]}."),) if step else ()
