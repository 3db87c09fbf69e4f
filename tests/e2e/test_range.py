"""An address in use without a reservation."""

import pytest

from .node import STORE, Cluster, Pods, eventually, moved_away
from .nodeleak import Nodeleak

pytestmark = pytest.mark.e2e


def test_a_live_pod_whose_file_was_removed_has_an_unreserved_address(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    ip, pod = next(iter(pods(2).items()))
    with moved_away(STORE / ip):
        # The API server may list the pod as it was a moment ago, without its address.
        scan = eventually(lambda: nodeleak.scan("--exit-code", codes=[1]))
        with nodeleak.running("--interval=500ms", "--confirm-after=1s") as daemon:
            eventually(lambda: len(daemon.opened("unreserved_pod_ip")), equal=1)
            found = {"detector": "unreserved_pod_ip", "severity": "critical", "phase": "confirmed"}
            eventually(lambda: daemon.metrics().get("findings", **found), equal=1)
            eventually(
                lambda: (
                    "UnreservedPodIp" in cluster.kubectl("describe", "pod", pod.partition("/")[2])
                ),
                equal=True,
            )
    assert ip not in scan.states
    (finding,) = scan.findings
    assert (finding["detector"], finding["pod"]) == ("unreserved_pod_ip", pod)
    assert ip in finding["message"]
    assert nodeleak.scan("--exit-code").findings == []
