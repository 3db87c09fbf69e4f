"""The stored fields of a pod, and their memory."""

from datetime import UTC, datetime
from typing import Any

import pytest

from agent.model.rejections import RejectionKind
from agent.model.snapshot import PortMapping
from agent.sources.kube.pods import parse_pod

KVM, GPU = "devices.kubevirt.io/kvm", "nvidia.com/gpu"


def pod(
    *,
    metadata: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
) -> dict[str, Any]:
    named = {"name": "web-0", "namespace": "shop", "uid": "u-1", **(metadata or {})}
    return {"metadata": named, "spec": spec or {}, "status": status or {"phase": "Running"}}


def asking(limits: Any, requests: Any = None) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": limits, "requests": requests}}


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)


def started_at(second: int) -> dict[str, Any]:
    return {"startedAt": f"2026-01-01T00:00:{second:02}Z"}


def test_a_pod_without_devices_requests_none() -> None:
    parsed = parse_pod(pod())
    assert (parsed.created, parsed.started, parsed.deletion, parsed.rejection) == (None, None, None, None)
    assert (parsed.wants, parsed.wants_in_init, parsed.controller, parsed.finalizers) == ((), (), "", ())


def test_a_static_pod_has_the_uid_of_the_kubelet_and_not_of_its_mirror_pod() -> None:
    mirror = {"kubernetes.io/config.hash": "own", "kubernetes.io/config.mirror": "own"}
    static = parse_pod(pod(metadata={"annotations": mirror}))
    other = parse_pod(pod(metadata={"annotations": {"kubernetes.io/config.hash": "own"}}))
    assert (static.uid, static.static, other.uid, other.static) == ("own", True, "u-1", False)


def test_a_pod_has_the_host_ports_of_all_its_containers() -> None:
    web = {"name": "web", "ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 9, "protocol": "UDP"}]}
    dns = {"name": "dns", "ports": [{"containerPort": 53, "hostPort": 53, "protocol": "UDP"}]}
    spec = {"initContainers": [dns, {"name": "none"}], "containers": [web, web]}
    assert parse_pod(pod(spec=spec)).host_ports == (PortMapping(53, "udp"), PortMapping(8080, "tcp"))
    assert parse_pod(pod(spec=spec, status={"phase": "Failed"})).host_ports == (
        PortMapping(53, "udp"), PortMapping(8080, "tcp"),
    ), "the rules of a terminated pod may remain"  # fmt: skip
    assert parse_pod(pod(spec=spec | {"hostNetwork": True})).host_ports == (), "they are not forwarded"
    assert parse_pod(pod()).host_ports == ()
    with pytest.raises(TypeError):
        parse_pod(pod(spec={"containers": [{"ports": [{"hostPort": "http"}]}]}))


def test_a_pod_requests_the_devices_of_all_its_containers() -> None:
    spec = {
        "containers": [asking({"cpu": "2", GPU: "1"}), asking(None, {"a.b/c": "3"}), {"name": "d"}, asking({GPU: "1"})],
        "initContainers": [asking({KVM: "1"}), {"name": "e", "resources": None}],
    }
    parsed = parse_pod(pod(spec=spec))
    assert parsed.wants == ("a.b/c", KVM, GPU)
    assert parsed.wants_in_init == (KVM,)


def test_what_no_device_plugin_offers_and_requests_for_none_are_ignored() -> None:
    for resource in (
        "cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "pods", "requests.nvidia.com/gpu",
        "kubernetes.io/batch-cpu", "deviceclass.resource.kubernetes.io/gpu", "x.kubernetes.io/y",
        "attachable-volumes-aws-ebs", "", "/", "a/", "/b", "a/b/c", "a b/c", "\u00e9/x", f"{'a' * 300}/b",
        f"a/{'b' * 64}",
    ):  # fmt: skip
        assert parse_pod(pod(spec={"containers": [asking({resource: "1"})]})).wants == ()
    for amount, wants in (("0", ()), (0, ()), ("1", (GPU,)), ("1k", (GPU,)), (2, (GPU,))):
        assert parse_pod(pod(spec={"containers": [asking({GPU: amount})]})).wants == wants


def test_a_pod_starts_with_its_first_container() -> None:
    cases: list[tuple[list[dict[str, Any]], int | None]] = [
        ([{"state": {"running": started_at(9)}}], 9),
        ([{"state": {"running": started_at(9)}}, {"state": {"running": started_at(7)}}], 7),
        ([{"state": {"running": started_at(9)}, "lastState": {"terminated": started_at(3)}}], 3),
        ([{"state": {"terminated": started_at(5)}, "lastState": {}}], 5),
        ([{"state": {"waiting": {"reason": "ContainerCreating"}}}], None),
        ([{"state": {"terminated": {"reason": "ContainerStatusUnknown", "startedAt": None}}}], None),
        ([{}, {"state": None, "lastState": None}], None),
        ([], None),
    ]
    for containers, expected in cases:
        for kind in ("containerStatuses", "initContainerStatuses"):
            parsed = parse_pod(pod(status={"phase": "Running", kind: containers}))
            assert parsed.started == (None if expected is None else at(expected))


def test_an_init_container_starts_first() -> None:
    status = {
        "initContainerStatuses": [{"state": {"terminated": started_at(2)}}],
        "containerStatuses": [{"state": {"running": started_at(4)}}],
    }
    assert parse_pod(pod(status=status)).started == at(2)


def owner(kind: str, name: str, *, controller: bool | None = True) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "name": name, "uid": "o", "controller": controller}


