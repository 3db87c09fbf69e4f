"""The runtime's directory of the CNI configuration as a whole: its files, and what they refer to.

Read-only. That a file is damaged, or that there is none, is no failure of this source.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.model.node_network import CniFile, CniFiles, SubnetEnv
from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import NotRequested, Snapshot
from agent.model.text import escape
from agent.sources.host.cni_config import (
    FLANNEL,
    FLANNEL_SUBNET,
    CniStatus,
    ConfigFile,
    Configuration,
    accepted,
    all_plugins,
    networks_of,
    read_files,
    with_subnets,
)
from agent.sources.host.cni_plugins import PluginPrograms
from agent.sources.host.files import read_file
from agent.sources.host.mount_table import is_on_node
from agent.sources.json_tree import subobject, text_field
from agent.sources.source import Source
from agent.sources.source_error import MALFORMED, NotFound, SourceError

_SUBNET_FILE: Final = "/run/flannel/subnet.env"
_SUBNET_KEYS: Final = {
    "FLANNEL_NETWORK": re.compile(r"^FLANNEL_(IPV6_)?NETWORK=", re.MULTILINE),
    "FLANNEL_SUBNET": FLANNEL_SUBNET,
    "FLANNEL_MTU": re.compile(r"^FLANNEL_MTU=", re.MULTILINE),
    "FLANNEL_IPMASQ": re.compile(r"^FLANNEL_IPMASQ=", re.MULTILINE),
}
"""What flannel's plugin demands of the file (its `subnetEnv.missing`)."""
_Files = Mapping[str, Configuration]


@dataclass(frozen=True)
class CniFilesSource(Source):
    status: Callable[[], CniStatus]
    """Returns what the runtime said when `networks` was read."""
    programs: PluginPrograms
    name = "cni_files"

    def read(self, _: Snapshot) -> CniFiles | NotRequested:
        """Return the directory that the runtime reads; raises SourceError."""
        status = self.status()
        directory = status.directory
        if directory is None:
            return NotRequested(self.name, "no runtime names a directory of CNI configurations")

        try:
            files = read_files(directory)
        except NotFound:
            if is_on_node(directory, self.programs.proc):
                return CniFiles(str(directory), (), exists=False)
            # Where the configuration is needed, `networks` is unavailable.
            return NotRequested(self.name, f"{directory} is not mounted here")

        configurations = accepted(files)
        plugins = list(_plugins(_in_use(status, configurations), configurations))
        programs = {name for plugin in plugins for name in _programs(plugin)}
        others = _plugins(configurations.values(), configurations)
        subnet_env = self._subnet_env([*plugins, *others])
        subnets = subnet_env.subnets if subnet_env else ()

        return CniFiles(
            directory=str(directory),
            files=tuple(_file(file, configurations, subnets) for file in files),
            subnet_env=subnet_env,
            missing_plugins=self.programs.missing(programs, status.plugin_directories),
        )

    def _subnet_env(self, plugins: Iterable[Configuration]) -> SubnetEnv | None:
        """Return the file that the first plugin of flannel reads."""
        for plugin in plugins:
            if plugin["type"] == FLANNEL:
                path = Path(text_field(plugin, "subnetFile") or _SUBNET_FILE)
                here = self.programs.mounted(path)
                is_of_node = is_on_node(here, self.programs.proc)
                return _read_subnet_env(path, here) if is_of_node else None
        return None


def _in_use(status: CniStatus, configurations: _Files) -> Iterable[Configuration]:
    """Return the configurations that the runtime uses, or would use."""
    if status.loaded:
        return status.loaded

    networks = list(configurations.values())
    named = [network for network in networks if network["name"] == status.default]
    return named or networks[:1]


def _plugins(configurations: Iterable[Configuration], files: _Files) -> Iterator[Configuration]:
    """Yield the plugins of these configurations, and of their delegates as far as these are known.

    `files`: where delegates may be.
    """
    for configuration in configurations:
        with suppress(*MALFORMED):  # Multus may have its delegates elsewhere
            yield from all_plugins(configuration, lambda: files)


def _file(file: ConfigFile, files: _Files, subnets: Iterable[str]) -> CniFile:
    """Return one file with its networks. `subnets`: the node's, by flannel."""
    name = escape(file.name)
    configuration = file.configuration
    if configuration is None:
        return CniFile(name, file.problem)
    networks: tuple[RuntimeNetwork, ...] = ()
    with suppress(SourceError):
        networks = with_subnets(networks_of(configuration, lambda: files), subnets)
    return CniFile(name, network=escape(str(configuration["name"])), networks=networks)


def _programs(plugin: Configuration) -> Iterator[str]:
    """Yield the types of the programs that a plugin needs, its own first."""
    yield str(plugin["type"])
    ipam = subobject(plugin, "ipam")
    if plugin["type"] == FLANNEL:
        delegate = subobject(plugin, "delegate")
        yield text_field(delegate, "type") or "bridge"
        ipam = {"type": "host-local", **subobject(delegate, "ipam"), **ipam}
    if ipam.get("type"):
        yield str(ipam["type"])


def _read_subnet_env(path: Path, here: Path) -> SubnetEnv | None:
    """Return flannel's file; None: it cannot be read. `here`: where it is for this process."""
    try:
        content, _ = read_file(here, follow=True)
    except FileNotFoundError:
        return SubnetEnv(str(path), "does not exist")
    except (OSError, SourceError):
        return None

    text = content.decode(errors="replace")
    missing = [key for key, form in _SUBNET_KEYS.items() if not form.search(text)]
    problem = f"has no {missing[0]}" if missing else None
    if not text.strip():
        problem = "is empty"
    return SubnetEnv(str(path), problem, tuple(FLANNEL_SUBNET.findall(text)))
