"""The kubelet refused a pod for a device that it did not have, and the pod stays Failed: nothing admits it again.

A kubelet admits pods before the device plugins have registered with it again. Who comes in between is refused with
`UnexpectedAdmissionError` (or `OutOf…`), also pods that had run. The scheduler does not see it, and may send more.

Means: the pod is Failed by the kubelet's refusal. The message says why, by the times of the refusal and of the
plugin's registration; `unverified` where they do not prove it. Five pods of one controller in ten minutes are a storm.
Do: when the devices are healthy again, delete the pod as any other (`kubectl delete pod`); never with --force, which
skips the CNI teardown and leaks its address. So that it does not come again: give the plugin the priority
system-node-critical, taint nodes until their devices are there, and run a kubelet >= 1.28 (1.27.6).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Final

from agent.checks.devices import rejections
from agent.model.assessment import Assessment
from agent.model.finding import Finding, Severity
from agent.model.rejections import RejectedPod
from agent.model.snapshot import Known

NAME = "rejected_pod"
SEVERITIES: Final = (Severity.WARNING,)

MANY: Final = 5
AT_ONCE: Final = timedelta(minutes=10)
NAMED: Final = 3
"""Pods of a storm that are named: the others are as these."""


def find(assessment: Assessment) -> Iterator[Finding]:
    refused = rejections.rejected_pods(assessment.snapshot)
    storms = _storms(refused)
    swept = {one for storm in storms for one in storm}

    for storm in storms:
        yield _storm(storm)
    for one in refused:
        if one not in swept:
            yield _single(one)
    # Said after what was seen: that they were refused is known without the plugins, and why is not.
    if not isinstance(assessment.snapshot.device_plugins, Known):
        assessment.snapshot.device_plugins.known()


def _single(one: RejectedPod) -> Finding:
    return Finding(
        detector=NAME,
        subject=f"pod {one.pod}",
        message=f"pod {one.pod} was refused{_for(one.resource)}: {one.why}; {one.do}",
        pod=one.pod,
        cause=one.cause,
        since=one.at,
        identity=(one.uid,),
        resource=one.resource,
        pod_outcome=one.pod_outcome,
        rejected_pods=(one,),
    )


def _storm(storm: Sequence[RejectedPod]) -> Finding:
    usual = _usual(storm)
    whose, resource = _whose(usual), usual.resource
    names = ", ".join(one.pod for one in storm[:NAMED])
    more = f" and {len(storm) - NAMED} more" if len(storm) > NAMED else ""
    return Finding(
        detector=NAME,
        subject=f"pods of {whose}",
        message=f"{len(storm)} pods of {whose} were refused{_for(resource)}, {names}{more}: {usual.why}; {usual.do}",
        cause=usual.cause,
        since=storm[0].at,
        resource=resource,
        pod_outcome=usual.pod_outcome,
        rejected_pods=tuple(storm),
    )


def _storms(refused: Iterable[RejectedPod]) -> list[tuple[RejectedPod, ...]]:
    """Return the pods of each controller that were refused with so many others of it in so short a time."""
    several: defaultdict[str, list[RejectedPod]] = defaultdict(list)
    for one in refused:
        if one.controller and one.at is not None:
            several[_whose(one)].append(one)
    storms = []
    for group in several.values():
        in_order = sorted(group, key=lambda one: (str(one.at), one.pod, one.uid))
        windows = (in_order[place : place + MANY] for place in range(len(in_order) - MANY + 1))
        close = {one for window in windows if _close(window) for one in window}
        if close:
            storms.append(tuple(one for one in in_order if one in close))
    return storms


def _close(window: Sequence[RejectedPod]) -> bool:
    first, last = window[0].at, window[-1].at
    return first is not None and last is not None and last - first <= AT_ONCE


def _usual(storm: Sequence[RejectedPod]) -> RejectedPod:
    """Return the first of those that most of them are like."""
    kinds = Counter((one.cause, one.pod_outcome) for one in storm)
    most = kinds.most_common(1)[0][0]
    return next(one for one in storm if (one.cause, one.pod_outcome) == most)


def _whose(one: RejectedPod) -> str:
    return f"{one.controller} in {one.pod.partition('/')[0]}"


def _for(resource: str) -> str:
    return f" for {resource}" if resource else " for a device"
