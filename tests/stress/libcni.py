"""A fake of libcni's result cache (libcni is a library, not a command): `cniCacheV1`, the format since 0.8."""

import base64
import json
from pathlib import Path
from threading import Lock
from typing import Any

from tests.stress.host_local import IFNAME, NETWORK


class Cache:
    """`cache/results`: two entries for each kubenet sandbox, one per network (kubenet and loopback)."""

    def __init__(self, directory: Path, netconf: dict[str, Any]) -> None:
        self._directory = directory
        self._configurations = {
            (NETWORK, IFNAME): netconf,
            (f"{NETWORK}-loopback", "lo"): {"cniVersion": "0.2.0", "name": f"{NETWORK}-loopback", "type": "loopback"},
        }
        self._lock = Lock()
        self._written: set[str] = set()
        self.removed_early = 0
        """Entries that a cleaner removed while their container still existed."""

    def write(self, sandbox: str, result: Any) -> None:
        """Write what libcni writes after a successful ADD."""
        with self._lock:
            self._written.add(sandbox)
        for (network, ifname), netconf in self._configurations.items():
            entry = {
                "kind": "cniCacheV1",
                "containerId": sandbox,
                "config": base64.b64encode(json.dumps(netconf).encode()).decode(),
                "ifName": ifname,
                "networkName": network,
                "result": result if network == NETWORK else {"cniVersion": "0.2.0", "dns": {}},
            }
            file = self._file(network, sandbox, ifname)
            file.touch(mode=0o600)
            file.write_text(json.dumps(entry))

    def forget(self, sandbox: str) -> None:
        """Remove what libcni removes after a successful DEL; the files may be missing."""
        files = [self._file(network, sandbox, ifname) for network, ifname in self._configurations]
        with self._lock:
            if sandbox in self._written:
                self.removed_early += sum(not file.exists() for file in files)
            self._written.discard(sandbox)
        for file in files:
            file.unlink(missing_ok=True)

    def left(self) -> int:
        """Return the number of entries."""
        return sum(1 for _ in self._directory.iterdir())

    def _file(self, network: str, sandbox: str, ifname: str) -> Path:
        return self._directory / f"{network}-{sandbox}-{ifname}"
