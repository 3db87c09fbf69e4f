"""The only module that writes to the API server. It creates and patches; it reads, lists and deletes nothing."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from agent.model.text import truncate
from agent.sources.kube.client import client_for, refusal
from agent.sources.source_error import SourceError

_LARGEST_ANSWER: Final = 1 << 20


class Writer:
    """A connection to one API server, opened when it is needed. Not safe for threads."""

    def __init__(self, kubeconfig: Path | None, timeout: float) -> None:
        """`timeout`: seconds to connect, and between bytes."""
        self._timeout, self._kubeconfig = timeout, kubeconfig
        self._client: client.ApiClient | None = None

    def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create an object and return it; raises SourceError, and ApiError where the server refuses."""
        return self._send("POST", path, body, "application/json")

    def patch(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change an object as `kubectl patch` does, and return it; raises as `create`."""
        return self._send("PATCH", path, body, "application/strategic-merge-patch+json")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _send(self, method: str, path: str, body: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
        api = self._client = self._client or client_for(self._kubeconfig)
        headers = {"Accept": "application/json", "Content-Type": kind}
        try:
            request = api.param_serialize(
                method, path, header_params=headers, body=dict(body), auth_settings=["BearerToken"]
            )
            response = api.call_api(*request, _request_timeout=(self._timeout, self._timeout))
            if response.status not in {HTTPStatus.OK, HTTPStatus.CREATED}:
                raise refusal(response)
            return _object(response)
        except client.ApiException as error:
            raise SourceError(f"API server: {truncate(str(error.reason))}") from error
        except (HTTPError, OSError, config.ConfigException, ValueError, RecursionError) as error:
            raise SourceError(f"API server: {truncate(str(error))}") from error


def _object(response: Any) -> Mapping[str, Any]:
    """Return the object of an answer; after the page of a proxy, nothing was written."""
    try:
        tree = json.loads(response.response.read(_LARGEST_ANSWER))
    finally:
        response.response.close()
    if not isinstance(tree, dict):
        raise ValueError(f"the answer is no JSON object ({type(tree).__name__})")  # noqa: TRY004 (as for invalid JSON)
    return tree
