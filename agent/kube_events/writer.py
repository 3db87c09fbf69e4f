"""The only module that writes to the API server. It creates and patches; it reads, lists and deletes nothing.

It uses the credentials of `sources/kube/credentials.py` and a connection of its own.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from agent.model.text import truncate
from agent.sources.kube.client import ApiError, refusal
from agent.sources.kube.credentials import client_for
from agent.sources.source_error import SourceError

_DONE: Final = (200, 201)
_TOO_MANY_REQUESTS: Final = 429
_LARGEST_ANSWER: Final = 1 << 20
_DEFAULT_RETRY_AFTER: Final = 1.0


class Throttled(ApiError):
    """429, with the seconds after which to retry."""

    def __init__(self, refused: ApiError, seconds: float) -> None:
        super().__init__(refused.status, str(refused).removeprefix("API server: "))
        self.seconds = seconds


class Writer:
    """A connection to one API server. Not safe for threads."""

    def __init__(self, kubeconfig: Path | None, timeout: float) -> None:
        """`timeout`: seconds to connect, and between bytes. Raises SourceError."""
        self._timeout = timeout
        self._client = client_for(kubeconfig)

    def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create an object and return it; raises SourceError, and ApiError where the server refuses."""
        return self._send("POST", path, body, "application/json")

    def patch(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change an object as `kubectl patch` does, and return it; raises as `create`."""
        return self._send("PATCH", path, body, "application/strategic-merge-patch+json")

    def close(self) -> None:
        self._client.close()

    def _send(self, method: str, path: str, body: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
        try:
            request = self._client.param_serialize(
                method,
                path,
                header_params={"Accept": "application/json", "Content-Type": kind},
                body=dict(body),
                auth_settings=["BearerToken"],
            )
            response = self._client.call_api(*request, _request_timeout=(self._timeout, self._timeout))
            if response.status not in _DONE:
                raise _refused(response)
            return _object(response)
        except client.ApiException as error:
            raise SourceError(f"API server: {truncate(str(error.reason))}") from error
        except (HTTPError, OSError, config.ConfigException, ValueError, RecursionError) as error:
            raise SourceError(f"API server: {truncate(str(error))}") from error


def _refused(response: Any) -> ApiError:
    after = str(response.getheader("Retry-After") or "")
    refused = refusal(response)
    if refused.status != _TOO_MANY_REQUESTS:
        return refused
    # A date needs a clock: not worth it.
    return Throttled(refused, float(after) if after.isdecimal() else _DEFAULT_RETRY_AFTER)


def _object(response: Any) -> Mapping[str, Any]:
    """Return the object of an answer; after the page of a proxy, nothing was written."""
    try:
        tree = json.loads(response.response.read(_LARGEST_ANSWER))
    finally:
        response.response.close()
    if not isinstance(tree, dict):
        raise ValueError(f"the answer is no JSON object ({type(tree).__name__})")  # noqa: TRY004 (as for invalid JSON)
    return tree
