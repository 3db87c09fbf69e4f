"""HTTPS with real certificates: who is answered, which bad clients matter, and rotation."""

import http.client
import json
import os
import shutil
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from agent.config import UsageError
from tests.builders import node, reservation, scanned
from tests.certificates import Authority, Pair
from tests.cli.commands import running
from tests.exporters.served import Server, serving
from tests.exporters.web import attacks
from tests.network import BRIDGE4, network
from tests.wire import until

LEAKING = scanned(node(reservation("10.244.1.9")))
PATHS = ("/metrics", "/healthz", "/readyz", "/", "/api/v1/report", "/api/v1/status")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.sign("agent")


@pytest.fixture
def server(tmp_path: Path, pair: Pair) -> Iterator[Server]:
    with tls_server(tmp_path, pair) as served:
        yield served


def tls_server(
    home: Path, pair: Pair, client_ca: Path | None = None, seconds: float = 15.0
) -> AbstractContextManager[Server]:
    more: dict[str, Any] = {"tls_client_ca_file": str(client_ca)} if client_ca else {}
    return serving(
        home / "state",
        seconds=seconds,
        tls_cert_file=str(pair.certificate),
        tls_key_file=str(pair.key),
        **more,
    )


def trusting(certificate: Path, shown: Pair | None = None) -> ssl.SSLContext:
    """Return what a client needs that verifies the server, and perhaps shows a certificate."""
    context = ssl.create_default_context(cafile=str(certificate))
    if shown:
        context.load_cert_chain(*shown)
    return context


def ask(port: int, context: ssl.SSLContext, path: str = "/healthz") -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    with closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status


