"""The daemons of the node: when they started, and with which flags."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.model.snapshot import PluginProcess, ProcessStartTimes
from agent.sources.host.processes import ProcessTable
from agent.sources.source_error import SourceError
from tests.sources.host.process_table import process, read
from tests.wire import error_of
from tests.wired import process_table

BOOTED = datetime.fromtimestamp(1_700_000_000, UTC)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return process_table(tmp_path)


def after(seconds: int) -> datetime:
    return BOOTED + timedelta(seconds=seconds)


def test_the_start_times_of_daemons_are_read_and_a_process_that_ends_meanwhile_hides_none(
    proc: Path,
) -> None:
    process(proc, 1, "systemd", 0)
    process(proc, 70, "dockerd", 20)
    assert read(proc) == ProcessStartTimes(BOOTED, "b-1", None, after(20))
    process(proc, 80, "kubelet", 31)
    for other in ("kube let)", "(sd-pam)", ") S 1 1 (", "a\nb", "kubelet) S 0 (x", "tmux: server"):
        process(proc, 5, other, 100)
        assert read(proc) == ProcessStartTimes(
            BOOTED, "b-1", after(31), after(20), network_plugin=None
        )
    for command, kind in (
        ("k3s-server", "kubelet"), ("k3s-agent", "kubelet"), ("kubelite", "kubelet"), ("dockerd-current", "docker"),
        ("containerd", "containerd"), ("crio", "crio"), ("cri-dockerd", "cri_dockerd"),
    ):  # fmt: skip
        process(proc, 5, command, 300)
        assert getattr(read(proc), kind) == after(300), command
    for text in ("", "80 (kubelet", "80 (kubelet) S 1 2 3"):
        process(proc, 80, "sh", 31).write_text(text)
        assert read(proc).docker == after(20)


def test_a_restart_is_seen_also_without_a_search(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    process(proc, 80, "kubelet", 31)
    table = ProcessTable(proc)
    table.read()
    process(proc, 95, "kubelet", 50)  # its wrapper starts it again
    assert table.read(complete=False).kubelet == after(31), (
        "processes that are not known are not read"
    )
    assert table.read().kubelet == after(50)
    (proc / "95/stat").unlink()
    process(proc, 80, "kubelet", 400)  # with the same pid
    assert table.read(complete=False).kubelet == after(400)
    stat = proc / "80/stat"
    stat.write_text(stat.read_text().replace(" S ", " Z ", 1))
    assert table.read(complete=False).kubelet is None
    process(proc, 95, "kubelet", 500)
    assert table.read(complete=False).kubelet == after(500)


def test_the_youngest_process_of_a_kind_counts_that_is_not_in_a_container(proc: Path) -> None:
    for older, younger in ((70, 900), (900, 70)):
        for kind, offset in (("dockerd", 0), ("kubelet", 1)):
            process(proc, older + offset, kind, 20, kind, "--hostname-override=wrapper")
            process(proc, younger + offset, kind, 90_000, kind, "--hostname-override=worker-1")
        table = ProcessTable(proc)
        found = table.read()
        assert (found.docker, found.kubelet) == (after(90_000), after(90_000))
        assert table.kubelet_flags("hostname-override") == {"hostname-override": "worker-1"}
    for pid, seconds, namespaces in ((900, 100_000, "900\t7"), (5000, 95_000, "5000")):
        process(proc, pid, "dockerd", seconds)
        (proc / f"{pid}/status").write_text(f"Name:\tdockerd\nNSpid:\t{namespaces}\n")
    assert read(proc).docker == after(95_000)


def test_what_cannot_be_read_or_is_not_the_nodes_is_unavailable(proc: Path) -> None:
    process(proc, 1, "python3", 900)
    assert error_of(ProcessTable(proc).read).startswith(
        f"no kubelet and no container runtime in {proc}: they are stopped, or it is not"
    )
    for text in ("", "cpu 1 2\n", "btime soon\n", "btime \n", "btime 99999999999999999999\n"):
        (proc / "stat").write_text(text)
        assert (
            error_of(ProcessTable(proc).read)
            == f"cannot parse {proc}/stat: it has no time of the boot"
        )
    (proc / "sys/kernel/random/boot_id").unlink()
    (proc / "stat").write_text("cpu 1 2 3\nbtime 1\nprocesses 9\n")
    assert (
        error_of(ProcessTable(proc).read)
        == f"cannot read {proc}/sys/kernel/random/boot_id: no such file or directory"
    )
    assert (
        error_of(ProcessTable(proc / "none").read)
        == f"cannot read {proc}/none/stat: no such file or directory"
    )


def test_a_kubelet_flag_is_read_as_given_and_no_other_argument_is_kept(proc: Path) -> None:
    table = ProcessTable(proc)
    for pid, command, unreadable in (
        (70, "dockerd", []),
        (80, "kubelet", []),
        (81, "kubelet", ["x" * (1 << 20)]),
    ):
        process(proc, pid, command, 20, *unreadable)
        assert table.read().network_plugin is None
        with pytest.raises(SourceError, match=r"the kubelet.s flags are unknown"):
            table.kubelet_flags("cloud-provider")
    for words, flags in (
        (["--hostname-override=worker-1"], {"hostname-override": "worker-1"}),
        (["--v=2", "--hostname-override", "worker-1", "--v=2"], {"hostname-override": "worker-1"}),
        (
            ["--hostname-override=a", "--hostname-override=worker-1"],
            {"hostname-override": "worker-1"},
        ),
        (["--hostname-override="], {"hostname-override": ""}),
        (["--hostname-override"], {"hostname-override": ""}),
        (["--hostname-override=a\x1b[2J"], {"hostname-override": "a\\x1b[2J"}),
        (["--bootstrap-token=secret", "hostname-override=x", "--hostname-override-x=y"], {}),
    ):
        process(proc, 81, "kubelet", 31, "/usr/bin/kubelet", *words)
        table.read()
        assert table.kubelet_flags("hostname-override", "cloud-provider") == flags


def test_the_network_plugin_comes_from_the_flags_of_kubelet_or_cri_dockerd(proc: Path) -> None:
    for lines, plugin in (
        ([["--v=2", "--network-plugin=kubenet"]], "kubenet"),
        ([["--network-plugin", "cni", "--v=2"]], "cni"),
        ([["--network-plugin="]], ""),
        ([["--v=2", "network-plugin=kubenet", "--network-plugin-mtu=1500"]], ""),
        # Of several, kubenet counts: its directory must not look unused.
        ([["--network-plugin=other"], ["--network-plugin=kubenet"]], "kubenet"),
        ([["--network-plugin=kubenet"], ["--network-plugin=cni"]], "kubenet"),
        ([["--network-plugin=kubenet"], ["--v=2"]], "kubenet"),
    ):
        for pid, command in ((80, "kubelet"), (81, "cri-dockerd")):
            process(
                proc, pid, command, 31, command, *(lines[pid - 80] if pid - 80 < len(lines) else [])
            )
        assert read(proc).network_plugin == plugin, lines


def test_a_cni_plugin_at_work_is_told(proc: Path) -> None:
    process(proc, 80, "kubelet", 31)
    for pid, command, words in (
        (81, "bridge", ["/opt/cni/bin/bridge"]),
        (82, "own-ipam-plugin", ["/bin/sh", "/opt/cni/bin/own-ipam-plugin-of-ours"]),
        (83, "bridge", ["bridge", "monitor"]),
        (84, "flanneld", ["/opt/bin/flanneld"]),
        (91, "dhcp", ["/opt/cni/bin/dhcp", "daemon"]),
        (85, "bridge", ["/app/bridge"]),
        (86, "python3", ["python3", "/srv/own-ipam-plugin-of-ours"]),
        (87, "acme", ["/usr/bin/python3", "/opt/cni/bin/acme"]),
        (88, "install", ["/opt/cni/bin/install", "--now"]),
        (89, "host-local", []),
    ):
        process(proc, pid, command, 40, *words)
    ended = process(proc, 90, "bridge", 40, "/opt/cni/bin/bridge")
    ended.write_text(ended.read_text().replace(" S ", " Z ", 1))
    (proc / "85/status").write_text("NSpid:\t85\t1\n")  # a pod's own
    table = ProcessTable(proc)
    assert table.read(plugins=["dhcp", "own-ipam-plugin-of-ours"]).plugins == (
        PluginProcess(81, "bridge", after(40)),
        PluginProcess(82, "own-ipam-plugin-of-ours", after(40)),
        PluginProcess(86, "own-ipam-plugin-of-ours", after(40)),
        PluginProcess(87, "acme", after(40)),
        PluginProcess(89, "host-local", after(40)),
    ), "by its name, also without a command line, or because it is where plugins are"
    # Later ones are found within a minute; as long as one runs, in every reading.
    for pid in (81, 82, 86, 87, 89):
        (proc / f"{pid}/stat").unlink()
    process(proc, 70, "dockerd", 20)
    assert table.read(complete=False).plugins == ()
    process(proc, 81, "bridge", 50)
    for seconds, found in ((59, 0), (60, 1), (61, 1)):
        assert len(table.read(timedelta(seconds=seconds), complete=False).plugins) == found
