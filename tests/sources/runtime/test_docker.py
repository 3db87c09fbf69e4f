"""Docker's list, through the real client: from a fake on a unix socket."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model.snapshot import Container
from agent.sources.runtime.docker import Docker
from agent.sources.source_error import SourceError
from tests.fakes import cri
from tests.wire import (
    CHUNKED,
    HTML,
    ID,
    Answer,
    Answers,
    FakeServer,
    Request,
    chunk,
    error_of,
    hang,
    http,
)

LABELS = cri.LABELS | {"io.kubernetes.docker.type": "podsandbox"}

# The docker package forgets the socket of a client that could not be made; the collector finds it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(autouse=True, scope="module")
def _collected_here() -> Iterator[None]:
    yield
    gc.collect()


def item(
    container_id: str = ID, state: str = "running", labels: object = None
) -> dict[str, object]:
    return {
        "Id": container_id,
        "State": state,
        "Created": 1_700_000_000,
        "Labels": labels,
        "Names": ["/x"],
    }


def engine(listed: object, version: str = "1.41") -> Answers:
    """Answer as docker does, with whatever it is to list; bytes are sent as they are."""

    def answer(request: Request) -> Answer:
        if request.path == "/version":
            return [http(json.dumps({"ApiVersion": version}))]
        return [listed if isinstance(listed, bytes) else http(json.dumps(listed))]

    return answer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    with FakeServer(engine([]), at=tmp_path / "docker.sock") as started:
        yield started


@pytest.fixture
def client(server: FakeServer) -> Iterator[Docker]:
    made = Docker(server.url, 1.0)
    yield made
    made.close()


# The list


def test_every_container_is_listed_in_every_state_with_one_request(
    server: FakeServer, client: Docker
) -> None:
    states = ("created", "running", "paused", "restarting", "removing", "exited", "dead")
    server.answers = engine([item(state * 3, state) for state in states])
    listed = client.containers()
    assert [(one.id, one.state) for one in listed] == [(state * 3, state) for state in states]
    assert [one.state for one in listed if one.running] == ["running", "paused", "restarting"]
    (asked,) = server.requested("containers")
    assert asked.startswith("/v1.41/containers/json?")
    assert "all=1" in asked
    assert "size=0" in asked, "sizes would walk the disk"
    assert "filters" not in asked
    server.answers = engine([])
    assert [client.containers() for _ in range(3)] == [(), (), ()], "which is not unavailable"
    assert len(server.requested("/containers/json")) == 4
    assert len(server.requested("/version")) == 1
    application = {**LABELS, "io.kubernetes.docker.type": "container"}
    server.answers = engine([item("a", labels=LABELS), item("b", labels=application), item("c")])
    assert client.containers() == (
        Container("a", "running", 1_700_000_000, "shop/web-0", "u-1", sandbox=True),
        Container("b", "running", 1_700_000_000, "shop/web-0", "u-1", sandbox=False),
        Container("c", "running", 1_700_000_000, "", "", sandbox=False),
    )


def test_an_answer_that_is_no_container_list_is_unavailable(
    server: FakeServer, client: Docker
) -> None:
    for listed in (
        {}, {"message": "page not found"}, None, "", 0, "containers", [None], [{"State": "running"}], [{"Id": ID}],
        [{"Id": 7, "State": "running"}], [{"Id": ID, "State": {"Running": True}}], [{**item(), "Labels": ["x"]}],
        [{**item(), "Labels": {"io.kubernetes.pod.uid": 7}}], [{**item(), "Created": "yesterday"}],
        [{**item(), "Created": float("inf")}], [{**item(), "Created": []}, 5], [item(), {"Id": "f" * 64}],
    ):  # fmt: skip
        server.answers = engine(listed)
        assert "cannot parse the response" in error_of(client.containers), listed
    for answer, text in (
        (http(HTML, kind="text/html"), "docker: "),
        (http(HTML, "502 Bad Gateway", "text/html"), "502 Server Error"),
        (http('{"message": "no space left"}', "500 Internal Server Error"), "no space left"),
        (http(json.dumps([item()]))[:-40], "docker: "),
        (CHUNKED + chunk(b"["), "docker: "),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/js", "docker: "),
        (b"", "docker: "),
        (http("[" * 100_000), "docker"),
    ):
        server.answers = engine(answer)
        assert text in error_of(client.containers)
    server.answers = lambda _: [http("{}")]
    assert 'key "ApiVersion" is missing' in error_of(client.containers)


def test_a_long_list_is_read_in_the_pieces_in_which_it_comes_and_an_endless_container_refused(
    server: FakeServer, client: Docker
) -> None:
    ids = [f"{number:064x}" for number in range(300)]
    notes = {"annotation.example.com/injected": "é" * 5_000}
    listed = json.dumps([item(one, "exited", LABELS | notes) for one in ids], ensure_ascii=False)
    text = listed.encode()
    pieces = (text[at : at + 9_999] for at in range(0, len(text), 9_999))
    server.answers = engine(CHUNKED + b"".join(map(chunk, pieces)) + b"0\r\n\r\n")
    assert [one.id for one in client.containers()] == ids
    server.answers = engine([item(labels={"x": "x" * (5 << 20)}), item("f" * 64)])
    assert "an object is longer than" in error_of(client.containers)
    server.answers = engine([item()])
    assert len(client.containers()) == 1


def test_headers_that_docker_s_configuration_adds_are_sent_for_the_list_too(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"HttpHeaders": {"X-Meta": "agent"}}')
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    client = Docker(server.url, 5)
    server.answers = engine([])
    client.containers()
    client.close()
    assert [request.headers["x-meta"] for request in server.requests] == ["agent"] * 2


def test_after_a_restart_or_an_upgrade_the_same_client_reads_the_engine_again(
    server: FakeServer, client: Docker, tmp_path: Path
) -> None:
    too_old = http(
        '{"message": "client version 1.41 is too old. Minimum supported API version is 1.44"}',
        "400 Bad",
    )
    speaks = "1.41"

    def upgraded(request: Request) -> Answer:
        if request.path == "/version":
            return [http(json.dumps({"ApiVersion": speaks}))]
        return [http(json.dumps([item()])) if f"/v{speaks}/" in request.path else too_old]

    server.answers = upgraded
    client.containers()
    speaks = "1.44"
    assert "too old" in error_of(client.containers)
    assert len(client.containers()) == 1
    assert [target.split("/")[1] for target in server.requested("/containers")] == [
        "v1.41",
        "v1.41",
        "v1.44",
    ]
    path = tmp_path / "docker.sock"
    path.unlink()
    for question in (client.containers, lambda: client.has(ID)):
        assert (
            error_of(question) == f"cannot connect to docker at {path}: no such file or directory"
        )
    with FakeServer(engine([item(), item("f" * 64)]), at=path):
        assert len(client.containers()) == 2


def test_an_engine_that_hangs_times_out(server: FakeServer) -> None:
    good = engine([item()])
    for part in ("/version", "/containers"):
        client = Docker(server.url, 0.3)
        server.answers = lambda request: hang(server) if part in request.target else good(request)  # noqa: B023
        assert "timed out" in error_of(client.containers).lower()
        assert "timed out" in error_of(lambda: client.has(ID)).lower(), (  # noqa: B023
            "and is never treated as gone"
        )
        client.close()


# One container


def no_such(container_id: str = ID) -> bytes:
    """Return what docker 20.10 to 28 says."""
    return http(json.dumps({"message": f"No such container: {container_id}"}), "404 Not Found")


def test_a_container_is_gone_only_if_docker_says_so(server: FakeServer, client: Docker) -> None:
    found = http(json.dumps({"Id": ID, "State": {"Status": "dead"}}))
    for known, exists in ((found, True), (no_such(), False)):
        server.answers = engine(known)
        assert client.has(ID) is exists
    assert server.requested("/containers/") == [f"/v1.41/containers/{ID}/json"] * 2
    for answer, text in (
        (http('{"message": "page not found"}', "404 Not Found"), "page not found"),
        (http(HTML, "404 Not Found", "text/html"), "404 Client Error"),
        (http("", "404 Not Found"), "404 Client Error"),
        (http('{"message": ""}', "404 Not Found"), "404 Client Error"),
        (http('{"message": null}', "404 Not Found"), "docker"),
        (http('{"message": ["No such container"]}', "404 Not Found"), "docker"),
        (http('["No such container"]', "404 Not Found"), "docker"),
        (no_such("f" * 64), "No such container: ffff"),
        (no_such(""), "No such container: "),
        (no_such(ID[:12]), "No such container: 0123456789ab"),
        (
            http(json.dumps({"message": f"No such container: {ID}"}), "500 Internal Server Error"),
            "500 Server Error",
        ),
        (
            http(json.dumps({"message": f"No such container: {ID}"})),
            "cannot parse the response (KeyError('Id'))",
        ),
        (http(HTML, "502 Bad Gateway", "text/html"), "502 Server Error"),
        (http('{"message": "driver failed"}', "500 Internal Server Error"), "driver failed"),
        (http('{"message": "conflict"}', "409 Conflict"), "conflict"),
        (http(json.dumps({"Id": "f" * 64})), f"requested {ID}, got {'f' * 64}"),
        (http(json.dumps({"Id": ID[:12]})), "got 0123456789ab"),
        (http("{}"), "cannot parse the response"),
        (http("[]"), "cannot parse the response"),
        (http("null"), "cannot parse the response"),
        (http(HTML, kind="text/html"), "docker: "),
        (http(json.dumps({"Id": ID}))[:-10], "docker: "),
        (b"", "docker: "),
    ):
        server.answers = engine(answer)
        assert text in error_of(lambda: client.has(ID))


# Where it is


def test_the_engine_may_be_in_the_environment_or_on_tcp_and_an_invalid_host_is_reported(
    monkeypatch: pytest.MonkeyPatch, server: FakeServer, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", server.url)
    server.answers = engine([item()])
    with FakeServer(server.answers) as remote:
        for client in (Docker(None, 5), Docker(remote.url.replace("http", "tcp"), 5)):
            assert len(client.containers()) == 1
            client.close()
    for host in ("nonsense", "tcp://", "ftp://10.0.0.1", "tcp://host:port", "://"):
        with pytest.raises(SourceError, match=r"^invalid docker host: ."):
            Docker(host, 5)
    monkeypatch.setenv("DOCKER_HOST", "nonsense://10.0.0.1")
    with pytest.raises(
        SourceError, match="invalid docker host: Invalid bind address protocol: nonsense"
    ):
        Docker(None, 5)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2376")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    with pytest.raises(SourceError, match=r"invalid docker host: .*cert"):
        Docker(None, 5)