def serial(port: int) -> object:
    """Return the serial number of the certificate that is shown."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        ssl._create_unverified_context().wrap_socket(plain) as connection,  # noqa: S323, SLF001
    ):
        return connection.getpeercert(binary_form=True)


def test_every_path_is_served_over_tls_and_none_in_plain_text(
    server: Server, authority: Authority
) -> None:
    server.export(LEAKING, 0.1)
    context = trusting(authority.certificate)
    assert {ask(server.port, context, path) for path in PATHS} == {200}
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
        plain.sendall(attacks.REQUEST)
        received = b""
        with suppress(ConnectionResetError):
            while part := plain.recv(1000):
                received += part
    assert b"200" not in received
    assert b"nodeleak" not in received
    assert server.logged == []


def test_an_answer_ends_as_tls_says_so_that_it_cannot_be_cut(
    server: Server, authority: Authority
) -> None:
    context = trusting(authority.certificate)
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain,
        context.wrap_socket(
            plain, server_hostname="127.0.0.1", suppress_ragged_eofs=False
        ) as connection,
    ):
        connection.sendall(attacks.REQUEST)
        while connection.recv(65536):
            pass


def test_only_tls_1_2_and_newer(server: Server, authority: Authority) -> None:
    for newest, accepted in (("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)):
        context = trusting(authority.certificate)
        context.set_ciphers("DEFAULT@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.TLSv1_1
            context.maximum_version = ssl.TLSVersion[newest]
        if accepted:
            assert ask(server.port, context) == 200
        else:
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                ask(server.port, context)


def test_a_client_that_never_finishes_its_handshake_costs_only_its_own_connection(
    tmp_path: Path, pair: Pair, authority: Authority
) -> None:
    context = trusting(authority.certificate)
    with tls_server(tmp_path, pair, seconds=1.0) as server:
        assert ask(server.port, context) == 200
        before = attacks.descriptors()
        silent = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(20)]
        for number, client in enumerate(silent):
            client.sendall(b"\x16\x03\x01\x02\x00\x01"[: number % 7])
        assert ask(server.port, context) == 200
        for client in silent:
            with suppress(ConnectionResetError):
                while client.recv(100):  # a handshake that is no handshake gets an alert
                    pass
            client.close()
        attacks.reset_everywhere(
            lambda: socket.create_connection(("127.0.0.1", server.port), 10), 1, step=5
        )
        until(lambda: attacks.descriptors() <= before, "every connection is closed")
        assert server.logged == []


def test_a_slow_answer_is_ended_over_tls_too(
    tmp_path: Path, pair: Pair, authority: Authority
) -> None:
    """The client reads nothing, and its handshake is done."""
    context = trusting(authority.certificate)
    with (
        tls_server(tmp_path, pair, seconds=0.5) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as client,
    ):
        client.sendall(b"GET /metrics HTTP/1.1\r\n")  # never complete
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
        assert ask(server.port, context) == 200
        assert server.logged == []


def test_a_new_pair_is_served_and_a_broken_one_changes_nothing(
    tmp_path: Path, authority: Authority
) -> None:
    """As Kubernetes replaces a Secret: a link leads to another directory at once."""
    first, second = authority.sign("first"), authority.sign("second")
    mount = tmp_path / "mount"
    mount.mkdir()

    def publish(name: str, certificate: Path, key: Path) -> None:
        version = mount / name
        version.mkdir()
        shutil.copy(certificate, version / "tls.crt")
        shutil.copy(key, version / "tls.key")
        link = mount / "..data.new"
        link.symlink_to(name)
        link.replace(mount / "..data")

    publish("1", *first)
    shown = Pair(mount / "..data/tls.crt", mount / "..data/tls.key")
    with tls_server(tmp_path, shown) as server:
        server.export(LEAKING, 0.1)
        original = serial(server.port)
        publish("2", first.certificate, second.key)  # not a pair
        for _ in range(3):
            server.export(LEAKING, 0.1)
        assert serial(server.port) == original
        (line,) = server.events("tls.reload_failed")
        assert line["log_level"] == "error"
        assert str(shown.key) in line["why"]
        (mount / "..data").unlink()
        server.export(LEAKING, 0.1)
        assert serial(server.port) == original
        assert "no such file" in server.events("tls.reload_failed")[-1]["why"]
        publish("3", *second)
        server.export(LEAKING, 0.1)
        assert serial(server.port) != original
        assert len(server.events("tls.reloaded")) == 1
        server.export(LEAKING, 0.1)
        assert len(server.events("tls.reloaded")) == 1


def test_a_file_that_is_a_fifo_is_reported_and_holds_up_neither_sync_nor_start(
    tmp_path: Path, authority: Authority, pair: Pair
) -> None:
    shown = Pair(tmp_path / "tls.crt", tmp_path / "tls.key")
    for replaced in shown:
        for source, path in zip(pair, shown, strict=True):
            path.unlink(missing_ok=True)
            shutil.copy(source, path)
        with tls_server(tmp_path, shown) as server:
            replaced.unlink()
            os.mkfifo(replaced)
            synced = threading.Event()
            threading.Thread(
                target=lambda end=synced, served=server: (served.export(LEAKING, 0.1), end.set()),
                daemon=True,
            ).start()
            until(synced.is_set, "the sync goes on")
            (line,) = server.events("tls.reload_failed")
            assert line["why"] == f"{replaced}: not a regular file: name a PEM file"
            assert ask(server.port, trusting(authority.certificate)) == 200
        with pytest.raises(UsageError) as raised, tls_server(tmp_path, shown):
            pass
        assert f"{replaced}: not a regular file" in str(raised.value)


def test_a_certificate_that_cannot_be_used_is_wrong_usage(
    tmp_path: Path, authority: Authority, pair: Pair
) -> None:
    other = authority.sign("other")
    garbage = tmp_path / "garbage"
    garbage.write_text("-----BEGIN NOTHING-----\n")
    missing = tmp_path / "missing"
    cases: list[tuple[dict[str, Path], str]] = [
        (
            {"cert": pair.certificate},
            f"--tls-cert-file={pair.certificate} needs --tls-key-file (NODELEAK_TLS_KEY_FILE)",
        ),
        ({"key": pair.key}, f"--tls-key-file={pair.key} needs --tls-cert-file"),
        ({"client_ca": pair.certificate}, "needs --tls-cert-file (NODELEAK_TLS_CERT_FILE)"),
        (
            {"cert": missing, "key": pair.key},
            f"--tls-cert-file (NODELEAK_TLS_CERT_FILE): cannot read {missing}: no such file",
        ),
        (
            {"cert": garbage, "key": pair.key},
            f"(NODELEAK_TLS_CERT_FILE): {garbage} has no certificate that can be read: it needs PEM",
        ),
        (
            {"cert": pair.certificate, "key": garbage},
            f"(NODELEAK_TLS_KEY_FILE): {garbage} has no private key that can be read: it needs PEM",
        ),
        (
            {"cert": pair.certificate, "key": other.key},
            f"{other.key} is not the key of {pair.certificate}: name the files of one pair",
        ),
        (
            {"cert": pair.certificate, "key": pair.key, "client_ca": garbage},
            f"(NODELEAK_TLS_CLIENT_CA_FILE): {garbage} has no certificate",
        ),
    ]
    for files, message in cases:
        given: dict[str, Any] = {f"tls_{name}_file": str(path) for name, path in files.items()}
        with pytest.raises(UsageError) as raised, serving(tmp_path / "state", **given):
            pass
        assert message in str(raised.value)


def test_a_stranger_is_refused_in_the_handshake_and_this_machine_needs_no_certificate(
    tmp_path: Path, authority: Authority, pair: Pair
) -> None:
    stranger = Authority(tmp_path / "stranger", "stranger").sign("client")
    with tls_server(tmp_path, pair, authority.certificate) as server:
        server.export(LEAKING, 0.1)
        with pytest.raises((ssl.SSLError, ConnectionResetError, BrokenPipeError)):
            ask(server.port, trusting(authority.certificate, stranger))
        for context in (
            trusting(authority.certificate),
            trusting(authority.certificate, authority.sign("client")),
        ):
            assert {ask(server.port, context, path) for path in PATHS} == {200}
        assert server.logged == []


ANOTHER_MACHINE = """
import http.client, json, ssl, sys
host, ca, *shown = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
context.check_hostname = False
if shown:
    context.load_cert_chain(*shown)
