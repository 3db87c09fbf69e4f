"""The content of fake nodes, which host, engine and apiserver present as a real node does."""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv4Network, ip_network
from pathlib import Path

EXITED_BYTES = 50_000


@dataclass(frozen=True, slots=True)
class PodSandbox:
    """One pod's sandbox and the one container in it."""

    id: str
    namespace: str
    pod: str
    ip: str  # Empty: the pod uses the node's network
    made: datetime
    restarts: int = 0
    starting: bool = False  # Its container is not created yet

    @property
    def uid(self) -> str:
        digits = _digits("uid", self.id)
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:32]}"

    @property
    def container_id(self) -> str:
        return _digits("container", self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeNode:
    name: str
    ip: str
    cidr: IPv4Network
    max_pods: int
    booted: datetime
    docker_started: datetime
    kubelet_started: datetime
    running: tuple[PodSandbox, ...]  # Pods with a running sandbox and container
    leaked: tuple[
        PodSandbox, ...
    ] = ()  # Sandboxes that left only host-local's file and libcni's results
    pending: tuple[tuple[str, str], ...] = ()  # Namespace and name of pods that wait for an address
    network: str = "kubenet"  # The network from which its pods have their addresses
    data_dir: str = ""  # `dataDir` in the configuration of that network; empty: not set
    runtime: str = "docker://19.3.15"
    network_plugin: str = (
        ""  # The kubelet's `--network-plugin`; empty: the one that made its pods' network
    )
    unschedulable: bool = False
    evicted: int = 0  # Pods that the kubelet evicted, which the API server still lists
    exited: int = 0  # Sandboxes that have exited and still have all their annotations, which are `EXITED_BYTES` long
    ownerless: int = 0  # Files of host-local's that nothing else knows

    @property
    def uses_docker(self) -> bool:
        return self.runtime.startswith("docker://")

    @property
    def uses_cni(self) -> bool:
        return not self.uses_docker or self.network != "kubenet" or bool(self.data_dir)

    def kubelet_flags(self, cri_socket: Path) -> tuple[str, ...]:
        if not self.uses_docker:
            return "--container-runtime=remote", f"--container-runtime-endpoint=unix://{cri_socket}"
        own = "cni" if self.uses_cni else "kubenet"
        return "--container-runtime=docker", f"--network-plugin={self.network_plugin or own}"

    @property
    def exited_sandboxes(self) -> Iterator[PodSandbox]:
        for number in range(self.exited):
            ended = _digits("exited", str(number))
            yield PodSandbox(ended, "batch", f"nightly-report-{number}", "", self.kubelet_started)

    @property
    def ownerless_files(self) -> Iterator[PodSandbox]:
        free = addresses(self.cidr)[len(self.running) :]
        for ip in free[: self.ownerless]:
            yield PodSandbox(_digits("ownerless", ip), "", "", ip, self.booted)

    @property
    def reserved(self) -> tuple[PodSandbox, ...]:
        return tuple(sandbox for sandbox in (*self.leaked, *self.running) if sandbox.ip)


_LEAKED_IN_SEED_004 = """\
130 eventwatcher container-exporter-m9d2r 950b9e02d470d2a3bf7c39100827b0b49ef00f251d4abf354069c78bc25e0a5f
131 middleware k8s-sla-wqm6b 7e7a27ecd60f42446fe5ac4709e444f125ac88d6810de9dfd71e5721fdad0d71
132 middleware filebeat-applog-collection-rndhr 4988eaaf02d8cd2164f81a94b264a7b6e03cf87cb0b3a76ae74679f1bd5d3e97
134 middleware push-netstat-htjvj 8190a101707a17793e8cfd35485785a9610d9c524f7f041b7dced457e79268e5
135 debug debug-agent-2r94g decef236193c498235ab5efc33498d06abc34bea58ee7a68d1110228e4e59df2
217 kube-system fluentd-cz8qq a1c4b1a54172d325df761de068e1ccb37040bfd7c175539912fa60232eca9b5e
235 middleware filebeat-opslog-collection-c59hf 0a917f395c84f42f6d060bee9bcbac403c396dceec88e7d4c9301493a7ad9233
"""
"""Address in 10.253.6.0/24, namespace, pod and sandbox, from the kubelet's log and the node's files of the incident."""

_WORKLOADS = (
    ("saas-mcloud-python-dev", "saas-mcloud-companyserver-ops-python-dev"),
    ("saas-jcpt-tomcat-dev", "saas-jcpt-open-message-producer-service-tomcat-dev"),
    ("saas-xiaoke-other-dev", "saas-xiaoke-libreoffice-service-other-dev"),
    ("saas-o2o-public-tomcat-dev", "saas-o2o-public-notification-task-tomcat-dev"),
    ("middleware", "kibana-k8s"),
)


def the_incident(now: datetime) -> FakeNode:
    """Return the node of the incident: every address of a /25 reserved, 118 in use, seven leaked by removed pods.

    docker was upgraded by stopping the kubelet and removing all containers; the restarted kubelet dropped the
    checkpoints of sandboxes that it could not tear down. Every running pod was created after that.
    """
    kubelet_started = now - timedelta(hours=9)
    chance = random.Random(4)  # noqa: S311 (reproducible names and times)
    leaked = tuple(
        PodSandbox(
            id_,
            namespace,
            pod,
            f"10.253.6.{last}",
            now - timedelta(days=chance.randint(2, 19), hours=chance.random()),
        )
        for last, namespace, pod, id_ in map(str.split, _LEAKED_IN_SEED_004.splitlines())
    )
    cidr = IPv4Network("10.253.6.128/25")
    taken = {sandbox.ip for sandbox in leaked}
    return FakeNode(
        name="10.12.97.31",
        ip="10.12.97.31",
        cidr=cidr,
        max_pods=125,
        booted=now - timedelta(days=41),
        docker_started=kubelet_started - timedelta(minutes=4),
        kubelet_started=kubelet_started,
        running=(
            *_running(addresses(cidr, taken), kubelet_started, chance),
            *(
                _host_network(name, kubelet_started, chance)
                for name in ("kube-proxy", "node-exporter")
            ),
        ),
        leaked=leaked,
        pending=(
            (
                "saas-o2o-public-tomcat-dev",
                "saas-o2o-public-notification-task-tomcat-dev-7c76c6984d-hjn4l",
            ),
        ),
    )


def healthy(now: datetime, pods: int, cidr: str) -> FakeNode:
    """Return a node on which every reservation is in use."""
    network = IPv4Network(cidr)
    chance = random.Random(pods)  # noqa: S311 (as above)
    started = now - timedelta(days=3)
    return FakeNode(
        name="worker-1",
        ip="10.12.97.31",
        cidr=network,
        max_pods=max(110, pods),
        booted=now - timedelta(days=3, minutes=1),
        docker_started=started,
        kubelet_started=started,
        running=tuple(_running(addresses(network)[:pods], started, chance)),
    )


def addresses(cidr: IPv4Network, taken: set[str] | frozenset[str] = frozenset()) -> list[str]:
    """Return what host-local can assign in a subnet: all but the network, gateway and broadcast addresses."""
    gateway = str(ip_network(cidr).network_address + 1)
    return [ip for ip in map(str, cidr.hosts()) if ip != gateway and ip not in taken]


def _running(ips: list[str], since: datetime, chance: random.Random) -> list[PodSandbox]:
    sandboxes = []
    for ip in ips:
        namespace, workload = chance.choice(_WORKLOADS)
        pod = f"{workload}-{_digits(workload)[:10]}-{_letters(ip)}"
        made = since + timedelta(seconds=chance.randint(60, 8 * 3600))
        sandboxes.append(PodSandbox(_digits("sandbox", ip), namespace, pod, ip, made))
    return sandboxes


def _host_network(name: str, since: datetime, chance: random.Random) -> PodSandbox:
    made = since + timedelta(seconds=chance.randint(5, 60))
    return PodSandbox(_digits("sandbox", name), "kube-system", f"{name}-{_letters(name)}", "", made)


def _digits(*parts: str) -> str:
    """Return 64 reproducible hex digits."""
    return hashlib.sha256("/".join(parts).encode()).hexdigest()


def _letters(text: str) -> str:
    # The alphabet of Kubernetes' random suffixes.
    return "".join(
        "bcdfghjklmnpqrstvwxz2456789"[byte % 27]
        for byte in hashlib.sha256(text.encode()).digest()[:5]
    )
