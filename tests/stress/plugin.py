"""The real host-local: ADD and DEL of one store, timed, and killed on demand."""

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
_PATIENCE: Final = 60.0
"""Seconds for one call; the kubelet itself waits for minutes."""


class Refused(Exception):
    """host-local failed, and not because its range is full."""


@dataclass(frozen=True, slots=True)
class Added:
    ip: str
    result: Any
    seconds: float
    """From the start of the process to its end."""


class HostLocal:
    """The plugin with one configuration. Any thread may call it."""

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
        """Reserve an address; None where there is none left. Raises Refused."""
        begun = time.perf_counter()
        with self._called("ADD", sandbox) as process:
            output, errors = process.communicate(timeout=_PATIENCE)
        seconds = time.perf_counter() - begun
        if process.returncode == 0:
            result = json.loads(output)
            return Added(result["ips"][0]["address"].partition("/")[0], result, seconds)
        if _EXHAUSTED in output:
            return None
        raise Refused(f"ADD for {sandbox[:12]}: {process.returncode} {output.strip()} {errors.strip()}")

    def add_killed(self, sandbox: str, moment: float) -> None:
        """Begin an ADD, and kill it after `moment` seconds. Nobody learns what became of it."""
        with self._called("ADD", sandbox) as process:
            time.sleep(moment)
            process.kill()
            process.communicate(timeout=_PATIENCE)

    def delete(self, sandbox: str) -> None:
        """Release what a sandbox has; raises Refused."""
        with self._called("DEL", sandbox) as process:
            output, errors = process.communicate(timeout=_PATIENCE)
        if process.returncode != 0:
            raise Refused(f"DEL for {sandbox[:12]}: {process.returncode} {output.strip()} {errors.strip()}")

    @contextmanager
    def _called(self, verb: str, sandbox: str) -> Iterator["subprocess.Popen[str]"]:
        named = {"CNI_COMMAND": verb, "CNI_CONTAINERID": sandbox, "CNI_IFNAME": IFNAME}
        places = {"CNI_NETNS": "/proc/self/ns/net", "CNI_PATH": str(_HOST_LOCAL.parent)}
        with (
            self._configuration.open() as configuration,
            subprocess.Popen(
                [_HOST_LOCAL],
                stdin=configuration,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=self._environment | named | places,
                start_new_session=True,  # a Ctrl-C is ours, and what is begun is finished
            ) as process,
        ):
            try:
                yield process
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise Refused(f"{verb} for {sandbox[:12]} has not ended in {_PATIENCE:.0f} s") from error
