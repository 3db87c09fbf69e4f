"""Certificates made by openssl: an authority, and what it has signed."""

import shutil
from pathlib import Path
from typing import NamedTuple

from tests.wire import needs, run

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


# Python 3.13 and newer refuse an authority without it, and a certificate that does not name its authority's key.
_CA = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
_OF_KEYS = "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"


class Pair(NamedTuple):
    certificate: Path
    key: Path


class Authority:
    """Signs certificates; its own is self-signed."""

    def __init__(self, directory: Path, name: str) -> None:
        openssl = shutil.which("openssl")
        needs(openssl is not None, "openssl, to make certificates")
        self._openssl = str(openssl)
        self._directory = directory
        directory.mkdir(exist_ok=True)
        self.certificate = directory / f"{name}.crt"
        self._key = directory / f"{name}.key"
        files = ("-keyout", str(self._key), "-out", str(self.certificate))
        run(
            self._openssl, "req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}", *_CA, *files
        )

    def sign(self, name: str, alternative: str = "IP:127.0.0.1") -> Pair:
        """Return a certificate for a name, with its key."""
        pair = Pair(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        request = self._directory / f"{name}.csr"
        extensions = self._directory / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternative}\n{_OF_KEYS}")
        files = ("-keyout", str(pair.key), "-out", str(request))
        run(self._openssl, "req", "-new", *_KEY, "-subj", f"/CN={name}", *files)
        signer = ("-CA", str(self.certificate), "-CAkey", str(self._key), "-CAcreateserial")
        signed = ("-in", str(request), "-out", str(pair.certificate), "-extfile", str(extensions))
        run(self._openssl, "x509", "-req", "-days", "2", *signer, *signed)
        return pair
