"""The node's unix sockets: given lines of /proc/net/unix, and real sockets in the real file."""

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.host import unix_sockets
from agent.sources.host.unix_sockets import UnixSockets, find
from agent.sources.source_error import SourceError

HEADER = b"Num       RefCount Protocol Flags    Type St Inode Path\n"
KUBELET, KVM = b"/var/lib/kubelet/device-plugins/kubelet.sock", b"/var/lib/kubelet/device-plugins/kubevirt-kvm.sock"

LISTENS = b"0000000000000000: 00000002 00000000 00010000 0001 01 60713 "
CONNECTED = b"0000000000000000: 00000003 00000000 00000000 0001 03 60716 "
UNNAMED = b"ffff888104f1cc00: 00000003 00000000 00000000 0001 03     7\n"

NOTHING = UnixSockets(frozenset(), frozenset())


def sockets_of(*lines: bytes) -> UnixSockets:
    return find([HEADER, *lines], [KUBELET, KVM])


def test_listening_and_connected_sockets_are_reported() -> None:
    found = sockets_of(LISTENS + KUBELET + b"\n", UNNAMED, CONNECTED + KVM + b"\n", CONNECTED + KVM + b"\n")
    assert found == UnixSockets(frozenset({KUBELET}), frozenset({KVM}))


@pytest.mark.parametrize("path", [b"//" + KVM, KVM.replace(b"/", b"//")])
def test_duplicate_slashes_are_normalized(path: bytes) -> None:
    assert sockets_of(CONNECTED + path + b"\n").connected == {KVM}


def test_a_listening_socket_is_not_connected() -> None:
    assert sockets_of(LISTENS + KVM + b"\n").connected == frozenset()


def test_a_pending_connection_is_not_connected() -> None:
    assert sockets_of(CONNECTED.replace(b" 03 ", b" 02 ") + KVM + b"\n") == NOTHING


@pytest.mark.parametrize(
    "path", [b"/run" + KVM, KVM + b".old", KVM[1:], b"@" + KVM, KVM + b" (deleted)", b"/run/docker.sock", b"x " + KVM]
)
def test_other_paths_do_not_match(path: bytes) -> None:
    assert sockets_of(LISTENS + path + b"\n", CONNECTED + path + b"\n") == NOTHING


@pytest.mark.parametrize("line", [b"", b"\n", KVM + b"\n", b"1 2 3 " + KVM + b"\n", b"a b c zz e f g " + KVM + b"\n"])
def test_a_malformed_line_is_ignored(line: bytes) -> None:
    assert sockets_of(line) == NOTHING


@given(st.lists(st.binary(max_size=20).map(lambda noise: noise + KVM + b"\n") | st.binary(max_size=30)))
def test_any_line_can_be_parsed(lines: list[bytes]) -> None:
    found = find(lines, [KVM])
    assert found.listening | found.connected <= {KVM}


def test_without_the_nodes_process_table_sockets_are_unavailable(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as raised:
        unix_sockets.read_sockets(tmp_path, [KVM])
    assert str(raised.value) == f"cannot read {tmp_path}/1/net/unix: no such file or directory"


def test_real_sockets_are_found(tmp_path: Path) -> None:
    (tmp_path / "1").symlink_to("/proc/self")
    path = tmp_path / "plugin.sock"
    name = str(path).encode()
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.bind(str(path))
        plugin.listen()
        assert unix_sockets.read_sockets(tmp_path, [name]) == UnixSockets(frozenset({name}), frozenset())
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.connect(str(path))
            accepted, _ = plugin.accept()
            with accepted:
                assert unix_sockets.read_sockets(tmp_path, [name]) == UnixSockets(frozenset({name}), frozenset({name}))
        assert unix_sockets.read_sockets(tmp_path, [name]) == UnixSockets(frozenset({name}), frozenset())
    assert unix_sockets.read_sockets(tmp_path, [name]) == NOTHING
    assert path.is_socket(), "the file outlives whoever listened"
