"""Anonymous recordings: no text of any field gets through but listed words, and the report stays the same."""

import re
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.cli.anonymize import anonymous
from agent.model.documents import Recording, dumps, loads
from agent.model.ranges import Range
from agent.model.runtime import RuntimeNetwork, WrittenRange
from agent.model.snapshot import Known, Node, NotRequested, Pod, Unavailable
from tests import builders as b
from tests.builders import (
    CIDR,
    GONE,
    KVM,
    KVM_SOCKET,
    NOW,
    node,
    refused_pod,
    registered,
    sandbox,
    the_node,
)
from tests.checks.reported import resources_of

MARK = "qz{}zq"
ADDRESSES = (IPv4Address("203.0.113.77"), "203.0.113.0/24", "2a00:1450:77::5", "2a00:1450:77::/64")


class Filler:
    """Makes values of the model's types. Every text is a mark of its own, in a given form."""

    def __init__(self, form: str, reading: type) -> None:
        self.marks: list[str] = []
        self.places: set[str] = set()
        self._form, self._reading = form, reading

    def value(self, kind: Any, place: str = "") -> Any:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is tuple:
            return (self.value(arguments[0], place),)
        if origin in {Union, types.UnionType}:
            return self._choice(arguments, place)
        if origin is not None or is_dataclass(kind):
            of = arguments[0] if arguments else None
            return self._object(origin or kind, of)
        return self._scalar(kind, place)

    def _choice(self, kinds: tuple[Any, ...], place: str) -> Any:
        by_origin = {get_origin(kind) or kind: kind for kind in kinds}
        if Known in by_origin:
            return self.value(by_origin[self._reading], place)
        return self.value(next(kind for kind in kinds if kind is not types.NoneType), place)

    def _object(self, kind: Any, of: Any) -> Any:
        hints = {name: of if kind is Known else hint for name, hint in get_type_hints(kind).items()}
        return kind(
            **{name: self.value(hints[name], f"{kind.__name__}.{name}") for name in recorded(kind)}
        )

    def _scalar(self, kind: Any, place: str) -> Any:
        if issubclass(kind, StrEnum):
            return next(iter(kind))
        if kind is str:
            self.places.add(place)
            self.marks.append(MARK.format(len(self.marks)))
            return self._form.format(self.marks[-1])
        return {
            int: 7, bool: True, float: 0.5, datetime: NOW, timedelta: timedelta(seconds=1), IPv4Address: ADDRESSES[0],
        }[kind]  # fmt: skip


FORMS = (
    "{0}", "{0}/{0}", "Job/{0}", "{0}.example.com/{0}", "kubernetes.io/csi/{0}.csi.example.com^{0}/{0}",
    "kubevirt-{0}.sock", "cannot read /srv/{0}: permission denied", "cannot connect to https://{0}.corp:6443: {0}",
    "'{0} of the pod' is not a container id", "--network={0}", "docker://{0}", "v1.20.2-{0}", "20.10.24{0}",
    '{0}: {0}. {0}, ({0}) "{0}"', "\n{0}\n", "it's {0}'s", "running {0}", "{0}\u00e9 {0}",
)  # fmt: skip


def test_no_text_of_any_field_is_kept() -> None:
    for form in FORMS:
        for reading in (Known, Unavailable, NotRequested):
            filler = Filler(form, reading)
            recording: Recording = filler.value(Recording)
            hidden = dumps(anonymous(recording)) + repr(anonymous(recording))
            assert len(filler.marks) >= 20
            assert re.findall(MARK.format(r"\d+"), hidden) == [], (form, reading)
    # Every type of the model is reached.
    filler = Filler("{0}", Known)
    filler.value(Recording)
    unread = {
        f"{kind}.{field}" for kind in ("Unavailable", "NotRequested") for field in ("source", "why")
    }
    texts = {
        f"{kind.__name__}.{name}" for kind in types_of(Recording) for name in recorded(kind, str)
    }
    assert texts - filler.places == unread


def recorded(kind: Any, of: Any = None) -> list[str]:
    return [field.name for field in fields(kind) if field.compare and of in {None, field.type}]


def types_of(kind: Any) -> Iterator[Any]:
    """Yield every dataclass below a type."""
    if is_dataclass(get_origin(kind) or kind):
        yield get_origin(kind) or kind
        hints = get_type_hints(get_origin(kind) or kind)
        for name in recorded(get_origin(kind) or kind):
            yield from types_of(hints[name])
    for argument in get_args(kind):
        yield from types_of(argument)


