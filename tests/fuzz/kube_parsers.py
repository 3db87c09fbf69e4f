"""The parsers of what the API server answers."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from agent.model.registration import UNINITIALIZED, Taint
from agent.model.snapshot import Known
from agent.sources.kube.attachments import AttachmentsSource
from agent.sources.kube.autoscaler import AutoscalerClient, status
from agent.sources.kube.client import Api, Query, ServerInfo, parse_list, parse_version
from agent.sources.kube.node import parse_node
from agent.sources.kube.pods import parse_pod
from agent.sources.kube.replica import Replica
from tests.builders import CLOUD_DISK, DISK, NOW, registration, waiting_pod, worker
from tests.fuzz.fuzzer import Fuzzer, Opening, Parse, pure
from tests.fuzz.wire_server import Replies
from tests.sources.kube.connections import connect, inquirer, moment
from tests.wire import kubeconfig


def _applied(parse: Any) -> Parse:
    def apply(content: bytes) -> Any:
        replica = Replica(parse)
        replica.apply(content)
        return replica.items()

    return apply


def _replaced(parse: Any) -> Parse:
    def replace(content: bytes) -> Any:
        replica = Replica(parse)
        version, _, items = parse_list([content])
        replica.replace(version, items, consistent=False)
        return replica.items()

    return replace


class _Objects:
    """An API server that answers from one document: its objects by their paths."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        try:
            self._objects = json.loads(content)
        except (ValueError, RecursionError):
            self._objects = None

    def get(self, path: str, _query: Query = ()) -> bytes:
        if not isinstance(self._objects, dict):
            return self._content
        try:
            return json.dumps(self._objects.get(path)).encode()
        except (ValueError, RecursionError):
            return self._content


def _attachments(content: bytes) -> Any:
    source = AttachmentsSource(inquirer(_Objects(content).get), "worker-1", lambda: 0.0)
    return source.read([DISK, CLOUD_DISK], [waiting_pod()])


def _autoscaler(content: bytes) -> Any:
    def read(node: Any) -> Any:
        client = AutoscalerClient("worker-1", inquirer(lambda _path, _query: content), lambda: 0.0)
        return client.read(Known(node), Known(registration()))

    return read(worker(Taint(UNINITIALIZED))), read(worker())


def _status(content: bytes) -> Any:
    found = status(content.decode(errors="replace"))
    assert all(count is None or 0 <= count < 10**9 for count in (found.unregistered, found.long_unregistered))


def _date(content: bytes) -> Any:
    info = ServerInfo(moment)
    info.record_date(content.decode("latin-1"), NOW, NOW + timedelta(seconds=1))
    assert info.skew is None or isinstance(info.skew, timedelta)


def _api(ask: Callable[[Api], Any]) -> Opening:
    """Return the opening of a client whose server answers with the content."""

    @contextmanager
    def opened(directory: Path) -> Iterator[Parse]:
        with Replies(None, {}, waits=True).serving() as replies:
            path = kubeconfig(directory / "config", f"http://127.0.0.1:{replies.port}")
            api = connect(path)

            def parse(content: bytes) -> Any:
                replies.content = content
                return ask(api)

            try:
                yield parse
            finally:
                api.close()

    return opened


FUZZERS: Final = (
    Fuzzer("pod-list", pure(_replaced(parse_pod))),
    Fuzzer("pod-event", pure(_applied(parse_pod))),
    Fuzzer("node-list", pure(_replaced(parse_node))),
    Fuzzer("node-event", pure(_applied(parse_node))),
    Fuzzer("volumes", pure(_attachments)),
    Fuzzer("autoscaler", pure(_autoscaler)),
    Fuzzer("autoscaler-status", pure(_status), as_json=False),
    Fuzzer("server-version", pure(parse_version)),
    Fuzzer("server-date", pure(_date), as_json=False),
    Fuzzer("api-answer", _api(lambda api: api.get("/version")), as_json=False),
    Fuzzer("api-watch", _api(lambda api: list(api.stream("/api/v1/pods", (), 5.0))), as_json=False),
)
