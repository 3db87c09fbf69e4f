"""Runs hack/device_plugin.py as a process that tests start and stop."""

import subprocess
import sys
from pathlib import Path
from typing import Final, Self

from tests.processes import environment

RESOURCE: Final = "devices.example.com/kvm"
DEVICES: Final = ("d0", "d1", "d2")
DIRECTORY: Final = Path("/var/lib/kubelet/device-plugins")
REGISTRY: Final = DIRECTORY.with_name("plugins_registry")
CHECKPOINT: Final = DIRECTORY / "kubelet_internal_checkpoint"
_SCRIPT: Final = Path(__file__).parents[2] / "hack" / "device_plugin.py"
_SOCKET: Final = DIRECTORY / "example-kvm.sock"


class DevicePlugin:
    """One plugin with three devices; at most one process of it at a time."""

    def __init__(
        self,
        log: Path,
        inside: tuple[str, ...] = (),
        *options: str,
        resource: str = RESOURCE,
        socket: str = _SOCKET.name,
    ) -> None:
        """`inside`: command prefix: run on another node than this machine. `options`: the script's."""
        self._log, self._inside = log, inside
        self._arguments = (*options, resource, socket)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it has registered; the kubelet calls back shortly after."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own script)
                [
                    *self._inside,
                    sys.executable,
                    "-W",
                    "error",
                    str(_SCRIPT),
                    *self._arguments,
                    *DEVICES,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(),
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == "registered\n", self._log.read_text()

    def kill(self) -> None:
        """Kill it without a chance to clean up: its socket stays."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def kubelet_up() -> float:
    """Return when the kubelet's device manager started, in seconds since the epoch."""
    return (DIRECTORY / "kubelet.sock").stat().st_mtime


def plugin_up() -> float:
    """Return when the plugin bound its socket."""
    return _SOCKET.stat().st_mtime
