"""What is larger than any node has it is not read in part: the source says so."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.sources.source_error import SourceError
from tests.sources.kube.connections import connect
from tests.wire import CHUNKED, FakeServer, Request, kubeconfig


def test_an_event_of_any_length_is_not_read_as_a_whole(tmp_path: Path) -> None:
    events = [json.dumps({"n": number}).encode() for number in range(300)]
    sent: list[int] = []

    def answer(request: Request) -> Iterator[bytes]:
        yield CHUNKED
        if "small" in request.target:
            content = b"\n".join((*events, b""))
            yield b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content)
            return
        yield b"40000000\r\n"  # a chunk of 1 GiB
        while not server.closing.is_set():
            sent.append(1 << 16)
            yield b"x" * sent[-1]

    server = FakeServer(answer)
    with server:
        api = connect(kubeconfig(tmp_path / "config", server.url))
        with api.stream("/api/v1/pods?small", (), 5.0) as lines:
            assert list(lines) == events
        too_large = pytest.raises(SourceError, match="an event of the watch is larger than")
        with too_large, api.stream("/api/v1/pods", (), 5.0) as lines:
            list(lines)
        api.close()
    assert sum(sent) < 1 << 26, "the rest of the chunk was not waited for"
