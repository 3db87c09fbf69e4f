"""The commands that scan and clean print, typed on a node in a directory: what they release is what was announced."""

import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cleanup.stores import may_mount
from tests.cli.commands import BLOCKED, DONE, FAILED, USAGE, nodeleak
from tests.cli.test_networks import (
    NINETY_DAYS_AGO,
    NOW,
    OF_A_POD,
    Stand,
    a_node,
    cache_result,
    leave_over,
    standing,
)
from tests.exporters.test_advised_commands import advised
from tests.fakes.nodes import the_incident

QUICK: Final[dict[str, Any]] = {"NODELEAK_CONFIRM_AFTER": "1ms", "NODELEAK_SETTLE": "0s"}


def leave_empty(store: Path, *ips: str) -> None:
    for ip in ips:
        (store / ip).touch()
        os.utime(store / ip, (NINETY_DAYS_AGO, NINETY_DAYS_AGO))


def leave_another_network(stand: Stand) -> None:
    """Pods had addresses of another network, which is configured no more; one of them runs."""
    ips = [f"10.88.0.{number}" for number in range(2, 6)]
    store = stand.host.networks / "containerd-net"
    leave_over(store, ips)
    running = stand.node.running[0].id
    (store / "10.88.0.6").write_text(f"{running}\r\neth1")
    cache_result(stand.host.cache, store.name, running, "10.88.0.6/16", "eth1", cniArgs=OF_A_POD)
    for number, ip in enumerate(ips):
        cache_result(
            stand.host.cache, "containerd-net", f"{number:064x}", f"{ip}/16", cniArgs=OF_A_POD
        )


def leave_everything(stand: Stand) -> None:
    leave_over(stand.host.store, ["10.244.1.99", "10.9.9.7", "10.9.9.8", "10.9.9.9"])
    leave_empty(stand.host.store, "10.244.1.200", "10.244.1.201")


def follow(text: str) -> Iterator[tuple[int, int]]:
    """Type what was advised; yield how many addresses were announced, and how many released."""
    for each in advised(text):
        done = nodeleak(*each.command[1:], "-o", "json", **QUICK)
        assert done.code == DONE, (each, done)
        yield each.count, done.said.count('"verdict": "released"')


@pytest.mark.parametrize("command", ["scan", "clean"])
@pytest.mark.parametrize(
    ("leave", "counts"), [(leave_everything, [1, 5]), (leave_another_network, [4])]
)
def test_every_advised_command_releases_what_it_announces(
    tmp_path: Path, command: str, leave: Any, counts: list[int]
) -> None:
    with standing(tmp_path, a_node(runtime="containerd://2.1.4")) as stand:
        before = stand.reserved
        leave(stand)
        state = f"--state-dir={tmp_path / 'state'}"
        text = nodeleak(command, *stand.options("on", state), **QUICK).out
        found = list(follow(text))
        assert found == [(count, count) for count in counts], text
        assert stand.reserved == before
        checks = text.count("Check first")
        assert checks == 2, text


def test_where_no_option_helps_no_command_is_advised_and_the_reason_is_said(
    tmp_path: Path,
) -> None:
    with standing(tmp_path, a_node(runtime="containerd://1.6.8")) as stand:
        leave_over(stand.host.store, ["10.244.1.99"])
        for command, words in (
            ("scan", "No command releases 1 address now: containerd 1.6.8 is not known to record"),
            ("clean", "DRY RUN: nothing was changed. No command can release an address now"),
        ):
            done = nodeleak(command, *stand.options(), **QUICK)
            assert (done.code, list(advised(done.out))) == (DONE, [])
            assert words in done.said, done.out
        assert "Upgrade it: containerd to 1.6.9 or later" in stand.text()


def test_while_the_node_has_just_started_the_command_comes_with_its_time(tmp_path: Path) -> None:
    now = datetime.now(UTC)  # noqa: TID251 (the command reads the real clock)
    node = replace(the_incident(now), kubelet_started=now - timedelta(minutes=2))
    with standing(tmp_path, node) as stand:
        (command,) = advised(nodeleak("scan", *stand.options(), NODELEAK_CONFIRM_AFTER="1ms").out)
        assert command.count == 7
        assert timedelta(minutes=1) <= command.wait <= timedelta(minutes=3)
        refused = nodeleak(*command.command[1:], NODELEAK_CONFIRM_AFTER="1ms")
        assert "0 released, 7 refused (7 unsettled)" in refused.said
        assert "7 released" in nodeleak(*command.command[1:], **QUICK).said, "then it works"


def test_in_a_pod_that_only_reads_the_first_answer_names_the_job(tmp_path: Path) -> None:
    may_mount()
    pod = QUICK | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    with standing(tmp_path, the_incident(NOW)) as stand:
        script = 'mount --bind -o ro "$0" "$0" && exec "$@"'
        read_only = ("unshare", "-m", "/bin/sh", "-c", script, str(stand.host.store))
        options = stand.options("on", f"--state-dir={tmp_path / 'state'}")
        job = f"kubectl nodeleak clean-job {stand.node.name} --apply --run"
        dry = nodeleak("clean", *options, prefix=read_only, **pod)
        assert dry.code == BLOCKED
        assert "7 addresses can be released" in dry.out.splitlines()[1]
        assert job in dry.out.splitlines()[4]

        refused = nodeleak("clean", "--apply", *options, prefix=read_only, **pod)
        assert (refused.code, refused.out) == (USAGE, "")
        assert (
            f"this pod only reads. To release addresses, run on your machine: {job}" in refused.err
        )

        failed = nodeleak(
            "clean", "--apply", "--cleanup-network=auto", *options, prefix=read_only, **pod
        )
        assert failed.code == FAILED
        assert failed.out.splitlines()[1] == "Nothing was released: this pod only reads."
        assert job in failed.out.splitlines()[4]
        for command in advised(failed.out):
            assert shlex.join(command.command).startswith(job)
            assert command.count == 7
