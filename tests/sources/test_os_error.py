"""The remedy in an error depends on who asks: root cannot be told to become root."""

import errno
import os
import socket

import pytest

from agent.sources.os_error import describe_os_error
from tests.wire import as_nobody, needs

DENIED = PermissionError(errno.EACCES, "Permission denied")
NOT_PERMITTED = PermissionError(errno.EPERM, "Operation not permitted")


def test_anybody_else_is_told_to_run_as_root() -> None:
    with as_nobody():
        assert describe_os_error(DENIED) == "permission denied (run as root)"
        assert describe_os_error(NOT_PERMITTED) == "operation not permitted (run as root)"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DENIED, "permission denied (as root: likely a missing capability, AppArmor or SELinux)"),
        (NOT_PERMITTED, "operation not permitted"),
    ],
)
def test_root_is_told_what_is_likely(error: OSError, text: str) -> None:
    needs(os.geteuid() == 0, "root")
    assert describe_os_error(error) == text


def test_a_name_at_the_beginning_stays_as_it_is() -> None:
    with socket.socket(socket.AF_UNIX) as client, pytest.raises(OSError, match="AF_UNIX") as raised:
        client.connect("/" + "x" * 200)
    assert describe_os_error(raised.value) == "AF_UNIX path too long"
