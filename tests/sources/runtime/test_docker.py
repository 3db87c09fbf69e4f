"""Docker's list, through the real client: from a fake on a unix socket, and from a real engine if one runs."""

import gc
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.snapshot import Container
from agent.sources.deadline import Deadline
from agent.sources.runtime import runtime
from agent.sources.runtime.docker import Docker
from agent.sources.source_error import SourceError
from tests.wire import CHUNKED, HTML, ID, Answer, Answers, FakeServer, Request, chunk, hang, http, needs, run

REAL_ENGINE = "unix:///var/run/docker.sock"
LABELS = {
    "io.kubernetes.pod.name": "web-0",
    "io.kubernetes.pod.namespace": "shop",
    "io.kubernetes.pod.uid": "u-1",
    "io.kubernetes.docker.type": "podsandbox",
}

# The docker package forgets the socket of a client that could not be made; the collector finds it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(autouse=True, scope="module")
def _collected_here() -> Iterator[None]:
    yield
    gc.collect()


def item(container_id: str = ID, state: str = "running", labels: object = None) -> dict[str, object]:
    return {"Id": container_id, "State": state, "Created": 1_700_000_000, "Labels": labels, "Names": ["/x"]}


def engine(listed: object, version: str = "1.41") -> Answers:
    """Answer as docker does, with whatever it is to list; bytes are sent as they are."""

    def answer(request: Request) -> Answer:
        if request.path == "/version":
            return [http(json.dumps({"ApiVersion": version}))]
        return [listed if isinstance(listed, bytes) else http(json.dumps(listed))]

    return answer


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    return tmp_path / "docker.sock"


@pytest.fixture
def to(socket_path: Path) -> Iterator[Callable[..., Docker]]:
    """Return a function that creates clients of the fake, and close them."""
    made: list[Docker] = []

    def client(timeout: float = 5.0) -> Docker:
        made.append(Docker(f"unix://{socket_path}", timeout))
        return made[-1]

    yield client
    for one in made:
        one.close()


def error_of(client: Docker) -> str:
    with pytest.raises(SourceError) as raised:
        client.containers()
    text = str(raised.value)
    assert len(text) < 300, "an operator reads this in one line"
    assert "\n" not in text
    return text


def test_every_container_is_listed_in_every_state(socket_path: Path, to: Callable[..., Docker]) -> None:
    states = ("created", "running", "paused", "restarting", "removing", "exited", "dead")
    with FakeServer(engine([item(state * 3, state) for state in states]), at=socket_path) as server:
        listed = to().containers()
    assert [(one.id, one.state) for one in listed] == [(state * 3, state) for state in states]
    assert [one.state for one in listed if one.running] == ["running", "paused", "restarting"]
    (asked,) = server.requested("containers")
    assert asked.startswith("/v1.41/containers/json?")
    assert "all=1" in asked
    assert "size=0" in asked, "sizes would walk the disk"
    assert "filters" not in asked


def test_labels_name_the_pod_and_mark_the_sandbox(socket_path: Path, to: Callable[..., Docker]) -> None:
    application = {**LABELS, "io.kubernetes.docker.type": "container"}
    with FakeServer(engine([item("a", labels=LABELS), item("b", labels=application), item("c")]), at=socket_path):
        listed = to().containers()
    assert listed == (
        Container("a", "running", 1_700_000_000, "shop/web-0", "u-1", sandbox=True),
        Container("b", "running", 1_700_000_000, "shop/web-0", "u-1", sandbox=False),
        Container("c", "running", 1_700_000_000, "", "", sandbox=False),
    )


def test_an_empty_list_is_empty_and_not_unavailable(socket_path: Path, to: Callable[..., Docker]) -> None:
    with FakeServer(engine([]), at=socket_path):
        assert to().containers() == ()