def test_no_address_of_any_field_is_kept_and_every_field_is_read_back() -> None:
    for form in (
        "{0}",
        "cannot connect to https://{0}:6443: {0}",
        "docker://{0}",
        "'{0}'",
        "[{0}]",
    ):
        for address in ADDRESSES:
            for reading in (Known, Unavailable):
                recording: Recording = Filler(
                    form.format(address).replace("{", "{{"), reading
                ).value(Recording)
                assert form != "{0}" or "/" in str(address) or loads(dumps(recording)) == recording
                hidden = dumps(anonymous(recording))
                assert [part for part in ("203.0.113", "2a00", "1450") if part in hidden] == []
    # A type that is not known is refused.
    with pytest.raises(TypeError, match=r"Snapshot\.node_name: bytes is not a type of recordings"):
        anonymous(b.recorded(replace(node(), node_name=b"worker-1")))  # type: ignore[arg-type]


def test_equal_names_stay_equal_even_that_of_a_node_which_is_an_address() -> None:
    plain = node(sandbox("1" * 64, "a/web"), sandbox("2" * 64, "b/web"))
    (hidden,) = anonymous(b.recorded(plain)).snapshots
    assert {container.pod for container in hidden.containers.known() if container.sandbox} >= {
        pod.name for pod in hidden.pods.known()
    }
    assert hidden.node_name == the_node(hidden).name != plain.node_name
    before, after = (
        sorted(snapshot.containers.known(), key=lambda box: box.pod) for snapshot in (plain, hidden)
    )
    assert [container.created for container in before] == [
        container.created for container in after
    ], "sorted names stay sorted"
    named = replace(node(node=[Node("10.12.97.31", (CIDR,), 110)]), node_name="10.12.97.31")
    (hidden,) = anonymous(b.recorded(named)).snapshots
    assert "10.12.97" not in dumps(anonymous(b.recorded(named)))
    assert the_node(hidden).name == hidden.node_name
    # Times, counts and attributes of files are kept.
    assert (hidden.taken_at, hidden.uptime) == (plain.taken_at, plain.uptime)
    files = (snapshot.reservations[0].reading.known() for snapshot in (plain, hidden))
    attributes = (
        [(file.inode, file.size, file.mtime_ns) for file in reserved] for reserved in files
    )
    assert next(attributes) == next(attributes)


def test_no_reason_and_only_the_number_of_a_version_is_kept() -> None:
    for why in (
        "cannot read /etc/acme: permission denied",
        "docker: no complete response within 30 s",
    ):
        (hidden,) = anonymous(b.recorded(replace(node(), pods=Unavailable("pods", why)))).snapshots
        assert isinstance(hidden.pods, Unavailable)
        assert hidden.pods.source == "pods"
        assert re.fullmatch(r"n\d+", hidden.pods.why)
    for version, shown in (
        ("v1.20.2", r"v1\.20\.2"), ("v1.21.14-acme.7", r"v1\.21\.14n\d+"), ("203.0.113.77", r"240\.\S+"), ("", ""),
    ):  # fmt: skip
        (hidden,) = anonymous(b.recorded(replace(node(), server_version=version))).snapshots
        assert re.fullmatch(shown, hidden.server_version)


def test_names_that_decide_are_kept_of_migrated_volumes_provider_ids_and_controllers() -> None:
    for plugin, driver in (
        ("aws-ebs", "ebs.csi.aws.com"), ("azure-disk", "disk.csi.azure.com"), ("cinder", "cinder.csi.openstack.org"),
        ("gce-pd", "pd.csi.storage.gke.io"), ("portworx-volume", "pxd.portworx.com"), ("rbd", "rbd.csi.ceph.com"),
        ("vsphere-volume", "csi.vsphere.vmware.com"),
    ):  # fmt: skip
        for prefix in (f"kubernetes.io/{plugin}/", f"kubernetes.io/csi/{driver}^"):
            plain = node(node=[replace(b.WORKER, volumes_in_use=(f"{prefix}acme-disk",))])
            (hidden,) = anonymous(b.recorded(plain)).snapshots
            (name,) = the_node(hidden).volumes_in_use
            assert re.fullmatch(rf"{re.escape(prefix)}n\d+", name)
    # The schemes of provider IDs that an autoscaler may not know are kept.
    for scheme in ("k3s", "rke2", "hrobot", "eks-hybrid", "openstack"):
        plain = node(node=[replace(b.WORKER, provider_id=f"{scheme}://acme/acme-1")])
        (hidden,) = anonymous(b.recorded(plain)).snapshots
        assert re.fullmatch(rf"{scheme}://n\d+/n\d+", the_node(hidden).provider_id)
    # The controllers that decide an outcome are kept.
    kinds = ["ReplicaSet", "ReplicationController", "Job", "StatefulSet", "DaemonSet"]
    plain = node(pods=[refused_pod(f"shop/{kind}", controller=f"{kind}/acme") for kind in kinds])
    (hidden,) = anonymous(b.recorded(plain)).snapshots
    assert [pod.controller.partition("/")[0] for pod in hidden.pods.known()] == kinds
    assert "acme" not in repr(hidden)


