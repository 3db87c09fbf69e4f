"""How to reach the API server, and as whom."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from agent.sources.source_error import SourceError


class NoCredentials(SourceError):
    """There are no credentials for an API server; the text says where they were expected."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Certificates and keys are paths of PEM files."""

    server: str
    """Its URL, without a slash at the end."""
    authorization: Callable[[], str | None]
    """Returns the header of that name for one request: a token may be rotated. Raises
    SourceError."""
    authority: str | None = None
    """The certificates that sign that of the server. None: those that the system trusts."""
    verifies: bool = True
    """Whether the server's certificate is verified."""
    server_name: str | None = None
    """The name in the server's certificate, if it is not that of the URL."""
    certificate: str | None = None
    """The client's own."""
    key: str | None = None
    proxy: str | None = None
    """Its URL."""
    expires: datetime | None = None
    """When a plugin's credentials expire; None: it did not say, or there is no plugin."""