def test_each_reading_is_one_request_and_the_version_is_requested_once(
    socket_path: Path, to: Callable[..., Docker]
) -> None:
    with FakeServer(engine([item()]), at=socket_path) as server:
        client = to()
        for _ in range(3):
            client.containers()
    assert len(server.requested("/containers/json")) == 3
    assert len(server.requested("/version")) == 1
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("listed", "text"),
    [
        ({}, "cannot parse the response"),
        ({"message": "page not found"}, "cannot parse the response"),
        (None, "cannot parse the response"),
        ("", "cannot parse the response"),
        (0, "cannot parse the response"),
        ("containers", "cannot parse the response"),
        ([None], "cannot parse the response"),
        ([{"State": "running"}], "cannot parse the response (KeyError('Id'))"),
        ([{"Id": ID}], "cannot parse the response (KeyError('State'))"),
        ([{"Id": 7, "State": "running"}], "cannot parse the response"),
        ([{"Id": ID, "State": {"Running": True}}], "cannot parse the response"),
        ([{**item(), "Labels": ["x"]}], "cannot parse the response"),
        ([{**item(), "Labels": {"io.kubernetes.pod.uid": 7}}], "cannot parse the response"),
        ([{**item(), "Created": "yesterday"}], "cannot parse the response"),
        ([{**item(), "Created": float("inf")}], "cannot parse the response"),
        ([{**item(), "Created": []}, 5], "cannot parse the response"),
    ],
)
def test_an_answer_that_is_no_container_list_is_unavailable(
    socket_path: Path, to: Callable[..., Docker], listed: object, text: str
) -> None:
    with FakeServer(engine(listed), at=socket_path):
        assert text in error_of(to())


def test_one_invalid_item_makes_the_list_unavailable(socket_path: Path, to: Callable[..., Docker]) -> None:
    with FakeServer(engine([item(), {"Id": "f" * 64}]), at=socket_path):
        assert "KeyError('State')" in error_of(to())


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (http(HTML, kind="text/html"), "docker: "),
        (http(HTML, "502 Bad Gateway", "text/html"), "502 Server Error"),
        (http('{"message": "no space left"}', "500 Internal Server Error"), "no space left"),
        (http(json.dumps([item()]))[:-40], "docker: "),
        (CHUNKED + chunk(b"["), "docker: "),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/js", "docker: "),
        (b"", "docker: "),
        (http("[" * 100_000), "docker"),
    ],
    ids=[
        "HTML", "502", "500", "dies in the body", "dies in a chunk", "dies in the head", "hangs up", "deep",
    ],
)  # fmt: skip
def test_a_bad_answer_is_retried_three_times_and_truncated(
    socket_path: Path, to: Callable[..., Docker], answer: bytes, text: str
) -> None:
    with FakeServer(engine(answer), at=socket_path) as server:
        assert text in error_of(to())
    assert 1 <= len(server.requested("/containers/json")) <= 3


def test_an_engine_that_recovers_at_once_is_read(socket_path: Path, to: Callable[..., Docker]) -> None:
    answers = iter([http(HTML, "502 Bad Gateway", "text/html"), http(json.dumps([item()]))])

    def recovering(request: Request) -> Answer:
        return [http('{"ApiVersion": "1.41"}') if request.path == "/version" else next(answers)]

    with FakeServer(recovering, at=socket_path) as server:
        assert [one.id for one in to().containers()] == [ID]
    assert len(server.requested("/containers/json")) == 2


def test_without_a_socket_the_error_names_the_path(to: Callable[..., Docker]) -> None:
    start = time.perf_counter()
    text = error_of(to())
    assert text.startswith("cannot connect to docker at /")
    assert text.endswith("/docker.sock: no such file or directory")
    assert time.perf_counter() - start < 3


def test_after_a_restart_the_same_client_reads_the_engine_again(socket_path: Path, to: Callable[..., Docker]) -> None:
    client = to()
    with FakeServer(engine([item()]), at=socket_path):
        assert len(client.containers()) == 1
    socket_path.unlink()
    error_of(client)
    with FakeServer(engine([item(), item("f" * 64)]), at=socket_path):
        assert len(client.containers()) == 2


