"""A healthy node, and addresses that leak when the runtime forgets its pods."""

import pytest

from tests.e2e.node import eventually
from tests.e2e.nodeleak import Report, release
from tests.wire import only_with

from .layouts import LAYOUTS
from .networks import configured
from .node import ModernNode

pytestmark = pytest.mark.e2e
_PODS = 4
_KIND = next(layout for layout in LAYOUTS if layout.name == "kind")


def test_a_healthy_node_has_no_findings(node: ModernNode) -> None:
    pods = node.pods(_PODS)
    report = node.scan()
    assert report.findings == []
    assert report.states == dict.fromkeys(pods, "in_use")


@pytest.mark.every_runtime
def test_lost_addresses_are_named_and_released(node: ModernNode) -> None:
    pods = node.pods(_PODS)
    node.leak("records")  # CRI-O repairs itself with libcni's cached results
    now = node.recreated(pods)

    def all_are_named() -> None:
        report = node.scan("--grace=0s", codes=(0, 1, 2))
        assert report.states == dict.fromkeys(pods, "leaked") | dict.fromkeys(now, "in_use")
        named = report.subjects("leaked_reservation").keys()
        assert named == {f"{node.network}/{ip}" for ip in pods}

    eventually(all_are_named)
    release(lambda: node.clean("--apply"), pods)
    assert node.reserved().keys() == now.keys()
    assert node.scan().findings == []


def test_a_runtime_that_is_stopped_or_restarts_makes_addresses_unknown_and_never_leaked(
    node: ModernNode,
) -> None:
    only_with(node.profile in {"containerd", "crio"}, "a runtime of one program")
    addresses = node.pods(_PODS)
    with node.stopped(node.profile):
        report = node.scan("--grace=0s", codes=(3,))
        assert set(report.states.values()) == {"unknown"}
        assert {"containers", "networks"} <= report.unavailable
        assert node.clean("--apply", codes=(3,)).verdicts == {}
    node.run("pkill", "-KILL", "-x", node.profile)
    for _ in range(20):
        report = node.scan("--grace=0s", "--confirm-after=1ms", "--api=off", codes=(0, 3))
        assert not {"leaked", "candidate"} & {*report.states.values()}
    eventually(lambda: _all_in_use(node))
    assert node.reserved().keys() == addresses.keys()


@pytest.mark.every_runtime
def test_cri_o_frees_at_its_start_what_libcni_remembers(node: ModernNode) -> None:
    only_with(node.profile == "crio", "CRI-O")
    pods = node.pods(_PODS)
    node.leak("wipe")
    now = node.recreated(pods)
    assert node.reserved().keys() == now.keys()
    assert node.scan().findings == []


def test_a_reboot_loses_run_and_keeps_var(node: ModernNode) -> None:
    pods = node.pods(_PODS)
    node.run("touch", "/run/marker", "/var/lib/cni/marker")
    node.reboot()
    assert node.run("sh", "-c", "ls /run/marker /var/lib/cni/marker; true").split() == [
        "/var/lib/cni/marker"
    ]
    (node.networks.parent / "marker").unlink()
    node.ready(pods.values())
    addresses = eventually(lambda: {node.address(name) for name in pods.values()})
    assert addresses <= node.reserved().keys()


def test_a_reboot_loses_reservations_that_lie_on_a_tmpfs(node: ModernNode) -> None:
    with configured(node, _KIND):
        names = node.ask_for(_PODS)
        node.ready(names)
        node.run("touch", f"{_KIND.data_dir}/marker")
        node.reboot()
        node.run("test", "!", "-e", f"{_KIND.data_dir}/marker")
        node.ready(names)
        report = eventually(lambda: _all_in_use(node))
        assert {finding["detector"] for finding in report.findings} <= {"exhausted_range"}, (
            report.findings
        )


def _all_in_use(node: ModernNode) -> Report:
    report = node.scan("--grace=0s", "--confirm-after=1ms", codes=(0, 3))
    assert list(report.states.values()) == ["in_use"] * _PODS, report.states
    return report