def test_networks_of_the_runtime_keep_what_decides_their_ranges() -> None:
    sets = tuple(
        (WrittenRange(subnet),) for subnet in ("usePodCidr", "usePodCidrIPv6", "10.9.1.1/24")
    )
    named = RuntimeNetwork(
        "secret-net", ("flannel", "secret-plugin"), "host-local", "/secret/dir", sets
    )
    (hidden,) = anonymous(b.recorded(node(networks=[named]))).snapshots
    (network,) = hidden.networks.known()
    assert (network.ipam, network.plugins[0]) == ("host-local", "flannel")
    assert "secret" not in repr(network)
    first, second, (last,) = network.ranges
    assert (first[0].subnet, second[0].subnet) == ("usePodCidr", "usePodCidrIPv6")
    assert re.fullmatch(r"240\.\S+\.1/24", last.subnet)


networks_of_ranges = st.integers(2, 30).flatmap(
    lambda bits: st.integers(0, 2**32 - 1).map(lambda n: ip_network((n >> bits << bits, 32 - bits)))
)


@given(
    st.lists(networks_of_ranges, min_size=1, max_size=4),
    st.lists(st.integers(0, 2**32 - 1), max_size=6),
)
@example([ip_network("0.0.0.0/2"), ip_network("128.0.0.0/2")], [2**32 - 1])
@example([ip_network("240.0.0.0/4")], [0])
def test_ranges_keep_their_size_and_their_addresses(
    networks: list[Any], numbers: list[int]
) -> None:
    ips = [str(IPv4Address(number)) for number in numbers] + [
        str(network[2]) for network in networks
    ]
    cidrs = tuple(map(str, networks))
    ranges = tuple((Range(network[1], network[-2], network[1]),) for network in networks)
    plain = node(
        Pod("shop/web", "uid", "Running", host_network=False, deleting=False, ips=tuple(ips)),
        replace(b.cni_result(GONE, "shop/web", CIDR), ranges=ranges),
        node=[Node("worker-1", cidrs, None)],
    )
    (hidden,) = anonymous(b.recorded(plain)).snapshots
    moved = [ip for pod in hidden.pods.known() for ip in pod.ips][-len(ips) :]
    new_ranges = [range_ for result in hidden.cni_results.known() for (range_,) in result.ranges][
        -len(ranges) :
    ]
    for (old,), new in zip(ranges, new_ranges, strict=True):
        assert new.usable == old.usable
        assert [ip_address(ip) in old for ip in ips] == [ip_address(ip) in new for ip in moved]
    for cidr, new_cidr in zip(cidrs, the_node(hidden).pod_cidrs, strict=True):
        here, there = ip_network(cidr), ip_network(new_cidr)
        assert [ip_address(ip) in here for ip in ips] == [ip_address(ip) in there for ip in moved]
        assert here.prefixlen == there.prefixlen
    in_order = sorted(range(len(ips)), key=lambda place: int(ip_address(ips[place])))
    assert sorted(moved, key=lambda ip: int(ip_address(ip))) == [moved[place] for place in in_order]


def test_a_socket_that_is_named_after_its_resource_still_is() -> None:
    resources = {
        KVM: KVM_SOCKET,
        "nvidia.com/a100-acme": "nvidia-a100-acme.sock",
        "acme.com/x": "kubevirt-acme.com-x.sock",
    }
    plain = node(
        refused_pod("vms/vm-1", controller="VirtualMachineInstance/vm"),
        device_plugins=b.device_plugins(
            *(registered(resource, "dev0") for resource in resources),
            *(b.plugin_socket(socket) for socket in resources.values()),
        ),
    )
    text = dumps(anonymous(b.recorded(plain)))
    assert [
        name
        for name in ("acme", "a100", "vms", "vm-1", "VirtualMachineInstance", "dev0")
        if name in text
    ] == []
    (hidden,) = loads(text).snapshots
    before, after = resources_of(plain), resources_of(hidden)
    assert {resource: before[resource]["socket"] for resource in before} == resources
    plugins = hidden.device_plugins.known()
    assert {resource: after[resource]["socket"] for resource in after} == {
        registered.resource: socket.name
        for registered, socket in zip(plugins.registered, plugins.sockets, strict=True)
    }
    assert after[KVM]["socket"] == KVM_SOCKET