@pytest.mark.parametrize("part", ["/version", "/containers"], ids=["at the first word", "when it lists"])
def test_an_engine_that_hangs_times_out(socket_path: Path, to: Callable[..., Docker], part: str) -> None:
    good = engine([item()])
    server: FakeServer = FakeServer(
        lambda request: hang(server) if part in request.target else good(request), at=socket_path
    )
    with server:
        start = time.perf_counter()
        text = error_of(to(0.3))
        assert time.perf_counter() - start < 1.5
    assert "timed out" in text.lower()
    assert len(server.requested(part)) == 1, "who hangs has had its chance"


def test_too_many_containers_are_unavailable(
    socket_path: Path, to: Callable[..., Docker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "MOST_CONTAINERS", 100)
    with FakeServer(engine([item()] * 101), at=socket_path):
        assert "more than 100 containers" in error_of(to())


def test_a_pod_with_an_endless_name_is_not_kept(socket_path: Path, to: Callable[..., Docker]) -> None:
    with FakeServer(engine([item(labels={**LABELS, "io.kubernetes.pod.name": "x" * 1000})]), at=socket_path):
        assert "a text of 1,005 characters" in error_of(to())


def test_after_an_upgrade_the_api_version_is_negotiated_again(socket_path: Path, to: Callable[..., Docker]) -> None:
    too_old = http('{"message": "client version 1.41 is too old. Minimum supported API version is 1.44"}', "400 Bad")
    speaks = "1.41"

    def upgraded(request: Request) -> Answer:
        if request.path == "/version":
            return [http(json.dumps({"ApiVersion": speaks}))]
        return [http(json.dumps([item()])) if f"/v{speaks}/" in request.path else too_old]

    with FakeServer(upgraded, at=socket_path) as server:
        client = to()
        client.containers()
        speaks = "1.44"
        assert len(client.containers()) == 1
    assert [target.split("/")[1] for target in server.requested("/containers")] == ["v1.41", "v1.41", "v1.44"]


def test_an_engine_without_a_version_is_unavailable(socket_path: Path, to: Callable[..., Docker]) -> None:
    with FakeServer(lambda _: [http("{}")], at=socket_path):
        assert 'key "ApiVersion" is missing' in error_of(to())


def no_such(container_id: str = ID) -> bytes:
    """Say as docker 20.10 to 28 does that there is no such container."""
    return http(json.dumps({"message": f"No such container: {container_id}"}), "404 Not Found")


def answers_of(found: bytes) -> Answers:
    """Answer for one container, and list nothing."""
    lists = engine([])
    return lambda request: (
        [found] if "/containers/" in request.path and request.path.endswith("/json") else lists(request)
    )


def why_not_told(client: Docker) -> str:
    with pytest.raises(SourceError) as raised:
        client.has(ID)
    text = str(raised.value)
    assert len(text) < 400, "an operator reads this in one line"
    return text


def test_a_container_that_can_be_inspected_exists_in_any_state(socket_path: Path, to: Callable[..., Docker]) -> None:
    found = http(json.dumps({"Id": ID, "State": {"Status": "dead"}}))
    with FakeServer(answers_of(found), at=socket_path) as server:
        assert to().has(ID) is True
    assert server.requested("/containers/") == [f"/v1.41/containers/{ID}/json"]


def test_a_container_is_gone_only_if_docker_says_so(socket_path: Path, to: Callable[..., Docker]) -> None:
    with FakeServer(answers_of(no_such()), at=socket_path) as server:
        assert to().has(ID) is False
    assert len(server.requested("/containers/")) == 1, "a definite answer is not asked for twice"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
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
        (http(json.dumps({"message": f"No such container: {ID}"}), "500 Internal Server Error"), "500 Server Error"),
        (http(json.dumps({"message": f"No such container: {ID}"})), "cannot parse the response (KeyError('Id'))"),
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
    ],
)
def test_any_other_answer_is_never_treated_as_gone(
    socket_path: Path, to: Callable[..., Docker], answer: bytes, text: str
) -> None:
    with FakeServer(answers_of(answer), at=socket_path) as server:
        assert text in why_not_told(to())
    assert 1 <= len(server.requested("/containers/")) <= 3


