"""Writes to the API server, as no other module does. It creates and patches, and does not read."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from agent.sources.deadline import Deadline
from agent.sources.kube.connection import (
    LARGEST_ERROR,
    WHOLE_RESPONSE,
    Connection,
    read_body,
    refusal,
)
from agent.sources.kube.loader import loader
from agent.sources.source_error import SourceError

_LARGEST_RESPONSE: Final = 1 << 20
"""Bytes."""


class Writer:
    """A connection to one API server, opened when it is needed. Not thread-safe."""

    def __init__(self, kubeconfig: Path | None, timeout: float) -> None:
        """`timeout`: seconds to connect, and between bytes."""
        self._timeout = timeout
        self._kubeconfig = kubeconfig
        self._connection: Connection | None = None
        # An occasional byte would hold up all other messages.
        self._in_time = Deadline("API server", timeout * WHOLE_RESPONSE)

    def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create an object and return it; raises SourceError, ApiError if the server refuses."""
        return self._send("POST", path, body, "application/json")

    def patch(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change an object as `kubectl patch` does, and return it; raises as `create`."""
        return self._send("PATCH", path, body, "application/strategic-merge-patch+json")

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(
        self, method: str, path: str, body: Mapping[str, Any], content_type: str
    ) -> Mapping[str, Any]:
        """Return the object in a response, which is waited for as a whole; raises as `create`."""
        if self._connection is None:
            credentials = loader(self._kubeconfig, self._timeout).load()
            self._connection = Connection(credentials, self._timeout)
        connection = self._connection

        content = json.dumps(body).encode()
        answer = self._in_time(
            lambda: self._request(connection, method, path, content, content_type)
        )
        try:
            tree = json.loads(answer)
        except (ValueError, RecursionError) as error:
            text = f"the response is not JSON ({type(error).__name__})"
            raise SourceError(f"API server: {text}") from error

        if not isinstance(tree, dict):  # the page of a proxy: nothing was written
            raise SourceError(f"API server: the response is not an object ({type(tree).__name__})")
        return tree

    def _request(
        self, connection: Connection, method: str, path: str, body: bytes, content_type: str
    ) -> bytes:
        """Return the body of a response; raises as `create`."""
        response = connection.request(
            method, path, silence=self._timeout, body=body, content_type=content_type
        )
        if response.status not in {HTTPStatus.OK, HTTPStatus.CREATED}:
            raise refusal(response, read_body(response, LARGEST_ERROR), now=None)

        try:
            return b"".join(read_body(response, _LARGEST_RESPONSE))
        finally:
            response.close()
