"""The version of the API server: requested, validated, and never waited for long."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.kube.client import Api
from agent.sources.kube.server_version import ServerVersion, parse_version
from tests.wire import HTML, Answers, FakeServer, hang, http, kubeconfig


def version_answer(version: object) -> bytes:
    return json.dumps({"major": "1", "minor": "20", "gitVersion": version}).encode()


def asked(directory: Path, answers: Answers, before: str = "v1.9.2") -> str:
    version = ServerVersion()
    version.value = before
    with FakeServer(answers) as server:
        api = Api(kubeconfig(directory / "kubeconfig", server.url), 5)
        version.request(api)
        assert server.requested("") == ["/version"]
        server.closing.set()
        api.close()
    return version.value


@pytest.mark.parametrize(
    "version", ["v1.20.2", "v1.18.9-eks-d1db3c", "v1.9.2+coreos.0", "v1.21.5-gke.1302", "v1.10.0-beta.4.1+abc_def"]
)
def test_versions_of_every_distribution_are_accepted(tmp_path: Path, version: str) -> None:
    assert asked(tmp_path, lambda _: [http(version_answer(version))]) == version


@pytest.mark.parametrize(
    "answer",
    [
        http("{}", "403 Forbidden"), http("{}", "404 Not Found"), http(HTML, kind="text/html"), http(HTML), b"",
        http(version_answer("v1.20.2"))[:-3],
    ],
    ids=["403", "404", "HTML", "HTML as JSON", "nothing", "cut"],
)  # fmt: skip
def test_an_error_or_invalid_answer_is_an_unknown_version(tmp_path: Path, answer: bytes) -> None:
    assert asked(tmp_path, lambda _: [answer]) == ""


def test_a_server_that_hangs_times_out(tmp_path: Path) -> None:
    server: FakeServer = FakeServer(lambda _: hang(server))
    version = ServerVersion()
    with server:
        version.request(Api(kubeconfig(tmp_path / "kubeconfig", server.url), 0.2))
        assert version.value == ""
        server.closing.set()


@pytest.mark.parametrize(
    "expected",
    [
        "", "1.20.2", "v1.20", "v1.20.2\n", "v1.20.2\x1b[31m", "v1.20.2 rm -rf", "v1.20.2-" + "x" * 99, "v\u0663.1.2",
        None, 7, ["v1.20.2"], {},
    ],
)  # fmt: skip
def test_an_invalid_version_is_unknown(expected: object) -> None:
    assert parse_version(version_answer(expected)) == ""


@given(st.binary(max_size=60) | st.recursive(st.none() | st.text(), st.lists).map(lambda one: json.dumps(one).encode()))
def test_any_answer_is_printable(body: bytes) -> None:
    assert parse_version(body).isprintable()
