"""kubectl nodeleak on a Mac: Python there lacks what only Linux has."""

import re
import subprocess
import sys
from typing import Final

import yaml  # type: ignore[import-untyped]

from tests.deploy.manifests import ROOT
from tests.fleet.kubectl import FakeKubectl
from tests.processes import environment

_AS_ON_A_MAC: Final = """
import os, select, signal, socket, sys
missing = {
    os: "sched_getaffinity sched_setaffinity setns unshare memfd_create eventfd getrandom O_TMPFILE O_PATH "
        "posix_fadvise splice copy_file_range pidfd_open getxattr listxattr setxattr sched_getscheduler",
    socket: "AF_NETLINK AF_PACKET SO_PEERCRED SO_BINDTODEVICE SO_PASSCRED SOCK_CLOEXEC SOCK_NONBLOCK NETLINK_ROUTE",
    select: "epoll EPOLLIN",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo",
}
for module, names in missing.items():
    for name in names.split():
        vars(module).pop(name, None)
from agent.fleet.command import main
for command in sys.argv[1:]:
    sys.stderr.write(f"{command}: exit code {main(command.split())}\\n")
"""
ENDS: Final = {"--help": 0, "version": 0, "completion": 0, "scan worker-1": 0, "status worker-1": 3}
# To name the option of another program, it imports the command that runs on nodes.
OF_THE_NODE: Final = ("scan", "timeline", "journal", "clean", "restore", "clean-job")


def test_no_command_imports_what_only_linux_has(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", output="clean\n")
    ends = ENDS | {f"{command} a --state-dir=/x": 2 for command in OF_THE_NODE}
    done = subprocess.run(  # noqa: S603 (ours)
        [sys.executable, "-c", _AS_ON_A_MAC, *ends],
        env=environment(PATH=f"{kubectl.home}:/usr/bin:/bin", PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    codes = re.findall(r"^(.+): exit code (\d+)$", done.stderr, re.MULTILINE)
    assert codes == [(command, str(code)) for command, code in ends.items()], done
    assert done.stderr.count("write it after --") == len(OF_THE_NODE)


def test_krew_offers_it_to_linux_and_to_macs() -> None:
    (platform,) = yaml.safe_load((ROOT / "deploy/krew.yaml").read_text())["spec"]["platforms"]
    (condition,) = platform["selector"]["matchExpressions"]
    assert (condition["key"], condition["operator"]) == ("os", "In")
    assert condition["values"] == ["linux", "darwin"]
