"""Random nodes out of a small world, so that their records meet: few ids, few addresses, few pods."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from agent.model.recording import Recording
from agent.model.snapshot import (
    SOURCES,
    Address,
    Checkpoint,
    Container,
    Foreign,
    Node,
    Reservation,
    Seen,
    Snapshot,
    Store,
)
from tests.builders import (
    UPTIME,
    cni_result,
    daemons,
    empty_file,
    foreign,
    node,
    pod,
    reservation,
    without,
    without_api,
)

IDS = tuple(digit * 64 for digit in "12345")
PODS = ("shop/web", "shop/db", "kube-system/proxy", "shop/cart")
RANGES = {"kubenet": ("10.0.0.0/29", "fd00::/125"), "storage": ("10.9.0.0/30",)}
"""One truth about each network, whoever tells it: a node's records differ in what they know, not in this."""
IPS = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "fd00::2", "fd00::3", "10.9.0.2")
AGES = tuple(timedelta(seconds=n) for n in (-3600, -5, 0, 299, 300, 7200, 10**8))
SPANS = tuple(timedelta(seconds=n) for n in (1, 3600, 86400))
WORDS = ("running", "running", "running", "paused", "created", "exited")


def seldom() -> st.SearchStrategy[bool]:
    # Hypothesis likes 0 and False best; an oddity must not be what most nodes are like.
    return st.integers(0, 7).map(lambda n: n == 7)


ids, names, ips, ages = st.sampled_from(IDS), st.sampled_from(PODS), st.sampled_from(IPS), st.sampled_from(AGES)


@st.composite
def stores(draw: st.DrawFn, network: str) -> Store:
    """One directory: every name in it once, and behind it a file, an empty file, or something strange."""
    entries: list[Reservation | Foreign] = []
    for ip in draw(st.lists(ips, unique=True, max_size=6)):
        if draw(seldom()):
            entries.append(foreign(ip, blocks=True, network=network))
        elif draw(seldom()):
            entries.append(replace(empty_file(ip, age=draw(ages)), network=network))
        else:
            entries.append(reservation(ip, draw(ids), age=draw(ages), network=network))
    if draw(seldom()):
        entries.append(foreign("notes.txt", network=network))
    return Store(
        network,
        Seen(tuple(one for one in entries if isinstance(one, Reservation))),
        tuple(one for one in entries if isinstance(one, Foreign)),
    )


containers = st.builds(
    Container, ids, st.sampled_from(WORDS), st.just(0), names, st.just("uid"), seldom().map(lambda app: not app)
)
pods = st.builds(
    lambda name, several, phase, host, deleting, uid: pod(
        name, *several, phase=phase, host_network=host, deleting=deleting, uid=uid
    ),
    names,
    st.lists(ips, max_size=2),
    st.sampled_from(["Running", "Running", "Running", "Pending", "Succeeded", "Failed"]),
    seldom(),
    seldom(),
    st.sampled_from(["uid-1", "uid-2"]),
)
results = st.builds(
    lambda container_id, name, network, age: cni_result(container_id, name, *RANGES[network], network=network, age=age),
    ids,
    st.one_of(st.just(""), names),
    st.sampled_from(sorted(RANGES)),
    ages,
)
started = st.builds(
    lambda booted, kubelet, docker: daemons(booted=booted, kubelet=kubelet, docker=docker),
    st.sampled_from(SPANS),
    st.one_of(st.none(), st.sampled_from(SPANS)),
    st.one_of(st.none(), st.sampled_from(SPANS)),
)
nodes_objects = st.builds(
    lambda cidrs, most: Node("worker-1", cidrs, most),
    st.sampled_from([RANGES["kubenet"], RANGES["kubenet"], ()]),
    st.sampled_from([110, 4, 2, None]),
)


def unique_ids(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """The runtime, and the kubelet's directory, have an id once."""
    return st.lists(
        values, max_size=5, unique_by=lambda one: one.container_id if hasattr(one, "container_id") else one.id
    )


def unique_names() -> st.SearchStrategy[list[Any]]:
    return st.lists(pods, max_size=4, unique_by=lambda one: one.name)


@st.composite
def read_nodes(draw: st.DrawFn, two_networks: bool = False) -> Snapshot:
    """A node of which everything was read."""
    snapshot = node(
        checkpoints=draw(unique_ids(st.builds(Checkpoint, ids, st.one_of(st.just(""), names)))),
        containers=draw(unique_ids(containers)),
        cni_results=draw(st.lists(results, min_size=1, max_size=4)),
        addresses=draw(
            st.lists(st.builds(Address, ips, st.integers(1, 3), st.sampled_from(["java", "sh"])), max_size=3)
        ),
        pods=draw(unique_names()),
        node=[] if draw(seldom()) else [draw(nodes_objects)],
        daemons=[draw(started)],
        later=timedelta(seconds=draw(st.integers(0, 3))),
    )
    networks = [draw(stores("kubenet")), *([draw(stores("storage"))] if two_networks or draw(seldom()) else [])]
    return replace(snapshot, reservations=tuple(networks))


@st.composite
def nodes(draw: st.DrawFn, two_networks: bool = False) -> Snapshot:
    """A node of which anything may be unread, or was left alone."""
    snapshot = draw(read_nodes(two_networks))
    if draw(seldom()):
        snapshot = without_api(snapshot)
    return without(snapshot, *draw(st.lists(st.sampled_from(SOURCES), max_size=2, unique=True)))


recordings = st.builds(
    Recording,
    patience=st.timedeltas(timedelta(0), timedelta(days=400)),
    period=st.timedeltas(timedelta(0), UPTIME),
    looks=st.lists(nodes(), min_size=1, max_size=2).map(tuple),
)