def test_a_pod_names_its_controller() -> None:
    for owners, expected in (
        ([owner("ReplicaSet", "web-6d5f")], "ReplicaSet/web-6d5f"),
        ([owner("VirtualMachine", "a", controller=None), owner("Job", "b")], "Job/b"),
        ([owner("ConfigMap", "a", controller=False)], ""),
        ([owner("Node", "worker-1")], ""),  # of a mirror pod
        ([], ""),
        (None, ""),
    ):
        assert parse_pod(pod(metadata={"ownerReferences": owners})).controller == expected


def test_a_terminating_pod_has_its_deadline_and_finalizers() -> None:
    metadata = {
        "creationTimestamp": "2026-01-01T00:00:01Z",
        "deletionTimestamp": "2026-01-01T00:00:31Z",
        "finalizers": ["batch.kubernetes.io/job-tracking"],
    }
    parsed = parse_pod(pod(metadata=metadata))
    assert (parsed.deleting, parsed.created, parsed.deletion) == (True, at(1), at(31))
    assert parsed.finalizers == ("batch.kubernetes.io/job-tracking",)


def test_a_rejected_pod_has_its_reason() -> None:
    message = "Pod was rejected: Allocate failed due to rpc error: code = Unavailable desc = transport is closing"
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
    fields = [{"manager": "kubelet", "subresource": "status", "time": "2026-01-01T00:00:20Z"}]
    parsed = parse_pod(pod(metadata={"managedFields": fields}, spec={"containers": [asking({KVM: 1})]}, status=status))
    assert parsed.rejection is not None
    assert (parsed.rejection.refused, parsed.rejection.resource) == (RejectionKind.PLUGIN_GONE, KVM)
    assert (parsed.rejection.at, parsed.rejection.by_api) == (at(20), True)


def test_a_pod_rejected_after_it_ran_is_not_dated_by_its_first_start() -> None:
    status = {
        "phase": "Failed",
        "reason": f"OutOf{KVM}",
        "startTime": "2026-01-01T00:00:01Z",
        "containerStatuses": [{"state": {"terminated": started_at(2)}}],
    }
    parsed = parse_pod(pod(status=status))
    assert parsed.started == at(2)
    assert parsed.rejection is not None
    assert parsed.rejection.at is None


def test_an_invalid_time_is_ignored_and_the_pod_is_read() -> None:
    for invalid in ("yesterday", "2026-01-01T00:00:00", 7, "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"):
        containers = [{"state": {"running": {"startedAt": invalid}}}]
        item = pod(metadata={"creationTimestamp": invalid}, status={"containerStatuses": containers})
        assert (parse_pod(item).created, parse_pod(item).started, parse_pod(item).name) == (None, None, "shop/web-0")


