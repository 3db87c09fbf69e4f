"""A connection to the API server, for what reads from it and for what writes Events."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias
from urllib.parse import quote, urlencode

from urllib3 import BaseHTTPResponse, PoolManager, ProxyManager, Timeout
from urllib3.exceptions import HTTPError, SSLError

from agent.model.text import truncate
from agent.sources.kube.credentials import Credentials
from agent.sources.kube.errors import ApiError, parse_retry_after
from agent.sources.source_error import MALFORMED, SourceError, connection_failure

Query: TypeAlias = Sequence[tuple[str, str]]

WHOLE_RESPONSE: Final = 3
"""Times the timeout of a read, for the whole: a list of thousands of pods is slow."""
LARGEST_ERROR: Final = 64 * 1024
"""Bytes of a refusal. More of it is not worth its connection."""
_PIECE: Final = 64 * 1024
"""Bytes read together. An object of usual size is rarely cut in two."""


@dataclass
class Connection:
    """Opened with the first request, and kept open for the next one. Not thread-safe."""

    credentials: Credentials
    timeout: float
    """Seconds to connect."""
    _pools: PoolManager | None = None

    def close(self) -> None:
        """Close the connection, also one that is idle; the next request opens another one."""
        if self._pools is None:
            return
        # clear() alone leaves idle connections open until the garbage collector finds them.
        for key in self._pools.pools.keys():  # noqa: SIM118 (it is no mapping to iterate over)
            self._pools.pools[key].close()
        self._pools.clear()

    def request(
        self,
        method: str,
        path: str,
        *,
        silence: float,
        query: Query = (),
        body: bytes | None = None,
        content_type: str | None = None,
    ) -> BaseHTTPResponse:
        """Return a response of any status, with its body still to be read.

        It is from the server that the credentials name: redirects are not followed. Raises
        SourceError. `silence`: seconds without a byte after which the connection counts as lost.
        """
        server = self.credentials.server
        url = f"{server}{path}{'?' if query else ''}{urlencode(query, quote_via=quote, safe='/')}"

        try:
            return self._opened().request(
                method,
                url,
                body=body,
                headers=self._headers(content_type),
                timeout=Timeout(connect=self.timeout, read=silence),
                preload_content=False,
                redirect=False,
                retries=False,
            )
        except SSLError as error:
            raise SourceError(f"API server: {truncate(f'SSLError {error}')}") from error
        except (HTTPError, OSError, ValueError) as error:
            if reason := connection_failure(error):
                text = f"cannot connect to the API server at {server}: {reason}"
                raise SourceError(text) from error
            raise SourceError(f"API server: {_describe(error)}") from error

    def _opened(self) -> PoolManager:
        if self._pools is None:
            self._pools = _pools(self.credentials)
        return self._pools

    def _headers(self, content_type: str | None) -> dict[str, str]:
        """Return the headers of one request; raises SourceError if the token cannot be read."""
        headers = {"Accept": "application/json", "User-Agent": "nodeleak"}
        if content_type:
            headers["Content-Type"] = content_type
        if authorization := self.credentials.authorization():
            headers["Authorization"] = authorization
        return headers


def _pools(credentials: Credentials) -> PoolManager:
    options: dict[str, Any] = {
        "maxsize": 2,  # a request that is late holds one of them
        "ca_certs": credentials.authority,
        "cert_reqs": "CERT_REQUIRED" if credentials.verifies else "CERT_NONE",
        "cert_file": credentials.certificate,
        "key_file": credentials.key,
        "server_hostname": credentials.server_name,
    }
    if credentials.proxy is None:
        return PoolManager(**options)
    return ProxyManager(credentials.proxy, **options)


def _describe(error: Exception) -> str:
    """Return why a request could not be sent, without the credentials."""
    # Of a header that cannot be sent, it quotes the value: that of the token.
    if type(error) is ValueError or isinstance(error, UnicodeEncodeError):
        return "cannot send a header of the request: is there a line break in the token?"
    return truncate(error)


def read_body(
    response: BaseHTTPResponse, limit: int | None = None, what: str = "response"
) -> Iterator[bytes]:
    """Yield a body in pieces, as they arrive; raises SourceError if it breaks off, or is too long.

    `limit`: bytes.
    """
    size = 0
    try:
        for piece in _pieces(response):
            size += len(piece)
            if limit is not None and size > limit:
                raise SourceError(f"API server: the response is larger than {limit:,} bytes")
            yield piece
    except (HTTPError, OSError) as error:
        raise SourceError(f"API server: the {what} broke off ({error})") from error


def _pieces(response: BaseHTTPResponse) -> Iterator[bytes]:
    """Yield what has arrived; without chunks, `stream` would wait for a whole piece."""
    if getattr(response, "chunked", False):
        yield from response.stream(_PIECE, decode_content=True)
        return

    while piece := response.read1(_PIECE, decode_content=True):
        yield piece


def refusal(response: BaseHTTPResponse, body: Iterable[bytes], now: datetime | None) -> ApiError:
    """Return the error that a response other than success means.

    Its body is read to the end, if that comes soon, so that the connection can be kept. `now`: by
    the node's wall clock, if it is known.
    """
    content = b""
    try:
        for piece in body:
            content += piece
    except SourceError:
        pass  # the status says enough
    finally:
        response.close()

    try:
        message = str(json.loads(content)["message"])
    except MALFORMED:
        message = str(response.reason)

    headers = response.headers
    return ApiError(
        response.status,
        f"{response.status} {truncate(message)}",
        parse_retry_after(headers.get("Retry-After"), headers.get("Date"), now),
    )
