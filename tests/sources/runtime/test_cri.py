"""Sandboxes and containers by CRI, from a stand-in for each kind of runtime; test_containerd.py asks a real one."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.model.runtime import RuntimeNetwork, WrittenRange
from agent.model.snapshot import Container
from agent.sources.host.cni_config import networks_of
from agent.sources.runtime.cri import Cri
from tests.fakes import cri as fake
from tests.fakes.cri import AT, FakeRuntime, cniconfig, container, record, sandbox, stored
from tests.fakes.grpc_server import Answers, Call, FakeGrpcServer
from tests.wire import error_of, http, open_directory

CONTAINERS = "/containerd.services.containers.v1.Containers/List"
NAMESPACES = "/containerd.services.namespaces.v1.Namespaces/List"
STORE = "/containerd.services.sandbox.v1.Store/List"
A, B, C, D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
CONTAINERD = [
    FakeRuntime(version="1.5.18", apis=("v1alpha2",), has_store=False),
    FakeRuntime(version="1.6.20~ds1", apis=("v1", "v1alpha2"), has_store=False),
    FakeRuntime(version="1.7.24", apis=("v1", "v1alpha2")),
    FakeRuntime(version="2.1.9+unknown"),
]


@pytest.fixture
def path() -> Iterator[Path]:
    with open_directory() as directory:
        yield directory / "cri.sock"


Serve = Callable[[FakeRuntime], AbstractContextManager[FakeGrpcServer]]


@pytest.fixture
def serve(path: Path) -> Serve:
    def served(runtime: FakeRuntime) -> FakeGrpcServer:
        path.unlink(missing_ok=True)
        return FakeGrpcServer(path, runtime.answer)

    return served


@pytest.fixture
def cri(path: Path) -> Cri:
    return Cri(path, 5.0, time.perf_counter)


def cri_o(**has: Any) -> FakeRuntime:
    return FakeRuntime(name="cri-o", version="1.35.6", **has)


def failing(code: int, message: str) -> Answers:
    return lambda call: call.fail(code, message)


def malformed(call: Call) -> None:
    call.answer(b"\x0a\x05half")


# identify


def test_a_runtime_names_itself_by_the_old_api_only_where_the_other_one_is_not_implemented(
    serve: Serve, cri: Cri
) -> None:
    for runtime in (*CONTAINERD, cri_o()):
        with serve(runtime) as server:
            found = cri.identify()
        assert (found.name, found.version) == (runtime.name, runtime.version)
        assert found.endpoint == cri.expected.endpoint != ""
        assert len(server.calls) == 2 - ("v1" in runtime.apis)
    for code in (1, 2, 4, 5, 7, 8, 13, 14, 16):
        starting = {
            "/runtime.v1.RuntimeService/Version": failing(code, "server is not initialized yet")
        }
        with serve(FakeRuntime(apis=("v1alpha2",), instead=starting)) as server:
            assert error_of(cri.identify).endswith(
                f"Version: server is not initialized yet (gRPC status {code})"
            )
        assert len(server.calls) == 1


# containers


def test_every_sandbox_and_container_is_listed_in_every_state(serve: Serve, cri: Cri) -> None:
    runtime = FakeRuntime(
        sandboxes=[sandbox(A), sandbox(B, fake.NOT_READY), sandbox(C, 7), sandbox(D, labels={})],
        containers=[container(f"{state}" * 64, state) for state in (0, 1, 2, 3, 9)],
    )
    with serve(runtime) as server:
        listed = cri.containers([A, B, C])
    assert listed[0] == Container(A, "running", AT, "shop/web-0", "u-1", sandbox=True)
    assert listed[3] == Container(D, "running", AT, "", "", sandbox=True)
    assert listed[4] == Container("0" * 64, "created", AT, "shop/web-0", "u-1", sandbox=False)
    assert [one.state for one in listed[:3]] == ["running", "not ready", "unknown"]
    assert [one.state for one in listed[4:]] == [
        "created",
        "running",
        "exited",
        "unknown",
        "unknown",
    ]
    assert all(call.request == b"" for call in server.calls), "a filter would hide some"
    for runtime in (FakeRuntime(), cri_o()):
        with serve(runtime):
            assert cri.containers([]) == ()
        runtime.sandboxes, runtime.containers = [sandbox(A), sandbox(B)], [container(C)]
        with serve(runtime) as server:
            assert len(cri.containers([A, B, C])) == 3
        assert server.methods == ["ListPodSandbox", "ListContainers"]
        assert server.connections == 1


def test_a_record_of_containerd_is_a_sandbox_being_created_unless_it_is_another_clients(
    serve: Serve, cri: Cri
) -> None:
    for runtime in CONTAINERD:
        with serve(
            replace(runtime, records={"k8s.io": [record(A), record(D)]}, sandboxes=[sandbox(C)])
        ):
            assert cri.containers([A, B, C])[1:] == (
                Container(A, "recorded but not listed", AT, "shop/web-0", "u-1", sandbox=True),
            )
    both = FakeRuntime(
        version="2.1.9", stored=[stored(A), stored(B), stored(D)], records={"k8s.io": [record(B)]}
    )
    with serve(both) as server:
        found = cri.containers([A, B, C])
    assert sorted(one.id for one in found) == [A, B], "the store of sandboxes counts too"
    assert {(one.state, one.created, one.sandbox) for one in found} == {
        ("recorded but not listed", AT, True)
    }
    assert server.methods == ["ListPodSandbox", "ListContainers", "Version", "List", "List", "List"]
    unasked = fake.PROTO["Records"](containers=[record(A), record(B)]).SerializeToString()
    with serve(FakeRuntime(instead={CONTAINERS: lambda call: call.answer(unasked)})):
        assert [one.id for one in cri.containers([A])] == [A]
    with serve(FakeRuntime(records={})):  # without any namespace yet
        assert cri.containers([A]) == ()
        assert cri.has(A) is False
    runtime = FakeRuntime(
        records={"moby": [record(A, {}), record(B, {})], "default": [], "k8s.io": [record(B)]}
    )
    with serve(runtime) as server:
        named = {one.id: one for one in cri.containers([A, B])}
    assert named[A] == Container(A, "in another namespace of containerd", AT, "", "", sandbox=True)
    assert named[B].state == "recorded but not listed"
    assert {call.headers.get("containerd-namespace") for call in server.calls} == {
        None,
        "moby",
        "default",
        "k8s.io",
    }


def test_many_ids_are_asked_in_batches_and_never_one_of_another_form(
    serve: Serve, cri: Cri
) -> None:
    ids = [f"{number:064x}" for number in range(200)]
    with serve(FakeRuntime(records={"k8s.io": [record(ids[5]), record(ids[199])]})) as server:
        assert {one.id for one in cri.containers(ids)} == {ids[5], ids[199]}
    lists = [call for call in server.calls if call.method in {CONTAINERS, STORE}]
    filters = [len(fake.PROTO["Filters"].FromString(call.request).filters) for call in lists]
    assert filters == [*[32] * 6, 8] * 2
    assert all(len(call.body) < 16384 for call in lists), "a request is one frame"
    for asked in ("", "default-" + A, A[:12], A.upper(), A + "0", 'a"||id==b', A + "\n"):
        with serve(FakeRuntime(records={"k8s.io": [record(B)]}, sandboxes=[sandbox(A)])) as server:
            assert len(cri.containers([asked])) == 1
            assert "is not a container ID" in error_of(lambda: cri.has(asked))  # noqa: B023 (called at once)
            assert len(server.calls) == 2
            assert [one.id for one in cri.containers([asked, B])] == [A, B]


def test_of_very_many_ids_containerd_lists_all_of_its_records_at_once(
    serve: Serve, cri: Cri
) -> None:
    ids = [f"{number:064x}" for number in range(16_000)]
    runtime = FakeRuntime(
        records={"moby": [record(ids[9], {}), record(B)], "default": [], "k8s.io": [record(A)]},
        stored=[stored(ids[15_000]), stored(C)],
    )
    for asked in (254, 4_094, 16_000):
        with serve(runtime) as server:
            found = {one.id: one.state for one in cri.containers(ids[:asked])}
        assert found.pop(ids[15_000], "recorded but not listed") == "recorded but not listed"
        assert found == {ids[9]: "in another namespace of containerd"}, "and nothing else"
        assert server.methods == [
            *("ListPodSandbox", "ListContainers", "Version"),
            *("List",) * 5,
        ], "the namespaces, the containers in each, and the sandboxes"
        assert all(call.body == b"\0\0\0\0\0" for call in server.calls), "without a filter"


def test_a_list_that_containerd_finds_too_large_to_send_is_asked_in_batches(
    serve: Serve, cri: Cri
) -> None:
    ids = [f"{number:064x}" for number in range(201)]
    runtime = FakeRuntime(records={"k8s.io": [record(ids[200])]})

    def limited(call: Call) -> None:
        if call.request:
            FakeRuntime(records=runtime.records).answer(call)
        else:
            call.fail(8, "trying to send message larger than max (16777217 vs. 16777216)")

    runtime.instead[CONTAINERS] = limited
    with serve(runtime) as server:
        assert [one.id for one in cri.containers(ids)] == [ids[200]]
    assert [call.method for call in server.calls].count(CONTAINERS) == 1 + 7
    runtime.instead[CONTAINERS] = failing(14, "the database is closed")
    with serve(runtime):
        assert "the database is closed" in error_of(lambda: cri.containers(ids))


def test_cri_o_tells_what_is_being_created_of_many_sandboxes_in_whatever_order_it_answers(
    serve: Serve, cri: Cri
) -> None:
    ids = [f"{number:064x}" for number in range(70)]
    finished = [sandbox(ids[3]), sandbox(ids[69], fake.NOT_READY)]  # since the list
    runtime = cri_o(sandboxes=finished, unborn={ids[40]})
    asked: list[Call] = []

    def together(call: Call) -> None:
        asked.append(call)
        if len(asked) in {
            32,
            64,
            70,
        }:  # whoever waits for the first answer before the last request waits forever
            for one in reversed(asked[(len(asked) - 1) // 32 * 32 :]):
                runtime.answer(one)

    instead: dict[str, Answers] = {
        "ListPodSandbox": lambda call: call.answer(b""),
        "PodSandboxStatus": together,
    }
    with serve(cri_o(instead=instead)) as server:
        found = cri.containers(ids)
    assert [(one.id, one.state) for one in found] == [
        (ids[3], "running"), (ids[40], "being created"), (ids[69], "not ready"),
    ]  # fmt: skip
    assert found[2] == Container(ids[69], "not ready", AT, "shop/web-0", "u-1", sandbox=True)
    assert (server.connections, len(asked)) == (1, 70)
    with serve(cri_o(sandboxes=[sandbox(C)], unborn={A})) as server:
        assert cri.containers([A, B, C])[1:] == (
            Container(A, "being created", 0, "", "", sandbox=True),
        )
    assert server.methods == [
        "ListPodSandbox",
        "ListContainers",
        "Version",
        "PodSandboxStatus",
        "PodSandboxStatus",
    ]


def test_any_request_that_fails_makes_the_list_unavailable(serve: Serve, cri: Cri) -> None:
    failures: list[tuple[Answers, str]] = [
        (
            failing(14, "server is not initialized yet"),
            "server is not initialized yet (gRPC status 14)",
        ),
        (failing(5, "not found"), "not found (gRPC status 5)"),
        (malformed, "cannot parse the response (ValueError('field 1 is truncated'))"),
        (lambda call: call.hang_up(), "the server closed the connection"),
    ]
    for failed in ("ListPodSandbox", "ListContainers", "Version", NAMESPACES, CONTAINERS, STORE):
        for answer, text in failures:
            with serve(FakeRuntime(sandboxes=[sandbox(A)], instead={failed: answer})):
                assert text in error_of(lambda: cri.containers([A, B]))
    for method in ("ListPodSandbox", "ListContainers"):
        with serve(FakeRuntime(instead={method: lambda call: call.answer(b"\x0a\x00")})):
            assert "a container without an id" in error_of(lambda: cri.containers([]))
    with serve(FakeRuntime(instead={"ListContainers": failing(12, "unknown method")})):
        assert error_of(lambda: cri.containers([])).endswith("unknown method (gRPC status 12)"), (
            "CRI is not disabled"
        )
    for version in (
        "1.7.0",
        "1.7.24",
        "2.1.9+unknown",
        "",
        "unknown",
    ):  # only an older containerd has no such store
        with serve(FakeRuntime(version=version, has_store=False)):
            for question in (lambda: cri.containers([A]), lambda: cri.has(A)):
                assert "unknown service containerd.services.sandbox.v1.Store" in error_of(question)
    with serve(FakeRuntime(version="1.6.20", instead={STORE: failing(14, "shutting down")})):
        assert "shutting down" in error_of(lambda: cri.containers([A])), (
            "an older one with a store that fails"
        )
    for failure in (failing(14, "shutting down"), failing(5, "could not find pod: not found")):
        with serve(cri_o(instead={"PodSandboxStatus": failure})):
            assert "PodSandboxStatus: " in error_of(lambda: cri.containers([A]))


def test_each_question_opens_a_connection_so_a_restarted_runtime_is_read(
    serve: Serve, cri: Cri, path: Path
) -> None:
    with serve(FakeRuntime(version="1.6.20~ds1", apis=("v1alpha2",), has_store=False)):
        assert cri.identify().version == "1.6.20~ds1"
        assert cri.containers([A]) == ()
    path.unlink()
    error_of(cri.identify)
    with serve(FakeRuntime(version="2.1.9", stored=[stored(A)])):
        assert cri.identify().version == "2.1.9"
        assert [one.id for one in cri.containers([A])] == [A]


# has


def test_an_id_exists_unless_it_is_denied_everywhere(serve: Serve, cri: Cri) -> None:
    for runtime in CONTAINERD:
        with serve(
            replace(runtime, records={"moby": [record(B)], "k8s.io": [record(C)]})
        ) as server:
            assert cri.has(A) is False
        asked = [
            call.headers["containerd-namespace"]
            for call in server.calls
            if call.method == CONTAINERS
        ]
        assert asked == ["moby", "k8s.io"]
        assert server.calls[-1].method == STORE
        assert {"PodSandboxStatus", "ContainerStatus"} < set(server.methods)
    for known in (
        FakeRuntime(sandboxes=[sandbox(A, fake.NOT_READY)]),
        FakeRuntime(containers=[container(A, fake.EXITED)]),
        FakeRuntime(records={"k8s.io": [record(A)]}),
        FakeRuntime(records={"moby": [record(A)], "k8s.io": []}),
        FakeRuntime(stored=[stored(A)]),
        cri_o(sandboxes=[sandbox(A)]),
        cri_o(containers=[container(A)]),
        cri_o(unborn={A}),
    ):
        with serve(known) as server:
            assert (cri.has(A), cri.has(B)) == (True, False)
    assert server.methods[-3:] == ["PodSandboxStatus", "ContainerStatus", "Version"], (
        "all that CRI-O is asked"
    )


def test_not_found_counts_only_of_this_id_and_any_other_answer_is_never_treated_as_gone(
    serve: Serve, cri: Cri
) -> None:
    for method, message in (
        ("PodSandboxStatus", "not found"),
        ("PodSandboxStatus", ""),
        ("PodSandboxStatus", f'could not find pod "{B}": not found'),
        ("PodSandboxStatus", f"{A[:12]} not found"),
        ("PodSandboxStatus", f"{A}: permission denied"),
        ("PodSandboxStatus", "sandbox not created"),
        ("ContainerStatus", "an error occurred when try to find container: not found"),
        ("ContainerStatus", f'could not find container "{B}": not found'),
    ):
        with serve(FakeRuntime(version="2.1.9", instead={method: failing(5, message)})):
            assert error_of(lambda: cri.has(A)).endswith(
                f": {message or 'no message'} (gRPC status 5)"
            )
    hang_up: Answers = lambda call: call.hang_up()  # noqa: E731
    for method in ("PodSandboxStatus", "ContainerStatus", "Version", NAMESPACES, CONTAINERS, STORE):
        for answer in (
            failing(14, f"{A} not found"),
            failing(2, "not found"),
            malformed,
            hang_up,
            failing(12, A),
        ):
            with serve(FakeRuntime(instead={method: answer})):
                error_of(lambda: cri.has(A))
    for method in ("PodSandboxStatus", "ContainerStatus"):
        for found in (b"", b"\x0a\x42\x0a\x40" + b"b" * 64):  # about something else
            with serve(FakeRuntime(instead={method: lambda call, found=found: call.answer(found)})):  # type: ignore[misc]
                assert f"requested {A}" in error_of(lambda: cri.has(A))


# networks


def test_the_networks_are_those_that_containerd_has_loaded_or_cri_o_is_configured_to_use(
    serve: Serve, cri: Cri
) -> None:
    v6, portmap = (
        {"subnet": "fd00::/64"},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    )
    ranges = [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9"}], [v6]]
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "ipam": {"type": "host-local", "dataDir": "/run/x", "ranges": ranges},
    }
    flannel = {"type": "flannel", "delegate": {"isDefaultGateway": True}}
    multus = {"type": "multus", "delegates": [flannel]}
    sets = ((WrittenRange("10.1.0.0/24", "10.1.0.9"),), (WrittenRange("fd00::/64"),))
    loopback = json.dumps({"Networks": json.loads(cniconfig())["Networks"][:1]})
    for loaded, expected in (
        (
            cniconfig(bridge),
            [
                RuntimeNetwork(
                    "cbr0", ("bridge",), "host-local", "/run/x", sets, forwards_ports=False
                )
            ],
        ),
        (
            cniconfig(flannel, portmap),
            [RuntimeNetwork("cbr0", ("flannel", "portmap"), "host-local")],
        ),
        (cniconfig(multus, portmap), [RuntimeNetwork("cbr0", ("flannel",), "host-local")]),
        *((none, []) for none in ('{"Networks": []}', '{"Networks": null}', loopback)),
    ):
        with serve(
            FakeRuntime(info={"cniconfig": loaded} | ({"config": "{}"} if expected else {}))
        ):
            networks = cri.networks().loaded
        assert networks is not None
        assert [network for one in networks for network in networks_of(one, dict)] == expected
    with serve(cri_o(info={"config": "{}"})) as server:
        for answer, status in (
            (http("", "404 Not Found"), (None, "")),
            (
                http('[crio.network]\nnetwork_dir = "/x"\ncni_default_network = "y"'),
                (Path("/x"), "y"),
            ),
            (http('[crio.network]\nnetwork_dir = ""\ncni_default_network = ""'), (None, "")),
        ):
            server.http = answer
            found = cri.networks()
            assert (found.loaded, found.directory, found.default) == (None, *status)
        for silent, why in (
            (b"", "GET /config"),
            (http("[crio.network]\nnetwork_dir = 7"), "cannot parse the response"),
        ):
            server.http = silent
            assert why in error_of(cri.networks)
    for config in (
        "", "null", "[]", "{}", "[" * 100_000, '{"Networks": [null]}', '{"Networks": [{}]}',
        '{"Networks": [{"Config": {"Name": "x"}}]}', '{"Networks": [{"Config": {"Name": "x", "Plugins": [{}]}}]}',
    ):  # fmt: skip
        with serve(FakeRuntime(info={"cniconfig": config})):
            assert "cannot parse the response" in error_of(cri.networks)
