"""The daemons of the node: when they started, with which flags, and which runtime the kubelet names."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.model.snapshot import PluginProcess, ProcessStartTimes
from agent.sources.host.processes import ProcessTable
from agent.sources.source_error import SourceError
from tests.wire import error_of
from tests.wired import process_table

BOOTED = datetime.fromtimestamp(1_700_000_000, UTC)
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return process_table(tmp_path)


def process(proc: Path, pid: int, command: str, seconds: int, *words: str) -> Path:
    """Write a process that started so many seconds after boot, without words one whose command line is unreadable."""
    stat = proc / f"{pid}/stat"
    stat.parent.mkdir(exist_ok=True)
    fields = ["S", *["0"] * 18, str(seconds * TICKS), *["0"] * 30]
    stat.write_text(f"{pid} ({command}) {' '.join(fields)}\n")
    if words:
        (proc / f"{pid}/cmdline").write_text("".join(f"{word}\0" for word in words))
    return stat


def after(seconds: int) -> datetime:
    return BOOTED + timedelta(seconds=seconds)


def read(proc: Path) -> ProcessStartTimes:
    return ProcessTable(proc).read()


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


def test_the_runtime_is_what_the_kubelets_name(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    assert read(proc).runtime is None
    endpoint = "--container-runtime-endpoint"
    for kubelets, runtime, disputed in (
        ([[]], "", False),
        ([["--container-runtime=remote"]], "", False),
        ([["--network-plugin=kubenet"]], "docker", False),
        ([["--container-runtime=remote", "--network-plugin=kubenet"]], "", False),
        ([["--network-plugin=kubenet", f"{endpoint}=/run/mine.sock"]], "/run/mine.sock", False),
        ([[f"{endpoint}="]], "", False),
        ([[endpoint, "unix:///var/run/cri-dockerd-mke.sock"]], "docker", False),
        ([[f"{endpoint}=/run/crio/crio.sock"]], "/run/crio/crio.sock", False),
        ([[f"{endpoint}=/run/x\x1b.sock"]], "/run/x\\x1b.sock", False),
        ([["--container-runtime=docker", f"{endpoint}=/run/kubelet-cri.sock"]], "docker", False),
        ([[f"{endpoint}="], [f"{endpoint}=/b.sock"]], "/b.sock", False),
        ([[f"{endpoint}=/run/dockershim.sock"], []], "docker", False),
        (
            [[f"{endpoint}=/run/a.sock"], [f"{endpoint}=unix:///var/run//a.sock"]],
            "/run/a.sock",
            False,
        ),
        ([[f"{endpoint}=/a.sock"], [f"{endpoint}=/b.sock"]], "/a.sock", True),
        ([[f"{endpoint}=/run/dockershim.sock"], [f"{endpoint}=/b.sock"]], "/b.sock", True),
        ([[f"{endpoint}=/b.sock"], [f"{endpoint}=/run/dockershim.sock"]], "/b.sock", True),
    ):
        for pid, words in enumerate(kubelets, 80):
            process(proc, pid, "kubelet", 31, "kubelet", *words)
        found = read(proc)
        assert (found.runtime, found.runtime_disputed) == (runtime, disputed), kubelets


def test_a_configuration_file_names_the_runtime_if_the_command_line_does_not_and_links_are_followed(
    proc: Path,
) -> None:
    """Anyone can name a process kubelet and choose its file, which is below the root directory of the process."""
    process(proc, 80, "kubelet", 31, "kubelet", "--config=/etc/kubelet.yaml")
    (proc / "80/root/etc").mkdir(parents=True)
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
        ("#\n" * 1024 * 1024 + "containerRuntimeEndpoint: /a.sock\n", ""),  # too large
        # To search these would take minutes if the time were quadratic.
        *(
            (part * (60_000 // len(part)), "")
            for part in ("\n", " ", "\r\n", " \n", "{", "{ ", ",\n")
        ),
        ("containerRuntimeEndpoint " * 2400, ""),
    ):
        (proc / "80/root/etc/kubelet.yaml").write_text(text)
        assert read(proc).runtime == runtime, text[:80]
    os.mkfifo(proc / "80/root/fifo")
    (proc / "80/root/etc/kubelet.yaml").write_text("containerRuntimeEndpoint: /a.sock\n")
    for words, runtime in (
        (["--config=/etc/kubelet.yaml", "--container-runtime-endpoint=/b.sock"], "/b.sock"),
        (["--config=/none"], ""),
        (["--config=/etc"], ""),
        (["--config=/fifo"], ""),
    ):
        process(proc, 80, "kubelet", 31, "kubelet", *words)
        assert read(proc).runtime == runtime
    process(
        proc,
        80,
        "kubelet",
        31,
        "kubelet",
        "--container-runtime-endpoint=unix:///var/run//mine/cri.sock",
    )
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


def test_drop_ins_are_merged_over_the_configuration_file_in_their_order(proc: Path) -> None:
    """As `mergeKubeletConfigurations` of cmd/kubelet/app/server.go does."""
    etc = proc / "80/root/etc"
    drop_ins = etc / "kubelet.conf.d"
    (drop_ins / "50-more").mkdir(parents=True)
    (etc / "kubelet.yaml").write_text("containerRuntimeEndpoint: /base.sock\n")
    (etc / "elsewhere").mkdir()
    (etc / "elsewhere/99-last.conf").write_text("containerRuntimeEndpoint: /elsewhere.sock\n")
    process(
        proc,
        80,
        "kubelet",
        31,
        "kubelet",
        "--config=/etc/kubelet.yaml",
        "--config-dir",
        "/etc/kubelet.conf.d",
    )
    named = "containerRuntimeEndpoint: unix://{}\n"
    for name, text, runtime in (
        ("README", named.format("/readme.sock"), "/base.sock"),
        ("10-other.conf.bak", named.format("/backup.sock"), "/base.sock"),
        ("10-other.conf", "maxPods: 20\n", "/base.sock"),
        ("20-crio.conf", named.format("/crio.sock"), "/crio.sock"),
        ("15-earlier.conf", named.format("/earlier.sock"), "/crio.sock"),
        ("50-more/a.conf", named.format("/below.sock"), "/below.sock"),
        ("60-reset.conf", 'containerRuntimeEndpoint: ""\n', ""),
        ("61-null.conf", '{"kind": "X", "containerRuntimeEndpoint": null}', ""),
        ("9-last.conf", named.format("/run/cri-dockerd.sock"), "docker"),
    ):  # fmt: skip
        (drop_ins / name).write_text(text)
        assert read(proc).runtime == runtime, name
    (drop_ins / "99-link").symlink_to("../elsewhere")
    assert read(proc).runtime == "docker", "links to directories are not walked"
    (drop_ins / "99-link.conf").symlink_to("../elsewhere/99-last.conf")
    assert read(proc).runtime == "/elsewhere.sock", "links to files are read"
    for words, runtime in (
        (["--config-dir=/etc/kubelet.conf.d"], "/elsewhere.sock"),
        (["--config_dir=/etc/kubelet.conf.d"], "/elsewhere.sock"),
        (["--config-dir=/etc/kubelet.conf.d", "--container-runtime-endpoint=/b.sock"], "/b.sock"),
        (["--config-dir=/etc/kubelet.conf.d", "--container_runtime_endpoint=/b.sock"], "/b.sock"),
        (["--config=/etc/kubelet.yaml", "--config-dir="], "/base.sock"),
        (["--config=/etc/kubelet.yaml", "--config-dir=/etc/kubelet.conf.d/99-link"], "/base.sock"),
    ):
        process(proc, 80, "kubelet", 31, "kubelet", *words)
        assert read(proc).runtime == runtime, words
    (proc / "80/cwd").symlink_to("root/etc")
    process(proc, 80, "kubelet", 31, "kubelet", "--config-dir=kubelet.conf.d")
    assert read(proc).runtime == "/elsewhere.sock", "of the kubelet's working directory"


def test_with_a_drop_in_that_cannot_be_read_the_files_before_it_name_nothing(proc: Path) -> None:
    drop_ins = proc / "80/root/d"
    drop_ins.mkdir(parents=True)
    (proc / "80/root/base.yaml").write_text("containerRuntimeEndpoint: /base.sock\n")
    process(proc, 80, "kubelet", 31, "kubelet", "--config=/base.yaml", "--config-dir=/d")
    assert read(proc).runtime == "/base.sock"
    unreadable = drop_ins / "10-some.conf"
    for make in (
        lambda: unreadable.symlink_to("missing"),
        lambda: os.mkfifo(unreadable),
        lambda: unreadable.symlink_to("."),
        lambda: unreadable.write_bytes(b"#" * (1024 * 1024 + 1)),
    ):
        make()
        assert read(proc).runtime == ""
        unreadable.unlink()
    for number in range(65):
        (drop_ins / f"{number}.conf").write_text("maxPods: 20\n")
    assert read(proc).runtime == "", "too many to read"
    for number in range(65):
        (drop_ins / f"{number}.conf").unlink()
    (drop_ins / "a/b/c").mkdir(parents=True)
    assert read(proc).runtime == "/base.sock"
    (drop_ins / "a/b/c/d").mkdir()
    assert read(proc).runtime == "", "too deep"
    process(proc, 80, "kubelet", 31, "kubelet", "--config=/base.yaml", "--config-dir=/missing")
    assert read(proc).runtime == "", "it was removed since the kubelet read it"


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
