"""The only module that writes to the API server. It creates and patches; it reads, lists and deletes nothing.

Credentials are those of `sources/api.py`, the connection is its own. Each read of an answer is bounded and not the
whole of it: what drips holds up nobody but the thread that it belongs to.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from agent.sources.error import SourceError, in_short
from agent.sources.kube.client import ApiError, client_for, refusal

_DONE: Final = (200, 201)
_BUSY: Final = 429
_LARGEST: Final = 1 << 20
_A_MOMENT: Final = 1.0


class Throttled(ApiError):
    """The server is busy, and says when to ask again."""

    def __init__(self, refused: ApiError, seconds: float) -> None:
        super().__init__(refused.status, str(refused).removeprefix("API server: "))
        self.seconds = seconds


class Writer:
    """One API server, to be told things. Not safe for threads."""

    def __init__(self, kubeconfig: Path | None, timeout: float) -> None:
        """Find credentials as `Api` does. `timeout`: seconds to connect, and without a byte; raises NoCredentials."""
        self._timeout = timeout
        self._client = client_for(kubeconfig)

    def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make an object, and return it as it is then; raises Unavailable, and Refused where the server says no."""
        return self._send("POST", path, body, "application/json")

    def patch(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Change an object as `kubectl patch` does, and return it as it is then; raises as `create`."""
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
            raise SourceError(f"API server: {in_short(str(error.reason))}") from error
        except (HTTPError, OSError, config.ConfigException, ValueError, RecursionError) as error:
            raise SourceError(f"API server: {in_short(str(error))}") from error


def _refused(response: Any) -> ApiError:
    after = str(response.getheader("Retry-After") or "")
    refused = refusal(response)
    if refused.status != _BUSY:
        return refused
    # As a date it is not worth a clock.
    return Throttled(refused, float(after) if after.isdecimal() else _A_MOMENT)


def _object(response: Any) -> Mapping[str, Any]:
    """Return the object in an answer; the page of a proxy is none, and then nothing was written."""
    try:
        tree = json.loads(response.response.read(_LARGEST))
    finally:
        response.response.close()
    if not isinstance(tree, dict):
        raise ValueError(f"the answer is no object ({type(tree).__name__})")  # noqa: TRY004 (as what is no JSON)
    return tree
