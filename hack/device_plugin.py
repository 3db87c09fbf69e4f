#!/usr/bin/env python3
"""A real device plugin with fake devices: hack/device_plugin.py [OPTION...] RESOURCE SOCKET DEVICE...

--unhealthy: none of its devices is healthy. --crash: it ends in the first call of Allocate.
--watched: its socket is in the kubelet's registry of plugins, as SR-IOV's is, and the kubelet comes to it.
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
_REGISTRY: Final = DIRECTORY.with_name("plugins_registry")
_REGISTRATION: Final = """
syntax = "proto3";
package pluginregistration;

message PluginInfo {
  string type = 1;
  string name = 2;
  string endpoint = 3;
  repeated string supported_versions = 4;
}
message RegistrationStatus {
  bool plugin_registered = 1;
  string error = 2;
}
message RegistrationStatusResponse {}
message InfoRequest {}

service Registration {
  rpc GetInfo(InfoRequest) returns (PluginInfo) {}
  rpc NotifyRegistrationStatus(RegistrationStatus) returns (RegistrationStatusResponse) {}
}
"""
"""k8s.io/kubelet, `pkg/apis/pluginregistration/v1/api.proto`."""
_VERSION: Final = "v1beta1"
_GOGO: Final = re.compile(r"^(?:import|option) .*gogo.*$|\s*\[\(gogoproto[^\]]*\]", re.MULTILINE)
"""Options for the Go generator, which do not affect messages."""


with (
    tempfile.TemporaryDirectory() as _directory
):  # at run time, so that no generated files are in the repository
    Path(_directory, "deviceplugin.proto").write_text(
        _GOGO.sub("", (_CACHE / "deviceplugin.proto").read_text())
    )
    Path(_directory, "pluginregistration.proto").write_text(_REGISTRATION)
    sys.path.insert(0, _directory)
    messages, services = grpc.protos_and_services("deviceplugin.proto")
    registration, registration_services = grpc.protos_and_services("pluginregistration.proto")


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


class WatchedRegistration:
    """The service that the kubelet calls once it has found the socket in its registry."""

    def __init__(self, resource: str) -> None:
        self._resource = resource

    def GetInfo(self, _request: Any, _context: Any) -> Any:
        return registration.PluginInfo(
            type="DevicePlugin", name=self._resource, supported_versions=[_VERSION]
        )

    def NotifyRegistrationStatus(self, status: Any, _context: Any) -> Any:
        if not status.plugin_registered:
            print(f"not registered: {status.error}", file=sys.stderr, flush=True)
            os._exit(1)
        print("registered", flush=True)
        return registration.RegistrationStatusResponse()


def main(arguments: Sequence[str]) -> None:
    options = {argument for argument in arguments if argument.startswith("--")}
    resource, name, *devices = (argument for argument in arguments if argument not in options)
    health = "Unhealthy" if "--unhealthy" in options else "Healthy"
    plugin = Plugin(devices, health=health, crashes="--crash" in options)
    watched = "--watched" in options
    socket = (_REGISTRY if watched else DIRECTORY) / name
    socket.unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    services.add_DevicePluginServicer_to_server(plugin, server)
    if watched:
        registration_services.add_RegistrationServicer_to_server(
            WatchedRegistration(resource), server
        )
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    if not watched:
        _register(resource, name)
        print("registered", flush=True)
    while True:
        signal.pause()


def _register(resource: str, endpoint: str) -> None:
    with grpc.insecure_channel(f"unix://{DIRECTORY / 'kubelet.sock'}") as channel:
        services.RegistrationStub(channel).Register(
            messages.RegisterRequest(version=_VERSION, endpoint=endpoint, resource_name=resource),
            timeout=10,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