def test_pods_of_every_api_version_are_parsed() -> None:
    both = {"phase": "Running", "podIP": "10.244.1.7", "podIPs": [{"ip": "10.244.1.7"}, {"ip": "fd00::7"}]}
    addresses = ("10.244.1.7", "fd00::7")
    for item, expected in (
        ({"status": {"podIP": "10.244.1.7"}}, ("", ("10.244.1.7",), False, False)),  # before 1.16
        ({}, ("", (), False, False)),
        ({"status": None, "spec": None}, ("", (), False, False)),
        ({"status": both, "spec": {"hostNetwork": True}}, ("Running", addresses, True, False)),
        ({"status": {"phase": "Pending", "podIPs": [{}]}}, ("Pending", (), False, False)),
    ):
        parsed = parse_pod({"metadata": {"name": "web-0", "namespace": "shop", "uid": "u-1"}, **item})
        assert (parsed.phase, parsed.ips, parsed.host_network, parsed.deleting) == expected
    for invalid in ({"phase": ["Running"]}, {"podIPs": [{"ip": ["x"]}]}, {"podIP": "10.0.0.256"}, {"podIPs": 7}, "x"):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            parse_pod({"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "status": invalid})


# Volumes


def volumes_of(*volumes: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    parsed = parse_pod(pod(spec={"volumes": [*volumes]}))
    return parsed.claims, parsed.volumes


def test_a_pod_has_named_and_ephemeral_claims() -> None:
    by_name = {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}}
    own = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}
    assert volumes_of(by_name, own) == (("data-web-0", "web-0-scratch"), ())


def test_a_volume_without_a_claim_is_named_as_in_the_node_status() -> None:
    for kind, described, volume in (
        ("awsElasticBlockStore", {"volumeID": "aws://a/vol-1"}, "kubernetes.io/aws-ebs/aws://a/vol-1"),
        ("azureDisk", {"diskName": "d", "diskURI": "/subscriptions/d"}, "kubernetes.io/azure-disk//subscriptions/d"),
        ("cinder", {"volumeID": "c-1"}, "kubernetes.io/cinder/c-1"),
        ("gcePersistentDisk", {"pdName": "pd-1"}, "kubernetes.io/gce-pd/pd-1"),
        ("vsphereVolume", {"volumePath": "[s] d.vmdk"}, "kubernetes.io/vsphere-volume/[s] d.vmdk"),
        ("rbd", {"image": "i", "monitors": []}, "kubernetes.io/rbd/rbd:i"),
        ("rbd", {"image": "i", "pool": "p"}, "kubernetes.io/rbd/p:i"),
        ("iscsi", {"targetPortal": "10.0.0.9:3260", "iqn": "q", "lun": 0}, "kubernetes.io/iscsi/10.0.0.9:3260:q:0"),
        ("flexVolume", {"driver": "nodeleak/disk"}, "nodeleak/disk/data"),
    ):
        assert volumes_of({"name": "data", kind: described}) == ((), (volume,))
    for other in (
        {"name": "a", "secret": {"secretName": "s"}}, {"name": "a", "csi": {"driver": "d"}},
        {"name": "a", "gcePersistentDisk": {}}, {"name": "a", "cinder": 7}, {"name": "a"}, {}, 7, None, "x",
        {"persistentVolumeClaim": 7},
    ):  # fmt: skip
        assert volumes_of(other) == ((), ())


def test_a_pod_waits_since_it_was_scheduled() -> None:
    given = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:07Z"}
    assert parse_pod(pod(status={"phase": "Pending", "conditions": [{"type": "Ready"}, given]})).scheduled == at(7)
    # A pod whose sandbox was lost waits for another one in phase Running.
    assert parse_pod(pod(status={"phase": "Running", "conditions": [given]})).scheduled == at(7)
    assert parse_pod(pod(status={"phase": "Running", "conditions": [given], "podIP": "10.88.0.2"})).scheduled is None
    for invalid in (None, [], 7, [7], [given | {"status": "False"}], [given | {"lastTransitionTime": 7}]):
        assert parse_pod(pod(status={"phase": "Pending", "conditions": invalid})).scheduled is None


def test_a_terminated_pod_has_neither_addresses_nor_volumes() -> None:
    spec = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "db"}}]}
    for phase in ("Running", "Pending", "Succeeded", "Failed"):
        parsed = parse_pod(pod(spec=spec, status={"phase": phase, "podIP": "10.0.0.7"}))
        assert (parsed.ips, parsed.claims) == ((("10.0.0.7",), ("db",)) if parsed.live else ((), ()))
