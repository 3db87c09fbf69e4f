"""The only module that writes to the API server. It creates and patches; it reads, lists and deletes nothing."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from agent.model.text import truncate
from agent.sources.deadline import Deadline
from agent.sources.kube.client import (
    LARGEST_ERROR,
    close_client,
    describe_failure,
    open_client,
    refusal,
)
from agent.sources.kube.credentials import loader
from agent.sources.source_error import SourceError

_LARGEST_ANSWER: Final = 1 << 20
_WHOLE_ANSWER: Final = 3
"""Times the timeout of a read, for the whole: an occasional byte would hold up all other
messages."""


class Writer:
    """A connection to one API server, opened when it is needed. Not safe for threads."""

    def __init__(self, kubeconfig: Path | None, timeout: float) -> None:
        """`timeout`: seconds to connect, and between bytes."""
        self._timeout, self._kubeconfig = timeout, kubeconfig
        self._client: client.ApiClient | None = None
        self._in_time = Deadline("API server", timeout * _WHOLE_ANSWER)

    def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create an object and return it; raises SourceError, and ApiError where the server refuses."""
        return self._send("POST", path, body, "application/json")

    def patch(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change an object as `kubectl patch` does, and return it; raises as `create`."""
        return self._send("PATCH", path, body, "application/strategic-merge-patch+json")

    def close(self) -> None:
        if self._client is not None:
            close_client(self._client)
            self._client = None

    def _send(
        self, method: str, path: str, body: Mapping[str, Any], kind: str
    ) -> Mapping[str, Any]:
        if self._client is None:
            self._client = open_client(loader(self._kubeconfig, self._timeout).load())
        api = self._client
        headers = {"Accept": "application/json", "Content-Type": kind}
        try:
            request = api.param_serialize(
                method, path, header_params=headers, body=dict(body), auth_settings=["BearerToken"]
            )
            tree = self._in_time(lambda: self._answer(api, request))
        except client.ApiException as error:
            raise SourceError(f"API server: {truncate(str(error.reason))}") from error
        except (HTTPError, OSError, config.ConfigException, ValueError, RecursionError) as error:
            raise SourceError(f"API server: {describe_failure(error)}") from error
        if not isinstance(tree, dict):  # the page of a proxy: nothing was written
            raise SourceError(f"API server: the answer is no JSON object ({type(tree).__name__})")
        return tree

    def _answer(self, api: Any, request: Any) -> Any:
        response = api.call_api(*request, _request_timeout=(self._timeout, self._timeout))
        if response.status not in {HTTPStatus.OK, HTTPStatus.CREATED}:
            raise refusal(response, _once(response), None)
        with closing(response.response) as answer:
            return json.loads(answer.read(_LARGEST_ANSWER))


def _once(response: Any) -> Iterator[bytes]:
    yield response.response.read(LARGEST_ERROR)