answers = {}
for path in ("/metrics", "/healthz", "/readyz", "/", "/api/v1/report", "/api/v1/status", "/x"):
    connection = http.client.HTTPSConnection(host, 9747, timeout=10, context=context)
    connection.request("GET", path)
    answer = connection.getresponse()
    answers[path] = [answer.status, answer.read().decode()]
    connection.close()
print(json.dumps(answers))
"""


def test_other_machines_need_a_certificate_for_everything_but_the_probes(
    tmp_path: Path, authority: Authority, pair: Pair
) -> None:
    client = authority.sign("prometheus")
    elsewhere = [
        f"--{name}={tmp_path}/{name}"
        for name in ("cni-networks-dir", "cni-cache-dir", "state-dir", "proc")
    ]
    tls = (
        f"--tls-cert-file={pair.certificate}",
        f"--tls-key-file={pair.key}",
        f"--tls-client-ca-file={authority.certificate}",
    )
    with (
        network() as net,
        running("--api=off", "--listen=:9747", *elsewhere, *tls, prefix=net.enter()) as agent,
    ):
        net.pod("other", 2)
        agent.log_event("agent.started")
        within = ("ip", "netns", "exec", "other")
        answers = [
            json.loads(
                net.python(
                    ANOTHER_MACHINE, BRIDGE4, str(authority.certificate), *shown, within=within
                )
            )
            for shown in ((), (str(client.certificate), str(client.key)))
        ]
    without, with_certificate = answers
    for path, (status, text) in without.items():
        assert status == (200 if path in {"/healthz", "/readyz"} else 403), path
        if status == 403:
            assert text == "show a client certificate (--tls-client-ca-file)\n"
    statuses = {path: status for path, (status, _) in with_certificate.items()}
    private = dict.fromkeys(("/", "/api/v1/report", "/api/v1/status"), 403)
    assert statuses == {"/metrics": 200, "/healthz": 200, "/readyz": 200, **private, "/x": 404}
