"""docker's client, with bounds that it lacks: on the size of every answer, and on how long another thread reads one.

The list is read as a stream: the labels of a sandbox have all annotations of its pod, and of these nothing is kept.
"""

from collections.abc import Generator, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, cast

import docker
from docker.errors import create_api_error_from_http_exception
from requests import PreparedRequest, Response
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.exceptions import HTTPError

from agent.model.input_limit import InputLimit
from agent.sources.json_stream import PIECE, JsonStream
from agent.sources.last_connection import LastConnection
from agent.sources.runtime.runtime import MOST_LISTED_BYTES
from agent.sources.source_error import SourceError

LARGEST_ANSWER: Final[InputLimit] = 4 * 1024 * 1024
"""Bytes of any other answer: of one container, of the version, or of an error."""


class Bounds:
    """What may be read for one question. It outlives the client, which docker's package connects where it is made."""

    def __init__(self) -> None:
        self.last = LastConnection()

    def pieces(self, body: Any, most: int, size: int) -> Iterator[bytes]:
        """Yield the body of an answer, of at most `most` bytes; raises SourceError."""
        self.last.reads(body)
        read = 0
        for piece in body.stream(size, decode_content=True):
            read += len(piece)
            if read > most:
                raise SourceError(f"docker: the response is larger than {most:,} bytes")
            if self.last.ended:
                raise SourceError("docker: the response was late, and its connection was closed")
            yield piece


class BoundedClient(docker.APIClient):
    """docker's client, for whose every answer the bounds hold."""

    def __init__(self, bounds: Bounds, timeout: float, where: Mapping[str, Any]) -> None:
        """`where`: as docker's client takes it. Asks for docker's version."""
        self._bounds = bounds
        super().__init__(version="auto", timeout=cast("int", timeout), **where)

    def get_adapter(self, url: str | bytes) -> BaseAdapter:
        return _BoundedAdapter(cast("HTTPAdapter", super().get_adapter(str(url))), self._bounds)

    def listed(self) -> Generator[Mapping[str, Any]]:
        """List every container in any state, one at a time as they arrive."""
        url = f"{self.base_url}/v{self.api_version}/containers/json"
        with self.get(url, params={"all": 1, "size": 0}, timeout=self.timeout, stream=True) as answer:
            try:
                answer.raise_for_status()
            except HTTPError as error:
                create_api_error_from_http_exception(error)
            if answer.status_code != HTTPStatus.OK:
                raise SourceError(f"docker: unexpected HTTP status {answer.status_code}")
            yield from JsonStream(answer.iter_content(PIECE)).array()


class _BoundedAdapter(BaseAdapter):
    """Sends by another adapter."""

    def __init__(self, adapter: HTTPAdapter, bounds: Bounds) -> None:
        super().__init__()
        self._adapter, self._bounds = adapter, bounds

    def send(self, request: PreparedRequest, stream: bool = False, *given: Any, **options: Any) -> Response:
        where = {"verify": True, "proxies": None, "cert": None, **options}
        self._bounds.last.watch(
            self._adapter.get_connection_with_tls_context(
                request, where["verify"], proxies=where["proxies"], cert=where["cert"]
            )
        )
        answer = self._adapter.send(request, stream, *given, **options)
        answer.raw = _Body(answer.raw, MOST_LISTED_BYTES if stream and answer.ok else LARGEST_ANSWER, self._bounds)
        return answer

    def close(self) -> None:
        self._adapter.close()


class _Body:
    """What requests uses of the body of an answer."""

    def __init__(self, body: Any, most: int, bounds: Bounds) -> None:
        self._body, self._most, self._bounds = body, most, bounds
        self.close, self.release_conn = body.close, body.release_conn

    def stream(self, size: int, **_: Any) -> Iterator[bytes]:
        return self._bounds.pieces(self._body, self._most, size)
