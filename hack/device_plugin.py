#!/usr/bin/env python3
"""A real device plugin with fake devices: hack/device_plugin.py [OPTION...] RESOURCE SOCKET DEVICE...

--unhealthy: none of its devices is healthy. --crash: it ends in the first call of Allocate.
It serves and registers as defined by the kubelet's api.proto, which `hack/cluster build` caches. It does not
register again after a kubelet restart: the caller decides how late the plugin is. Needs grpcio and grpcio-tools.
"""

import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, Final

import grpc  # type: ignore[import-untyped]

DIRECTORY: Final = Path("/var/lib/kubelet/device-plugins")
_CACHE: Final = Path(os.environ.get("CLUSTER_CACHE", "/var/cache/nodeleak-cluster"))
_GOGO: Final = re.compile(r"^(?:import|option) .*gogo.*$|\s*\[\(gogoproto[^\]]*\]", re.MULTILINE)
"""Options for the Go generator, which do not affect messages."""


with (
    tempfile.TemporaryDirectory() as _directory
):  # at run time, so that no generated files are in the repository
    Path(_directory, "deviceplugin.proto").write_text(
        _GOGO.sub("", (_CACHE / "deviceplugin.proto").read_text())
    )
    sys.path.insert(0, _directory)
    messages, services = grpc.protos_and_services("deviceplugin.proto")


class Plugin:
    """The service that the kubelet calls."""

    def __init__(self, devices: Sequence[str], *, health: str, crashes: bool) -> None:
        self._devices = devices
        self._health = health
        self._crashes = crashes

    def GetDevicePluginOptions(self, _request: Any, _context: Any) -> Any:
        return messages.DevicePluginOptions()

    def ListAndWatch(self, _request: Any, context: Any) -> Iterator[Any]:
        ended = threading.Event()
        context.add_callback(ended.set)
        devices = [messages.Device(ID=device, health=self._health) for device in self._devices]
        yield messages.ListAndWatchResponse(devices=devices)
        ended.wait()  # the devices never change

    def Allocate(self, request: Any, _context: Any) -> Any:
        """Pass each container the names of its devices in an environment variable."""
        if self._crashes:
            os._exit(1)
        return messages.AllocateResponse(
            container_responses=[
                messages.ContainerAllocateResponse(envs={"DEVICES": ",".join(one.devicesIDs)})
                for one in request.container_requests
            ]
        )

    # The plugin does not announce these two calls, but the generated server requires them.

    def PreStartContainer(self, _request: Any, _context: Any) -> Any:
        return messages.PreStartContainerResponse()

    def GetPreferredAllocation(self, _request: Any, _context: Any) -> Any:
        return messages.PreferredAllocationResponse()


def main(arguments: Sequence[str]) -> None:
    options = {argument for argument in arguments if argument.startswith("--")}
    resource, name, *devices = (argument for argument in arguments if argument not in options)
    health = "Unhealthy" if "--unhealthy" in options else "Healthy"
    plugin = Plugin(devices, health=health, crashes="--crash" in options)
    (DIRECTORY / name).unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    services.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix://{DIRECTORY / name}")
    server.start()
    with grpc.insecure_channel(f"unix://{DIRECTORY / 'kubelet.sock'}") as channel:
        services.RegistrationStub(channel).Register(
            messages.RegisterRequest(version="v1beta1", endpoint=name, resource_name=resource),
            timeout=10,
        )
    print("registered", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
