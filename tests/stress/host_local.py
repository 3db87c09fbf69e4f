"""The real host-local plugin: ADD and DEL on one store, timed, and killed on demand."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests import processes

NETWORK: Final = "kubenet"
IFNAME: Final = "eth0"
_HOST_LOCAL: Final = Path("/usr/lib/cni/host-local")
_EXHAUSTED: Final = "no IP addresses available in range set"
_TIMEOUT: Final = 60.0
"""Seconds for one call; the kubelet waits minutes."""


class PluginError(Exception):
    """host-local failed for a reason other than a full range."""


@dataclass(frozen=True, slots=True)
class Added:
    ip: str
    result: Any
    seconds: float
    """Runtime of the process."""


class HostLocal:
    """The plugin with one configuration. Thread-safe."""

    def __init__(self, configuration: Path, ipam: dict[str, Any]) -> None:
        self.netconf = {
            "cniVersion": "0.3.1",
            "name": NETWORK,
            "type": "bridge",
            "ipam": {"type": "host-local", **ipam},
        }
        self._configuration = configuration
        configuration.write_text(json.dumps(self.netconf))
        self._environment = processes.environment()

    def add(self, sandbox: str) -> Added | None:
        """Reserve an address; None if none is free. Raises PluginError."""
        begun = time.perf_counter()
        with self._called("ADD", sandbox) as process:
            output, errors = process.communicate(timeout=_TIMEOUT)
        seconds = time.perf_counter() - begun
        if process.returncode == 0:
            result = json.loads(output)
            return Added(result["ips"][0]["address"].partition("/")[0], result, seconds)
        if _EXHAUSTED in output:
            return None
        raise PluginError(f"ADD for {sandbox[:12]}: {process.returncode} {output.strip()} {errors.strip()}")

    def add_killed(self, sandbox: str, moment: float) -> None:
        """Start an ADD and kill it after `moment` seconds; the result is unknown."""
        with self._called("ADD", sandbox) as process:
            time.sleep(moment)
            process.kill()
            process.communicate(timeout=_TIMEOUT)

    def delete(self, sandbox: str) -> None:
        """Release the addresses of a sandbox; raises PluginError."""
        with self._called("DEL", sandbox) as process:
            output, errors = process.communicate(timeout=_TIMEOUT)
        if process.returncode != 0:
            raise PluginError(f"DEL for {sandbox[:12]}: {process.returncode} {output.strip()} {errors.strip()}")

    @contextmanager
    def _called(self, verb: str, sandbox: str) -> Iterator["subprocess.Popen[str]"]:
        named = {"CNI_COMMAND": verb, "CNI_CONTAINERID": sandbox, "CNI_IFNAME": IFNAME}
        places = {"CNI_NETNS": "/proc/self/ns/net", "CNI_NETNS_OVERRIDE": "1", "CNI_PATH": str(_HOST_LOCAL.parent)}
        with (
            self._configuration.open() as configuration,
            subprocess.Popen(
                [_HOST_LOCAL],
                stdin=configuration,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=self._environment | named | places,
                start_new_session=True,  # Ctrl-C must not reach it: a call that started finishes
            ) as process,
        ):
            try:
                yield process
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise PluginError(f"{verb} for {sandbox[:12]} did not finish within {_TIMEOUT:.0f} s") from error
