"""What is read of pods and of the Node object."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agent.model.registration import Taint
from agent.model.snapshot import NodeDevices, PortMapping, Unavailable
from agent.sources.kube.node_object import own_node
from tests.sources.kube.connections import sources_of_command
from tests.sources.kube.old_server import listed
from tests.sources.reading import read
from tests.wire import FakeServer, http, kubeconfig

KVM, GPU = "devices.kubevirt.io/kvm", "nvidia.com/gpu"
Objects = Callable[..., Any]


def check(objects: Objects, field: str, cases: list[tuple[Any, Any]]) -> None:
    """Check one field of objects, each given with what is expected."""
    read = objects(*(item for item, _ in cases))
    assert [getattr(found, field) for found in read] == [expected for _, expected in cases]


def asking(limits: Any, requests: Any = None) -> dict[str, Any]:
    return {"name": "c", "resources": {"limits": limits, "requests": requests}}


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)


def started_at(second: int) -> dict[str, Any]:
    return {"startedAt": f"2026-01-01T00:00:{second:02}Z"}


def test_a_pod_names_its_controller_and_a_static_pod_has_the_uid_of_the_kubelet(
    pods: Objects,
) -> None:
    mirror = {"kubernetes.io/config.hash": "own", "kubernetes.io/config.mirror": "own"}
    other = {"kubernetes.io/config.hash": "own"}
    read = pods({"metadata": {"annotations": mirror}}, {"metadata": {"annotations": other}})
    assert [(pod.uid, pod.static) for pod in read] == [("own", True), ("u-1", False)]

    def owner(kind: str, name: str, controller: bool | None) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": kind,
            "name": name,
            "uid": "o",
            "controller": controller,
        }

    cases: list[tuple[Any, str]] = [
        ([owner("ReplicaSet", "web-6d5f", True)], "ReplicaSet/web-6d5f"),
        ([owner("VirtualMachine", "a", None), owner("Job", "b", True)], "Job/b"),
        ([owner("ConfigMap", "a", False)], ""),
        ([owner("Node", "worker-1", True)], ""),  # of a mirror pod
        ([], ""),
        (None, ""),
    ]
    check(
        pods,
        "controller",
        [({"metadata": {"ownerReferences": owners}}, name) for owners, name in cases],
    )


def test_a_pod_has_the_devices_and_host_ports_of_all_its_containers(pods: Objects) -> None:
    spec = {
        "containers": [
            asking({"cpu": "2", GPU: "1"}),
            asking(None, {"a.b/c": "3"}),
            {"name": "d"},
            asking({GPU: "1"}),
        ],
        "initContainers": [asking({KVM: "1"}), {"name": "e", "resources": None}],
    }
    check(pods, "wants", [({"spec": spec}, ("a.b/c", KVM, GPU))])
    check(pods, "wants_in_init", [({"spec": spec}, (KVM,))])
    sidecar = {"initContainers": [{**asking({KVM: "1"}), "restartPolicy": "Always"}]}
    check(pods, "wants", [({"spec": sidecar}, (KVM,))])
    check(pods, "wants_in_init", [({"spec": sidecar}, ())])
    mapping = {"containerName": "a", "resourceName": GPU, "requestName": "r0"}
    by_dra = {"extendedResourceClaimStatus": {"requestMappings": [mapping, "odd"]}}
    check(pods, "dra_resources", [
        ({"status": by_dra}, (GPU,)),
        ({"status": {"extendedResourceClaimStatus": "odd"}}, ()),
    ])  # fmt: skip
    check(pods, "has_resource_claims", [
        ({"status": by_dra}, True),
        ({"spec": {"resourceClaims": [{"name": "gpu"}]}}, True),
        ({}, False),
    ])  # fmt: skip
    others = (
        "cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "pods", "requests.nvidia.com/gpu",
        "kubernetes.io/batch-cpu", "deviceclass.resource.kubernetes.io/gpu", "x.kubernetes.io/y",
        "attachable-volumes-aws-ebs", "", "/", "a/", "/b", "a/b/c", "a b/c", "\u00e9/x", f"{'a' * 300}/b",
        f"a/{'b' * 64}",
    )  # fmt: skip
    amounts = {"0": (), 0: (), "1": (GPU,), "1k": (GPU,), 2: (GPU,)}
    cases = [({other: "1"}, ()) for other in others] + [
        ({GPU: amount}, wants) for amount, wants in amounts.items()
    ]
    check(
        pods,
        "wants",
        [({"spec": {"containers": [asking(limits)]}}, wants) for limits, wants in cases],
    )
    web = {
        "name": "web",
        "ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 9, "protocol": "UDP"}],
    }
    dns = {"name": "dns", "ports": [{"containerPort": 53, "hostPort": 53, "protocol": "UDP"}]}
    ported = {"initContainers": [dns, {"name": "none"}], "containers": [web, web]}
    ports = (PortMapping(53, "udp"), PortMapping(8080, "tcp"))
    check(pods, "host_ports", [
        ({"spec": ported}, ports),
        ({"spec": ported, "status": {"phase": "Failed"}}, ports),  # its rules may remain
        ({"spec": ported | {"hostNetwork": True}}, ()),  # they are not forwarded
        ({}, ()),
    ])  # fmt: skip


def test_a_pod_starts_with_its_first_container_and_waits_since_it_was_scheduled(
    pods: Objects,
) -> None:
    cases: list[tuple[list[dict[str, Any]], datetime | None]] = [
        ([{"state": {"running": started_at(9)}}], at(9)),
        ([{"state": {"running": started_at(9)}}, {"state": {"running": started_at(7)}}], at(7)),
        (
            [{"state": {"running": started_at(9)}, "lastState": {"terminated": started_at(3)}}],
            at(3),
        ),
        ([{"state": {"terminated": started_at(5)}, "lastState": {}}], at(5)),
        ([{"state": {"waiting": {"reason": "ContainerCreating"}}}], None),
        (
            [{"state": {"terminated": {"reason": "ContainerStatusUnknown", "startedAt": None}}}],
            None,
        ),
        ([{}, {"state": None, "lastState": None}], None),
        ([], None),
    ]
    for kind in ("containerStatuses", "initContainerStatuses"):
        check(
            pods,
            "started",
            [({"status": {kind: containers}}, first) for containers, first in cases],
        )
        check(
            pods,
            "waiting",
            [({"status": {kind: found}}, "waiting" in str(found)) for found, _ in cases],
        )
    init, later = (
        [{"state": {"terminated": started_at(2)}}],
        [{"state": {"running": started_at(4)}}],
    )
    check(
        pods,
        "started",
        [({"status": {"initContainerStatuses": init, "containerStatuses": later}}, at(2))],
    )
    given = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:07Z"}
    odd: list[Any] = [
        None,
        [],
        7,
        [7],
        [given | {"status": "False"}],
        [given | {"lastTransitionTime": 7}],
    ]
    check(pods, "scheduled", [
        ({"status": {"phase": "Pending", "conditions": [{"type": "Ready"}, given]}}, at(7)),
        # A pod whose sandbox was lost waits for another one in phase Running.
        ({"status": {"phase": "Running", "conditions": [given]}}, at(7)),
        ({"status": {"phase": "Running", "conditions": [given], "podIP": "10.88.0.2"}}, None),
        # In the node's network, it has an address before it has a sandbox.
        *(
            (
                {
                    "spec": {"hostNetwork": True},
                    "status": {"phase": phase, "conditions": [given], "podIP": "192.168.7.11"},
                },
                expected,
            )
            for phase, expected in (("Pending", at(7)), ("Running", None))
        ),
        *(({"status": {"phase": "Pending", "conditions": conditions}}, None) for conditions in odd),
    ])  # fmt: skip


def test_a_terminating_pod_has_its_deadline_and_finalizers_and_an_invalid_time_is_ignored(
    pods: Objects,
) -> None:
    times = {
        "creationTimestamp": "2026-01-01T00:00:01Z",
        "deletionTimestamp": "2026-01-01T00:00:31Z",
    }
    pod, other = pods(
        {"metadata": times | {"finalizers": ["batch.kubernetes.io/job-tracking"]}}, {}
    )
    assert (pod.deleting, pod.created, pod.deletion) == (True, at(1), at(31))
    assert pod.finalizers == ("batch.kubernetes.io/job-tracking",)
    assert (other.deleting, other.created, other.deletion, other.finalizers) == (
        False,
        None,
        None,
        (),
    )
    for time in (
        "yesterday",
        "2026-01-01T00:00:00",
        7,
        "9999-12-31T23:59:59Z",
        "0001-01-01T00:00:00Z",
    ):
        containers = [{"state": {"running": {"startedAt": time}}}]
        (pod,) = pods(
            {"metadata": {"creationTimestamp": time}, "status": {"containerStatuses": containers}}
        )
        assert (pod.created, pod.started, pod.name) == (None, None, "shop/web-0")


def test_addresses_of_every_version_are_read_and_a_terminated_pod_has_neither_these_nor_volumes(
    pods: Objects,
) -> None:
    both = {
        "phase": "Running",
        "podIP": "10.244.1.7",
        "podIPs": [{"ip": "10.244.1.7"}, {"ip": "fd00::7"}],
    }
    check(pods, "ips", [
        ({"status": {"podIP": "10.244.1.7"}}, ("10.244.1.7",)),  # before 1.16
        ({"status": both, "spec": {"hostNetwork": True}}, ("10.244.1.7", "fd00::7")),
        ({"status": {"phase": "Pending", "podIPs": [{}]}}, ()),
        ({"status": None, "spec": None}, ()),
    ])  # fmt: skip
    spec = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "db"}}]}
    phases = ("Running", "Pending", "Succeeded", "Failed")
    read = pods(
        *({"spec": spec, "status": {"phase": phase, "podIP": "10.0.0.7"}} for phase in phases)
    )
    kept, dropped = (("10.0.0.7",), ("db",)), ((), ())
    assert [(pod.ips, pod.claims) for pod in read] == [kept, kept, dropped, dropped]
    check(
        pods, "phase", [({"status": None}, ""), ({"status": {}}, ""), ({"status": both}, "Running")]
    )
    check(
        pods,
        "host_network",
        [({"spec": {"hostNetwork": True}}, True), ({"spec": None}, False), ({}, False)],
    )


def test_a_pod_of_another_form_makes_the_list_unavailable(tmp_path: Path) -> None:
    odd: list[Any] = [
        {"phase": ["Running"]},
        {"podIPs": [{"ip": ["x"]}]},
        {"podIP": "10.0.0.256"},
        {"podIPs": 7},
        "x",
    ]
    port: dict[str, Any] = {"spec": {"containers": [{"ports": [{"hostPort": "http"}]}]}}
    for given in (*({"status": status} for status in odd), port):
        answer = http(
            listed("PodList", 40, {"metadata": {"name": "a", "namespace": "b", "uid": "c"}} | given)
        )
        with FakeServer(lambda _: [answer]) as server:  # noqa: B023 (within the loop)
            found = read(
                sources_of_command(kubeconfig(tmp_path / "kubeconfig", server.url)), "pods"
            )
        assert isinstance(found, Unavailable)
        assert found.why.startswith("API server: incomplete object (")


# Volumes


def test_a_pod_has_named_and_ephemeral_claims_and_volumes_as_the_node_status_names_them(
    pods: Objects,
) -> None:
    by_name = {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}}
    own = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}
    (pod,) = pods({"spec": {"volumes": [by_name, own, {"name": "a"}, {}, 7, None, "x"]}})
    assert (pod.claims, pod.volumes) == (("data-web-0", "web-0-scratch"), ())
    cases: list[tuple[Any, str]] = [
        (
            {"awsElasticBlockStore": {"volumeID": "aws://a/vol-1"}},
            "kubernetes.io/aws-ebs/aws://a/vol-1",
        ),
        (
            {"azureDisk": {"diskName": "d", "diskURI": "/disks/d"}},
            "kubernetes.io/azure-disk//disks/d",
        ),
        ({"cinder": {"volumeID": "c-1"}}, "kubernetes.io/cinder/c-1"),
        ({"gcePersistentDisk": {"pdName": "pd-1"}}, "kubernetes.io/gce-pd/pd-1"),
        (
            {"vsphereVolume": {"volumePath": "[s] d.vmdk"}},
            "kubernetes.io/vsphere-volume/[s] d.vmdk",
        ),
        ({"rbd": {"image": "i", "monitors": []}}, "kubernetes.io/rbd/rbd:i"),
        ({"rbd": {"image": "i", "pool": "p"}}, "kubernetes.io/rbd/p:i"),
        (
            {"iscsi": {"targetPortal": "10.0.0.9:3260", "iqn": "q", "lun": 0}},
            "kubernetes.io/iscsi/10.0.0.9:3260:q:0",
        ),
        ({"flexVolume": {"driver": "nodeleak/disk"}}, "nodeleak/disk/data"),
        ({"secret": {"secretName": "s"}}, ""),
        ({"csi": {"driver": "d"}}, ""),
        ({"gcePersistentDisk": {}}, ""),
        ({"cinder": 7}, ""),
        ({"persistentVolumeClaim": 7}, ""),
    ]
    check(pods, "volumes", [
        ({"spec": {"volumes": [{"name": "data"} | described]}}, (name,) if name else ()) for described, name in cases
    ])  # fmt: skip


# The Node


AT = datetime(2026, 3, 26, 20, 1, tzinfo=UTC)


def test_a_node_has_its_device_capacity_and_allocatable(nodes: Objects) -> None:
    plain = {
        "cpu": "8",
        "memory": "16Gi",
        "pods": "110",
        "hugepages-2Mi": "0",
        "ephemeral-storage": "9Gi",
    }
    odd: tuple[Any, ...] = (
        "", "-1", "1.5", "1500m", "many", "\u0663", "1e3", None, True, [], {}, "9" * 5000,
    )  # fmt: skip
    cases: list[tuple[Any, Any, tuple[NodeDevices, ...]]] = [
        (
            {**plain, GPU: "4", KVM: "1k"},
            {**plain, GPU: "3", KVM: "0"},
            (NodeDevices(KVM, 1000, 0), NodeDevices(GPU, 4, 3)),
        ),
        (None, None, ()),
        ({GPU: "0"}, {GPU: "0"}, (NodeDevices(GPU, 0, 0),)),
        ({GPU: "4"}, {KVM: "2"}, (NodeDevices(KVM, 0, 2), NodeDevices(GPU, 4, 0))),
        # KubeVirt offers 1000 of each of its devices, and the server writes that as 1k.
        *(
            ({KVM: written}, {KVM: written}, (NodeDevices(KVM, count, count),))
            for written, count in (
                ("7", 7),
                (7, 7),
                ("2M", 2_000_000),
                ("1Ki", 1024),
                ("3Gi", 3 * 1024**3),
            )
        ),
        *(
            ({KVM: invalid, GPU: "1"}, {KVM: "1", GPU: "1"}, (NodeDevices(GPU, 1, 1),))
            for invalid in odd
        ),
    ]
    check(nodes, "devices", [
        ({"status": {"capacity": capacity, "allocatable": allocatable}}, devices)
        for capacity, allocatable, devices in cases
    ])  # fmt: skip


def test_nodes_of_every_version_are_read_and_of_their_taints_those_about_registration(
    nodes: Objects,
) -> None:
    created = {"creationTimestamp": "2026-03-26T20:01:00Z"}
    (node,) = nodes({"metadata": created, "spec": {"providerID": "aws:///eu-central-1a/i-0"}})
    assert (node.uid, node.created, node.provider_id, node.taints) == (
        "u-0",
        AT,
        "aws:///eu-central-1a/i-0",
        (),
    )
    (none,) = nodes({"spec": None})
    assert (none.created, none.provider_id, none.taints) == (None, "", ())
    for annotations, has_machine in (
        ({"cluster.x-k8s.io/machine": "m-1"}, True),
        ({"cluster.x-k8s.io/cluster-name": "c"}, False),
        (None, False),
    ):
        (node,) = nodes({"metadata": {"annotations": annotations}})
        assert node.has_machine is has_machine
    check(nodes, "provider_id", [({"spec": {"providerID": "a\x1b[2J"}}, "a\\x1b[2J")])
    check(nodes, "unschedulable", [
        ({"spec": spec}, expected)
        for spec, expected in (({"unschedulable": True}, True), ({"unschedulable": False}, False), ({}, False))
    ])  # fmt: skip
    given: list[dict[str, Any]] = [
        {"key": "dedicated", "value": "team-a", "effect": "NoSchedule"},
        {"key": "ToBeDeletedByClusterAutoscaler", "value": "1774555260", "effect": "NoSchedule"},
        {
            "key": "DeletionCandidateOfClusterAutoscaler",
            "value": "1774555260",
            "effect": "PreferNoSchedule",
        },
        {
            "key": "node.cloudprovider.kubernetes.io/uninitialized",
            "value": "true",
            "effect": "NoSchedule",
        },
    ]
    kept = (
        Taint("ToBeDeletedByClusterAutoscaler", AT),
        Taint("DeletionCandidateOfClusterAutoscaler", AT),
        Taint("node.cloudprovider.kubernetes.io/uninitialized"),
    )
    odd: tuple[Any, ...] = (7, [None, 7, {}, {"key": None}, {"key": []}, {"key": {}}], {"key": 1})
    times: tuple[Any, ...] = (
        None,
        "",
        "true",
        "-1",
        "1.5",
        "\u0663",
        "9" * 12,
        "9" * 5000,
        10**11,
        [],
        {},
    )
    check(nodes, "taints", [
        ({"spec": {"taints": given}}, kept),
        *(({"spec": {"taints": taints}}, ()) for taints in odd),
        *(({"spec": {"taints": [given[1] | {"value": time}]}}, (Taint(given[1]["key"]),)) for time in times),
    ])  # fmt: skip
    for item, cidrs, limit, runtime in (
        ({}, (), None, ""),
        ({"spec": {"podCIDR": "10.0.0.0/24"}}, ("10.0.0.0/24",), None, ""),  # before 1.16
        ({"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "fd00::/64"]}},
         ("10.0.0.0/24", "fd00::/64"), None, ""),
        ({"status": {"allocatable": {"pods": 30}, "nodeInfo": None}}, (), 30, ""),
        ({"status": {"allocatable": {"pods": "1k"}, "nodeInfo": {"containerRuntimeVersion": ""}}}, (), None, ""),
        ({"spec": None, "status": None}, (), None, ""),
        ({"status": {"nodeInfo": {"containerRuntimeVersion": "docker://20.10.24", "kubeletVersion": "docker://20.10.24"}}},
         (), None, "docker://20.10.24"),
    ):  # fmt: skip
        (node,) = nodes(item)
        assert (node.pod_cidrs, node.max_pods, node.runtime, node.kubelet) == (
            cidrs,
            limit,
            runtime,
            runtime,
        )


def test_a_node_has_its_volumes_and_conditions_and_who_attaches_volumes(nodes: Objects) -> None:
    attached = [{"name": "kubernetes.io/csi/d^a", "devicePath": "/dev/xvdba"}]
    in_use = ["kubernetes.io/csi/d^b", "kubernetes.io/csi/d^a"]
    odd: tuple[Any, ...] = (7, "x", [7, {}, "x"])
    check(nodes, "volumes_in_use", [
        ({"status": {"volumesInUse": in_use}}, ("kubernetes.io/csi/d^a", "kubernetes.io/csi/d^b")),
        ({"status": {"volumesInUse": 7}}, ()),
    ])  # fmt: skip
    check(nodes, "volumes_attached", [
        ({"status": {"volumesAttached": attached}}, ("kubernetes.io/csi/d^a",)),
        *(({"status": {"volumesAttached": volumes}}, ()) for volumes in odd),
    ])  # fmt: skip
    no: tuple[Any, ...] = (
        None, [], [{"type": "Ready", "status": "False"}], [{"type": "Ready", "status": "Unknown"}], [7], "x", [{}],
    )  # fmt: skip
    check(nodes, "ready", [
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, True),
        *(({"status": {"conditions": conditions}}, False) for conditions in no),
    ])  # fmt: skip
    why = "container runtime network not ready: cni plugin not initialized"
    check(nodes, "not_ready", [
        ({"status": {"conditions": [{"type": "Ready", "status": status, "message": message}]}}, expected)
        for status, message, expected in (
            ("False", why, why), ("Unknown", why, why), ("True", "kubelet is posting ready status", ""),
            ("False", None, ""), ("False", "a\nb", "a\\nb"),
        )
    ])  # fmt: skip
    both = [{"type": "Ready", "status": "True"}, {"type": "CNIAddressPressure", "status": "False"}]
    check(nodes, "address_pressure", [
        ({"status": {"conditions": conditions}}, status)
        for conditions, status in ((both, "False"), (both[:1], ""), (None, ""))
    ])  # fmt: skip
    annotation = "volumes.kubernetes.io/controller-managed-attach-detach"
    check(nodes, "controller_attach", [
        ({"metadata": {"annotations": annotations}}, expected)
        for annotations, expected in (({annotation: "true"}, True), ({annotation: "false"}, False), ({}, False))
    ])  # fmt: skip


def test_a_node_says_whether_it_has_the_label_that_a_setting_names() -> None:
    def labels_of(labels: Any, label: str = "pool=web") -> tuple[str, ...]:
        item = {"metadata": {"name": "worker-1", "labels": labels}}
        return own_node("worker-1", label).parse(item).labels

    assert labels_of({"pool": "web", "a": "b"}) == ("pool=web",)
    assert labels_of({"pool": ""}, "pool=") == ("pool=",)
    for labels in (None, {}, {"pool": "db"}, {"pool": None}, {"Pool": "web"}, {"pool": "web="}):
        assert labels_of(labels) == ()
    assert labels_of({"": ""}, "") == ()
