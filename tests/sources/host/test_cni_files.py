"""The runtime's CNI directory as a whole: real files, refused or accepted as libcni does, and what they refer to."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from agent.model.node_network import CniFile, CniFiles, SubnetEnv
from agent.model.runtime import WrittenRange
from agent.model.snapshot import NotRequested
from agent.sources.host.cni_config import CniStatus
from agent.sources.host.cni_files import CniFilesSource
from agent.sources.host.cni_plugins import PluginPrograms
from tests.sources.reading import HEALTHY
from tests.wire import error_of

BRIDGE: Final = {"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.244.1.0/24"}}
FLANNEL: Final = {"type": "flannel", "delegate": {"isDefaultGateway": True}}
PORTMAP: Final = {"type": "portmap", "capabilities": {"portMappings": True}}
SUBNET_ENV: Final = (
    "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\n"
    "FLANNEL_IPMASQ=true\n"
)


class Directory:
    """A node's CNI directory, its plugins and its /run, all of which this process sees as the node's first does."""

    def __init__(self, root: Path) -> None:
        self.net_d = root / "net.d"
        self.programs = root / "bin"
        self.run_dir = root / "run"
        self.proc = root / "proc"
        for directory in (self.net_d, self.programs, self.run_dir / "flannel", self.proc / "1/ns"):
            directory.mkdir(parents=True)
        (self.proc / "1/ns/mnt").symlink_to("/proc/self/ns/mnt")

    def write(self, file: str, tree: Any) -> None:
        text = tree if isinstance(tree, str) else json.dumps(tree)
        (self.net_d / file).write_text(text)

    def list(self, file: str, name: str, *plugins: Any) -> None:
        self.write(file, {"cniVersion": "1.0.0", "name": name, "plugins": list(plugins)})

    def install(self, *programs: str) -> None:
        for program in programs:
            (self.programs / program).touch()
            (self.programs / program).chmod(0o755)

    def read(self, **status: Any) -> Any:
        given: dict[str, Any] = {"directory": self.net_d, "plugin_directories": (self.programs,)}
        programs = PluginPrograms(self._mounted, self.proc)
        source = CniFilesSource(lambda: CniStatus(**(given | status)), programs)
        return source.read(HEALTHY)

    def _mounted(self, path: Path) -> Path:
        return self.run_dir / path.relative_to("/run") if path.is_relative_to("/run") else path


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


def problem(directory: Directory, file: str, content: Any) -> str | None:
    """Return why libcni refuses a file with this content."""
    directory.write(file, content)
    (found,) = directory.read().files
    (directory.net_d / file).unlink()
    assert isinstance(found, CniFile)
    return found.problem


def test_a_file_that_libcni_refuses_is_described_in_words_about_the_file(
    directory: Directory,
) -> None:
    named = {"name": "cbr0"}
    for content, expected in (
        ("", "is empty"),
        ("\n \n", "has nothing but blank space"),
        ('{\n "name": "cbr0"\n "plugins": []}', "line 3, column 2: expected ',' between values"),
        ('{"name": "cbr0",x}', "line 1, column 17: expected a key in double quotes"),
        ('{"name" "cbr0"}', "line 1, column 9: expected ':' after a key"),
        ('{"name": cbr0}', "line 1, column 10: expected a value"),
        ('{"name": "cbr0"} {}', "line 1, column 18: expected nothing after the end of the object"),
        ('{"name": "cb\nr0"}', "line 1, column 13: a text has a line break or a control character"),
        ('{"name": "cbr0', "line 1, column 10: a text has no closing quote"),
        ('{\n"name": "cbr0",\n', "line 2: the file ends too early"),
        ('{"name": NaN}', "NaN is not a JSON value"),
        ("[]", "is not a JSON object"),
        ("[" * 100_000, "is nested too deeply"),
        ({"plugins": [BRIDGE]}, "its network has no name"),
        ({"name": 7, "plugins": [BRIDGE]}, "its network has a name that is not text"),
        (named | {"cniVersion": 1, "plugins": [BRIDGE]}, "its cniVersion is not text"),
        (named, "has no plugins"),
        (named | {"plugins": []}, "has no plugins"),
        (named | {"plugins": [BRIDGE, {"ipam": {}}]}, "plugin 2 has no type"),
        (named | {"plugins": [BRIDGE, "portmap"]}, "plugin 2 is not an object"),
        (named | {"plugins": [{"type": 7}]}, "plugin 1 has a wrong value of type"),
        (named | {"plugins": [BRIDGE | {"ipam": "x"}]}, "plugin 1 has a wrong value of ipam"),
        (
            named | {"plugins": [BRIDGE], "disableCheck": "no"},
            "disableCheck is neither true nor false",
        ),
        (named | {"plugins": [BRIDGE]}, None),
    ):
        assert problem(directory, "10-x.conflist", content) == expected, content
    is_list = "is a list of plugins: its name must end with .conflist"
    assert problem(directory, "10-x.conf", {"name": "cbr0", "plugins": [BRIDGE]}) == is_list
    assert problem(directory, "10-x.conf", {"name": "cbr0"}) == "has no type"
    assert problem(directory, "10-x.json", BRIDGE) is None
    (directory.net_d / "cbr0").mkdir()
    directory.write("cbr0/20.conf", "")
    assert problem(directory, "10-x.conflist", named) == "its cbr0/20.conf is empty"
    # As Go's parser, and unlike Python's: text that is no UTF-8 is no error, a byte order mark is.
    (directory.net_d / "10-x.conf").write_bytes(b'{"type": "bridge", "description": "\xff"}')
    assert directory.read().files[0].problem is None
    (directory.net_d / "10-x.conf").write_bytes(b'\xef\xbb\xbf{"type": "bridge"}')
    assert directory.read().files[0].problem is not None


def test_the_files_are_in_the_order_of_runtimes_with_what_they_give_pods(
    directory: Directory,
) -> None:
    directory.list("20-bridge.conflist", "pods", BRIDGE)
    directory.list("10-flannel.conflist", "cbr0", FLANNEL, PORTMAP)
    directory.write("05-mesh.conflist", "")
    directory.write("10-flannel.conflist.bak", "")
    (directory.net_d / "00-directory.conf").mkdir()
    (directory.run_dir / "flannel/subnet.env").write_text(SUBNET_ENV)
    found = directory.read()
    assert (found.directory, found.exists) == (str(directory.net_d), True)
    assert [(file.name, file.network) for file in found.files] == [
        ("05-mesh.conflist", ""),
        ("10-flannel.conflist", "cbr0"),
        ("20-bridge.conflist", "pods"),
    ]
    ranges = [network.ranges for file in found.files for network in file.networks]
    assert ranges == [((WrittenRange("10.244.1.1/24"),),), ((WrittenRange("10.244.1.0/24"),),)]


def test_a_directory_that_is_missing_is_a_fact_only_where_it_is_the_nodes(
    directory: Directory,
) -> None:
    gone = directory.net_d / "gone"
    assert directory.read(directory=gone) == CniFiles(str(gone), (), exists=False)
    (directory.proc / "1/ns/mnt").unlink()
    not_mounted = NotRequested("cni_files", f"{gone} is not mounted here")
    assert directory.read(directory=gone) == not_mounted, "as that of k3s, which names its networks"
    assert isinstance(directory.read(directory=None), NotRequested)
    (directory.net_d / "10-x.conf").symlink_to("gone")
    assert "cannot read" in error_of(directory.read)


def test_the_file_of_flannel_is_read_if_a_plugin_reads_it(directory: Directory) -> None:
    directory.list("10-bridge.conflist", "pods", BRIDGE)
    assert directory.read().subnet_env is None
    directory.list("20-flannel.conflist", "cbr0", FLANNEL)
    path, file = "/run/flannel/subnet.env", directory.run_dir / "flannel/subnet.env"
    assert directory.read().subnet_env == SubnetEnv(path, "does not exist")
    for text, expected in (
        ("", SubnetEnv(path, "is empty")),
        ("FLANNEL_NETWORK=10.244.0.0/16\n", SubnetEnv(path, "has no FLANNEL_SUBNET")),
        (
            SUBNET_ENV.replace("FLANNEL_MTU", "MTU"),
            SubnetEnv(path, "has no FLANNEL_MTU", ("10.244.1.1/24",)),
        ),
        (
            SUBNET_ENV + "FLANNEL_IPV6_SUBNET=fd00::1/64\n",
            SubnetEnv(path, subnets=("10.244.1.1/24", "fd00::1/64")),
        ),
    ):
        file.write_text(text)
        assert directory.read().subnet_env == expected
    # Also as a delegate of Multus, and in another place.
    for plugin in (
        {"type": "multus", "delegates": [FLANNEL | {"subnetFile": "/run/else.env"}]},
        {"type": "multus", "clusterNetwork": "cbr0"},
    ):
        directory.list("00-multus.conflist", "multus", plugin)
        directory.list("20-flannel.conflist", "cbr0", FLANNEL | {"subnetFile": "/run/else.env"})
        assert directory.read().subnet_env == SubnetEnv("/run/else.env", "does not exist")


def test_the_programs_of_configured_plugins_are_missing_only_if_they_are_in_no_directory(
    directory: Directory,
) -> None:
    directory.list("10-flannel.conflist", "cbr0", FLANNEL, PORTMAP, {"type": "x", "enabled": False})
    directory.list("87-podman.conflist", "podman", {"type": "dnsname"})
    directory.install("flannel", "portmap")
    assert directory.read().missing_plugins == ("bridge", "host-local")
    directory.install("bridge", "host-local")
    (directory.programs / "portmap").chmod(0o644)
    (directory.programs / "flannel").unlink()
    (directory.programs / "flannel").mkdir()
    assert directory.read().missing_plugins == ("flannel", "portmap")
    second = directory.programs.with_name("second")
    both = (directory.programs, second)
    assert directory.read(plugin_directories=both).missing_plugins == ("flannel", "portmap")
    second.mkdir()
    for name in ("flannel", "portmap"):
        (second / name).symlink_to("/bin/sh")
    assert directory.read(plugin_directories=both).missing_plugins == ()
    # What the runtime has loaded counts, and the network that it is to use.
    assert directory.read(default="podman").missing_plugins == ("dnsname",)
    loaded = ({"name": "x", "plugins": [{"type": "ptp"}]},)
    assert directory.read(loaded=loaded).missing_plugins == ("ptp",)
    # Nothing is missing where the runtime does not say where they are, or none of it is there or is the node's.
    assert directory.read(plugin_directories=()).missing_plugins is None
    assert directory.read(plugin_directories=(second / "gone",)).missing_plugins is None
    (directory.proc / "1/ns/mnt").unlink()
    assert directory.read().missing_plugins is None