def test_an_engine_that_hangs_is_never_treated_as_gone(socket_path: Path, to: Callable[..., Docker]) -> None:
    good = engine([])
    server: FakeServer = FakeServer(
        lambda request: hang(server) if "/containers/" in request.target else good(request), at=socket_path
    )
    with server:
        start = time.perf_counter()
        assert "timed out" in why_not_told(to(0.3)).lower()
        assert time.perf_counter() - start < 1.5
    assert len(server.requested("/containers/")) == 1


def test_a_missing_engine_is_never_treated_as_gone(to: Callable[..., Docker]) -> None:
    assert why_not_told(to()).endswith("/docker.sock: no such file or directory")


def test_docker_host_from_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, socket_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{socket_path}")
    with FakeServer(engine([item()]), at=socket_path):
        client = Docker(None, 5)
        assert len(client.containers()) == 1
        client.close()


def test_an_engine_on_tcp_is_read_too() -> None:
    with FakeServer(engine([item()])) as server:
        client = Docker(server.url.replace("http", "tcp"), 5)
        assert len(client.containers()) == 1
        client.close()


@pytest.mark.parametrize("host", ["nonsense", "tcp://", "ftp://10.0.0.1", "tcp://host:port", "://"])
def test_an_invalid_host_is_reported_at_the_start(host: str) -> None:
    with pytest.raises(SourceError, match=r"^invalid docker host: ."):
        Docker(host, 5)


def test_an_invalid_host_from_the_environment_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "nonsense://10.0.0.1")
    with pytest.raises(SourceError, match="invalid docker host: Invalid bind address protocol: nonsense"):
        Docker(None, 5)


def test_missing_tls_certificates_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2376")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    with pytest.raises(SourceError, match=r"invalid docker host: .*cert"):
        Docker(None, 5)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["Id", "State", "Created", "Labels", "io.kubernetes.pod.name"]), inner, max_size=5
        )
    ),
    max_leaves=12,
)


class Lists:
    """A fake docker client that lists the given containers: a socket for each example would take minutes."""

    def __init__(self, listed: object) -> None:
        self.listed = listed

    def containers(self, **_: object) -> object:
        return self.listed

    def close(self) -> None:
        """Nothing is open."""


@given(listed=json_values)
def test_any_json_is_containers_or_unavailable(listed: object) -> None:
    client = Docker(REAL_ENGINE, 0.1)
    client._client = Lists(listed)  # type: ignore[assignment]  # noqa: SLF001 (see Lists)
    try:
        containers = client.containers()
    except SourceError:
        return
    assert isinstance(listed, list)
    assert len(containers) == len(listed)
    assert all(isinstance(text, str) for one in containers for text in (one.id, one.state, one.pod, one.pod_uid))


def _engine_answers() -> bool:
    """Ask with docker's own client: a socket outlives an engine that was killed."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    command = ["timeout", "10", docker, "--host", REAL_ENGINE, "version"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603


def test_a_real_engine_inspects_each_of_its_containers() -> None:
    needs(_engine_answers(), f"a docker engine that answers at {REAL_ENGINE}")
    client = Docker(REAL_ENGINE, 10)
    try:
        assert client.has(ID) is False
        for one in client.containers()[:3]:
            # It may have gone since, and then docker says so.
            assert client.has(one.id) or one.id not in {left.id for left in client.containers()}
    finally:
        client.close()


def test_a_real_engine_lists_what_docker_ps_lists() -> None:
    needs(_engine_answers(), f"a docker engine that answers at {REAL_ENGINE}")
    client = Docker(REAL_ENGINE, 10)
    for _ in range(3):
        # Containers come and go on a node: the same list before and after is the one to compare with.
        before = sorted(run("docker", "--host", REAL_ENGINE, "ps", "-aq", "--no-trunc").split())
        listed = sorted(one.id for one in client.containers())
        if before == sorted(run("docker", "--host", REAL_ENGINE, "ps", "-aq", "--no-trunc").split()):
            break
    client.close()
    assert listed == before


def _is_read(in_time: Deadline, client: Docker) -> bool:
    try:
        return len(in_time(client.containers)) == 1
    except SourceError:
        return False
