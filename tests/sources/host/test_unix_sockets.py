"""The node's unix sockets: given lines of /proc/net/unix, and real sockets in the real file."""

import socket
from pathlib import Path

import pytest

from agent.sources.host.unix_sockets import UnixSockets, read_sockets
from agent.sources.source_error import SourceError

HEADER = b"Num       RefCount Protocol Flags    Type St Inode Path\n"
KUBELET, KVM = b"/var/lib/kubelet/device-plugins/kubelet.sock", b"/var/lib/kubelet/device-plugins/kubevirt-kvm.sock"
LISTENS = b"0000000000000000: 00000002 00000000 00010000 0001 01 60713 "
CONNECTED = b"0000000000000000: 00000003 00000000 00000000 0001 03 60716 "
UNNAMED = b"ffff888104f1cc00: 00000003 00000000 00000000 0001 03     7\n"
NOTHING = UnixSockets(frozenset(), frozenset())


def sockets_of(proc: Path, *lines: bytes) -> UnixSockets:
    (proc / "1/net").mkdir(parents=True, exist_ok=True)
    (proc / "1/net/unix").write_bytes(b"".join([HEADER, *lines]))
    return read_sockets(proc, [KUBELET, KVM])


def test_listening_and_connected_sockets_are_reported(tmp_path: Path) -> None:
    lines = (LISTENS + KUBELET + b"\n", UNNAMED, CONNECTED + KVM + b"\n", CONNECTED + KVM + b"\n")
    assert sockets_of(tmp_path, *lines) == UnixSockets(frozenset({KUBELET}), frozenset({KVM}))
    for path in (b"//" + KVM, KVM.replace(b"/", b"//")):
        assert sockets_of(tmp_path, CONNECTED + path + b"\n").connected == {KVM}
        assert sockets_of(tmp_path, LISTENS + path + b"\n") == UnixSockets(frozenset({KVM}), frozenset())


def test_other_paths_and_malformed_lines_do_not_match(tmp_path: Path) -> None:
    assert sockets_of(tmp_path, CONNECTED.replace(b" 03 ", b" 02 ") + KVM + b"\n") == NOTHING, "it is pending"
    others = (b"/run" + KVM, KVM + b".old", KVM[1:], b"@" + KVM, KVM + b" (deleted)", b"/run/docker.sock", b"x " + KVM)
    for path in others:
        assert sockets_of(tmp_path, LISTENS + path + b"\n", CONNECTED + path + b"\n") == NOTHING
    for line in (b"", b"\n", KVM + b"\n", b"1 2 3 " + KVM + b"\n", b"a b c zz e f g " + KVM + b"\n", b"\xff" + KVM):
        assert sockets_of(tmp_path, line) == NOTHING


def test_without_the_nodes_process_table_sockets_are_unavailable(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as raised:
        read_sockets(tmp_path, [KVM])
    assert str(raised.value) == f"cannot read {tmp_path}/1/net/unix: no such file or directory"


def test_real_sockets_are_found(tmp_path: Path) -> None:
    (tmp_path / "1").symlink_to("/proc/self")
    path = tmp_path / "plugin.sock"
    name = str(path).encode()
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.bind(str(path))
        plugin.listen()
        assert read_sockets(tmp_path, [name]) == UnixSockets(frozenset({name}), frozenset())
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.connect(str(path))
            accepted, _ = plugin.accept()
            with accepted:
                assert read_sockets(tmp_path, [name]) == UnixSockets(frozenset({name}), frozenset({name}))
        assert read_sockets(tmp_path, [name]) == UnixSockets(frozenset({name}), frozenset())
    assert read_sockets(tmp_path, [name]) == NOTHING
    assert path.is_socket(), "the file outlives whoever listened"
