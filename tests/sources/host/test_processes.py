"""The daemons of the node: when they started, with which flags, and which runtime the kubelet names."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.model.snapshot import PluginProcess, ProcessStartTimes
from agent.sources.host.processes import ProcessTable
from agent.sources.source_error import SourceError

BOOTED = datetime(2026, 3, 26, 12, 0, tzinfo=UTC)
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "stat").write_text(f"cpu 1 2 3\nbtime {int(BOOTED.timestamp())}\nprocesses 9\n")
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("b-1\n")
    return tmp_path


def process(proc: Path, pid: int, command: str, seconds: int, *words: str) -> Path:
    """Write a process that started so many seconds after boot, without words one whose command line is unreadable."""
    (proc / str(pid)).mkdir(exist_ok=True)
    fields = ["S", *["0"] * 18, str(seconds * TICKS), *["0"] * 30]
    stat = proc / str(pid) / "stat"
    stat.write_text(f"{pid} ({command}) {' '.join(fields)}\n")
    if words:
        write_cmdline(proc, pid, *words)
    return stat


def write_cmdline(proc: Path, pid: int, *words: str) -> None:
    (proc / str(pid) / "cmdline").write_text("".join(f"{word}\0" for word in words))


def end(proc: Path, pid: int) -> None:
    (proc / str(pid) / "stat").unlink()


def after(seconds: int) -> datetime:
    return BOOTED + timedelta(seconds=seconds)


def read(proc: Path) -> ProcessStartTimes:
    return ProcessTable(proc).read()


def error_of(proc: Path) -> str:
    with pytest.raises(SourceError) as raised:
        read(proc)
    return str(raised.value)


def test_the_start_times_of_node_kubelet_and_docker_are_read(proc: Path) -> None:
    process(proc, 1, "systemd", 0)
    process(proc, 70, "dockerd", 20)
    assert read(proc) == ProcessStartTimes(BOOTED, "b-1", None, after(20))
    process(proc, 80, "kubelet", 31)
    assert read(proc) == ProcessStartTimes(BOOTED, "b-1", after(31), after(20))


def test_daemons_have_several_names(proc: Path) -> None:
    for command, kind in (
        ("k3s-server", "kubelet"), ("k3s-agent", "kubelet"), ("kubelite", "kubelet"), ("dockerd-current", "docker"),
        ("containerd", "containerd"), ("crio", "crio"), ("cri-dockerd", "cri_dockerd"),
    ):  # fmt: skip
        process(proc, 7, command, 3)
        found = read(proc)
        kinds = ("kubelet", "docker", "containerd", "crio", "cri_dockerd")
        assert {kind: at for kind in kinds if (at := getattr(found, kind))} == {kind: after(3)}


def test_other_process_names_are_ignored(proc: Path) -> None:
    process(proc, 80, "kubelet", 31)
    for command in ("kube let)", "(sd-pam)", ") S 1 1 (", "a\nb", "kubelet) S 0 (x", "tmux: server"):
        process(proc, 5, command, 100)
        assert read(proc).kubelet == after(31)


def test_a_restart_is_seen_also_without_a_search(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    process(proc, 80, "kubelet", 31)
    table = ProcessTable(proc)
    table.read()
    process(proc, 80, "kubelet", 400)  # with the same pid
    assert table.read(complete=False).kubelet == after(400)
    stat = process(proc, 80, "kubelet", 400)
    stat.write_text(stat.read_text().replace(" S ", " Z ", 1))
    assert table.read(complete=False).kubelet is None
    process(proc, 95, "kubelet", 500)
    assert table.read(complete=False).kubelet == after(500)


def test_known_daemons_are_remembered_and_others_are_not_read_again(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    process(proc, 80, "kubelet", 31)
    table = ProcessTable(proc)
    table.read()
    process(proc, 95, "kubelet", 900)  # its wrapper starts it again
    assert table.read(complete=False).kubelet == after(31)
    assert table.read().kubelet == after(900)


def test_the_youngest_process_of_a_kind_counts(proc: Path) -> None:
    for pids in ((70, 900), (900, 70)):
        for kind, offset in (("dockerd", 0), ("kubelet", 1)):
            process(proc, pids[0] + offset, kind, 20, kind, "--hostname-override=wrapper")
            process(proc, pids[1] + offset, kind, 90_000, kind, "--hostname-override=worker-1")
        table = ProcessTable(proc)
        found = table.read()
        assert (found.docker, found.kubelet) == (after(90_000), after(90_000))
        assert table.kubelet_flags("hostname-override") == {"hostname-override": "worker-1"}


def test_a_docker_in_a_container_does_not_hide_a_restart_of_the_nodes_docker(proc: Path) -> None:
    process(proc, 900, "dockerd", 100_000)
    (proc / "900/status").write_text("Name:\tdockerd\nNSpid:\t900\t7\n")
    process(proc, 5000, "dockerd", 90_000)
    (proc / "5000/status").write_text("Name:\tdockerd\nNSpid:\t5000\n")
    assert read(proc).docker == after(90_000)


def test_the_process_table_of_a_container_is_unavailable(proc: Path) -> None:
    process(proc, 1, "python3", 900)
    assert error_of(proc).startswith(f"no kubelet and no container runtime in {proc}: they are stopped, or it is not")


def test_what_cannot_be_read_is_unavailable(proc: Path) -> None:
    for text in ("", "cpu 1 2\n", "btime soon\n", "btime \n", "btime 99999999999999999999\n"):
        (proc / "stat").write_text(text)
        assert error_of(proc) == f"cannot parse {proc}/stat: it has no time of the boot"
    (proc / "sys/kernel/random/boot_id").unlink()
    (proc / "stat").write_text("btime 1\n")
    assert error_of(proc) == f"cannot read {proc}/sys/kernel/random/boot_id: no such file or directory"
    assert error_of(proc / "none") == f"cannot read {proc}/none/stat: no such file or directory"


def test_a_process_that_ends_while_it_is_read_hides_no_other(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    for text in ("", "80 (kubelet", "80 (kubelet) S 1 2 3"):
        process(proc, 80, "sh", 31).write_text(text)
        assert read(proc).docker == after(20)


# Whether a runtime may be asked


def test_docker_may_be_asked_while_it_runs(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    table = ProcessTable(proc)
    table.require("docker")
    table.require("docker")
    end(proc, 70)
    process(proc, 80, "kubelet", 31)
    for other in ("kubelet", "containerd", "podman", "systemd"):
        process(proc, 81, other, 31)
        why = rf"docker does not run on this node \(no dockerd or dockerd-current in {proc}\), so it was not asked"
        with pytest.raises(SourceError, match=why):
            table.require("docker")
    process(proc, 72, "dockerd", 50)
    table.require("docker")
    assert table.read(complete=False).docker == after(50), "a runtime that is asked is known again"


def test_docker_may_not_be_asked_where_processes_cannot_be_seen(proc: Path) -> None:
    process(proc, 1, "python3", 900)
    with pytest.raises(SourceError, match=r"^docker was not asked, because it is unknown whether it runs: no kubelet "):
        ProcessTable(proc).require("docker")


# The runtime that the kubelet names


def test_the_runtime_is_what_the_kubelet_names(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    assert read(proc).runtime is None
    for words, runtime in (
        ([], ""),
        (["--container-runtime=remote"], ""),
        (["--network-plugin=kubenet"], "docker"),
        (["--container-runtime=remote", "--network-plugin=kubenet"], ""),
        (["--container-runtime-endpoint="], ""),
        (["--container-runtime-endpoint", "unix:///var/run/cri-dockerd-mke.sock"], "docker"),
        (["--container-runtime-endpoint=/run/crio/crio.sock"], "/run/crio/crio.sock"),
        (["--container-runtime-endpoint=/run/x\x1b.sock"], "/run/x\\x1b.sock"),
        (["--container-runtime=docker", "--container-runtime-endpoint=/run/kubelet-cri.sock"], "docker"),
    ):
        process(proc, 80, "kubelet", 31, "kubelet", *words)
        assert read(proc).runtime == runtime, words


def test_kubelets_dispute_which_one_is_the_runtime(proc: Path) -> None:
    for names, runtime, disputed in (
        (["", "/b.sock"], "/b.sock", False),
        (["docker", ""], "docker", False),
        (["/a.sock", "/b.sock"], "/a.sock", True),
        (["/run/a.sock", "unix:///var/run//a.sock"], "/run/a.sock", False),
        (["docker", "/b.sock"], "/b.sock", True),
        (["/b.sock", "docker"], "/b.sock", True),
    ):
        for pid, name in enumerate(names, 80):
            socket = "/run/dockershim.sock" if name == "docker" else name
            process(proc, pid, "kubelet", 31, "kubelet", f"--container-runtime-endpoint={socket}")
        found = read(proc)
        assert (found.runtime, found.runtime_disputed) == (runtime, disputed), names


def configured(proc: Path, text: str) -> str | None:
    """Return the runtime of a kubelet with a configuration file, below a root directory of its own."""
    process(proc, 80, "kubelet", 31, "kubelet", "--config=/etc/kubelet.yaml")
    (proc / "80/root/etc").mkdir(parents=True, exist_ok=True)
    (proc / "80/root/etc/kubelet.yaml").write_text(text)
    return read(proc).runtime


def test_a_configuration_file_names_the_runtime_if_the_command_line_does_not(proc: Path) -> None:
    for text, runtime in (
        ("containerRuntimeEndpoint: /a.sock\n", "/a.sock"),
        ("kind: X\ncontainerRuntimeEndpoint: '/a.sock' # ours", "/a.sock"),
        ('{"kind":"X","containerRuntimeEndpoint":"unix:///run/cri-dockerd.sock"}', "docker"),
        ('{\n  "kind": "X",\n  "containerRuntimeEndpoint": "/a.sock"\n}', "/a.sock"),
        ("kind: X\r\ncontainerRuntimeEndpoint: /a.sock\r\n", "/a.sock"),
        ("{kind: X,\n\n  containerRuntimeEndpoint: /a.sock}", "/a.sock"),
        ("# containerRuntimeEndpoint: /a.sock\n", ""),
        ("containerRuntimeEndpoint:\ncpuManagerPolicy: none\n", ""),
        ('containerRuntimeEndpoint: ""\n', ""),
    ):
        assert configured(proc, text) == runtime, text
    write_cmdline(proc, 80, "kubelet", "--config=/etc/kubelet.yaml", "--container-runtime-endpoint=/b.sock")
    assert read(proc).runtime == "/b.sock"
    os.mkfifo(proc / "80/root/fifo")
    for path in ("/none", "/etc", "/fifo"):
        write_cmdline(proc, 80, "kubelet", f"--config={path}")
        assert read(proc).runtime == ""


def test_any_configuration_file_is_read_in_a_moment_and_a_large_one_not_to_its_end(proc: Path) -> None:
    """Anyone can name a process kubelet and choose its file."""
    for part in ("\n", " ", "\r\n", " \n", "{", "{ ", ",\n", "containerRuntimeEndpoint "):
        assert configured(proc, part * (60_000 // len(part))) == "", "quadratic: minutes"
    assert configured(proc, "#\n" * 1024 * 1024 + "containerRuntimeEndpoint: /a.sock\n") == ""


def test_a_link_to_the_socket_is_followed(proc: Path) -> None:
    process(proc, 80, "kubelet", 31, "kubelet", "--container-runtime-endpoint=unix:///var/run//mine/cri.sock")
    assert read(proc).runtime == "/run/mine/cri.sock"
    (proc / "80/root/run/mine").mkdir(parents=True)
    link = proc / "80/root/run/mine/cri.sock"
    for target, endpoint in (
        ("/var/run/k3s/containerd.sock", "/run/k3s/containerd.sock"),
        ("../k3s/containerd.sock", "/run/k3s/containerd.sock"),
        ("cri-dockerd.sock", "docker"),
    ):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert read(proc).runtime == endpoint


# The kubelet's flags


def test_a_kubelet_flag_is_read_as_given_and_no_other_argument_is_kept(proc: Path) -> None:
    for words, flags in (
        (["--hostname-override=worker-1"], {"hostname-override": "worker-1"}),
        (["--v=2", "--hostname-override", "worker-1", "--v=2"], {"hostname-override": "worker-1"}),
        (["--hostname-override=a", "--hostname-override=worker-1"], {"hostname-override": "worker-1"}),
        (["--hostname-override="], {"hostname-override": ""}),
        (["--hostname-override"], {"hostname-override": ""}),
        (["--hostname-override=a\x1b[2J"], {"hostname-override": "a\\x1b[2J"}),
        (["--bootstrap-token=secret", "hostname-override=x", "--hostname-override-x=y"], {}),
    ):
        process(proc, 80, "kubelet", 31, "/usr/bin/kubelet", *words)
        table = ProcessTable(proc)
        table.read()
        assert table.kubelet_flags("hostname-override", "cloud-provider") == flags


def test_without_a_kubelet_or_its_command_line_there_are_no_flags(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    for pid, command in ((70, "dockerd"), (80, "kubelet"), (81, "kubelet")):
        process(proc, pid, command, 20)
        write_cmdline(proc, 81, "x" * (1 << 20)) if pid == 81 else None
        table = ProcessTable(proc)
        assert table.read().network_plugin is None
        with pytest.raises(SourceError, match=r"the kubelet.s flags are unknown"):
            table.kubelet_flags("cloud-provider")


def test_the_network_plugin_comes_from_the_flags_of_kubelet_or_cri_dockerd(proc: Path) -> None:
    for lines, plugin in (
        ([["--v=2", "--network-plugin=kubenet"]], "kubenet"),
        ([["--network-plugin", "cni", "--v=2"]], "cni"),
        ([["--network-plugin="]], ""),
        ([["--v=2", "network-plugin=kubenet", "--network-plugin-mtu=1500"]], ""),
        # Of several, kubenet counts: its directory must not look unused.
        ([["--network-plugin=cni"], ["--network-plugin=kubenet"]], "kubenet"),
        ([["--network-plugin=kubenet"], ["--network-plugin=cni"]], "kubenet"),
        ([["--network-plugin=kubenet"], ["--v=2"]], "kubenet"),
    ):
        for pid, command in ((80, "kubelet"), (81, "cri-dockerd")):
            process(proc, pid, command, 31, command, *(lines[pid - 80] if pid - 80 < len(lines) else []))
        assert read(proc).network_plugin == plugin, lines


# CNI plugins at work


def test_a_cni_plugin_at_work_is_told(proc: Path) -> None:
    process(proc, 80, "kubelet", 31)
    for pid, command, words in (
        (81, "bridge", ["/opt/cni/bin/bridge"]),
        (82, "own-ipam-plugin", ["/bin/sh", "/opt/cni/bin/own-ipam-plugin-of-ours"]),
        (83, "bridge", ["bridge", "monitor"]),
        (84, "other", ["/usr/bin/other"]),
        (85, "bridge", ["/app/bridge"]),
        (86, "python3", ["python3", "/srv/own-ipam-plugin-of-ours"]),
        (87, "acme", ["/usr/bin/python3", "/opt/cni/bin/acme"]),
        (88, "install", ["/opt/cni/bin/install", "--now"]),
    ):
        process(proc, pid, command, 40, *words)
    (proc / "85/status").write_text("NSpid:\t85\t1\n")  # a pod's own
    plugins = ProcessTable(proc).read(plugins=["own-ipam-plugin-of-ours"]).plugins
    assert plugins == (
        PluginProcess(81, "bridge", after(40)),
        PluginProcess(82, "own-ipam-plugin-of-ours", after(40)),
        PluginProcess(86, "own-ipam-plugin-of-ours", after(40)),
        PluginProcess(87, "acme", after(40)),
    ), "by its name, or because it is where plugins are, whatever the configuration says by now"


def test_a_plugin_whose_command_line_cannot_be_read_counts(proc: Path) -> None:
    process(proc, 80, "kubelet", 31)
    process(proc, 81, "host-local", 40)
    assert [plugin.pid for plugin in ProcessTable(proc).read().plugins] == [81]


def test_a_plugin_that_has_ended_is_not_at_work(proc: Path) -> None:
    process(proc, 80, "kubelet", 31)
    stat = process(proc, 81, "bridge", 40)
    stat.write_text(stat.read_text().replace(" S ", " Z ", 1))
    assert ProcessTable(proc).read().plugins == ()
