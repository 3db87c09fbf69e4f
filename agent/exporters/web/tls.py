"""The certificate of the port, read again when its files change, as cert-manager changes them."""

import ssl
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from agent.sources.host.files import read_file
from agent.sources.source_error import SourceError, cannot_read

_MAX_BYTES: Final = 1024 * 1024
"""Of one file. A bundle of many authorities has 200 KiB."""

_NO_PAIR: Final = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
_WEAK: Final = {"EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK"}
"""OpenSSL's reasons."""


class TlsFile(StrEnum):
    """Which file is meant. The values are the names of the settings."""

    CERTIFICATE = "tls_cert_file"
    KEY = "tls_key_file"
    CLIENT_CA = "tls_client_ca_file"


class TlsFiles(NamedTuple):
    """PEM files. `client_ca`: of who may read; None: clients need no certificate."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


class TlsError(Exception):
    """A file cannot be used; the text names it, and the remedy."""

    def __init__(self, file: TlsFile, text: str) -> None:
        super().__init__(text)
        self.file = file


class Certificates:
    """The current context. `reload` belongs to one thread; `context` may be called from any."""

    def __init__(
        self, files: TlsFiles, info: Callable[..., None], error: Callable[..., None]
    ) -> None:
        """`info` and `error` log an event with its fields. Raises TlsError."""
        self._files = files
        self._info = info
        self._error = error
        self._failure = ""
        self._loaded = self._state()
        self._context = _load(files)

    def context(self) -> ssl.SSLContext:
        return self._context

    def reload(self) -> None:
        """Load the files if they have changed; if they cannot be used, keep what was loaded."""
        state = self._state()
        if state == self._loaded:
            return

        try:
            self._context = _load(self._files)
        except (TlsError, OSError, ValueError) as error:
            if str(error) != self._failure:
                self._error("tls.reload_failed", why=str(error))
            self._failure = str(error)
            return

        self._loaded = state
        self._failure = ""
        self._info("tls.reloaded", certificate=str(self._files.certificate))

    def _state(self) -> tuple[object, ...]:
        """Return what differs after any change; Kubernetes replaces a link on the way to a file."""
        return tuple(_identity(path) for path in self._files if path)


def _identity(path: Path) -> tuple[int, int, int, int] | None:
    """Return what differs if a path leads to another file; None: to none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _load(files: TlsFiles) -> ssl.SSLContext:
    """Return a context of these files. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate = _read(files.certificate, TlsFile.CERTIFICATE)
    _read(files.key, TlsFile.KEY)
    _require_certificates(files.certificate, certificate, TlsFile.CERTIFICATE)

    try:
        context.load_cert_chain(files.certificate, files.key, password=_refuse_password)
    except ssl.SSLError as error:
        raise _bad_pair(files, str(error.reason or "")) from error
    except OSError as error:  # removed since it was read
        raise TlsError(TlsFile.KEY, cannot_read(files.key, error)) from error
    except ValueError as error:
        raise TlsError(TlsFile.KEY, f"{files.key}: {error}") from error

    if files.client_ca:
        authorities = _read(files.client_ca, TlsFile.CLIENT_CA)
        _require_certificates(files.client_ca, authorities, TlsFile.CLIENT_CA)
        context.load_verify_locations(cadata=authorities)
        # Optional in the handshake: the kubelet's probes cannot show one. Paths require it.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _read(path: Path, file: TlsFile) -> str:
    """Return the text of a file. Raises TlsError."""
    try:
        content, _ = read_file(path, follow=True, limit=_MAX_BYTES)
    except OSError as error:
        raise TlsError(file, cannot_read(path, error)) from error
    except SourceError as error:  # a FIFO, for one: the sync would wait for whoever writes to it
        raise TlsError(file, f"{error}: name a PEM file") from error
    return content.decode("ascii", "replace").replace("\N{REPLACEMENT CHARACTER}", "?")


def _require_certificates(path: Path, text: str, file: TlsFile) -> None:
    """Raise TlsError if a text has no certificate."""
    scratch = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        scratch.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        why = f"{path} has no certificate that can be read: it needs PEM (BEGIN CERTIFICATE)"
        raise TlsError(file, why) from error


def _bad_pair(files: TlsFiles, reason: str) -> TlsError:
    """`reason`: OpenSSL's; empty where its parser failed."""
    if reason in _NO_PAIR:
        why = f"{files.key} is not the key of {files.certificate}: name the files of one pair"
        return TlsError(TlsFile.KEY, why)
    if reason in _WEAK:
        word = reason.replace("_", " ").lower()
        why = f"OpenSSL refuses {files.certificate} ({word}): issue a stronger certificate"
        return TlsError(TlsFile.CERTIFICATE, why)
    why = f"{files.key} has no private key that can be read: it needs PEM (BEGIN PRIVATE KEY)"
    return TlsError(TlsFile.KEY, why)


def _refuse_password() -> NoReturn:
    """Fail where OpenSSL would ask the terminal for the password of a key."""
    raise ValueError("the key has a password: store it without one")
