"""When the daemons of the node started: from copies of a process table, and from the real one."""

import os
import time
import timeit
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from agent.model.snapshot import PluginProcess, ProcessStartTimes
from agent.sources.host.kubelet_runtime import named_runtime
from agent.sources.host.processes import ProcessTable
from agent.sources.source_error import SourceError
from tests.wire import needs, run

BOOTED = datetime(2026, 3, 26, 12, 0, tzinfo=UTC)
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "stat").write_text(f"cpu 1 2 3\nbtime {int(BOOTED.timestamp())}\nprocesses 9\n")
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("b-1\n")
    return tmp_path


def process(proc: Path, pid: int, command: str, seconds: int) -> Path:
    """Write a process that started so many seconds after boot."""
    (proc / str(pid)).mkdir(exist_ok=True)
    fields = ["S", *["0"] * 18, str(seconds * TICKS), *["0"] * 30]
    stat = proc / str(pid) / "stat"
    stat.write_text(f"{pid} ({command}) {' '.join(fields)}\n")
    return stat


def write_cmdline(proc: Path, pid: int, *arguments: str) -> None:
    (proc / str(pid) / "cmdline").write_text("".join(f"{argument}\0" for argument in arguments))


def end(proc: Path, pid: int) -> None:
    (proc / str(pid) / "stat").unlink()
    (proc / str(pid)).rmdir()


def after(seconds: int) -> datetime:
    return BOOTED + timedelta(seconds=seconds)


def error_of(table: ProcessTable) -> str:
    with pytest.raises(SourceError) as raised:
        table.read()
    return str(raised.value)


def test_boot_kubelet_and_docker_start_times_are_read(proc: Path) -> None:
    process(proc, 1, "systemd", 0)
    process(proc, 70, "dockerd", 20)
    process(proc, 80, "kubelet", 31)
    assert ProcessTable(proc).read() == ProcessStartTimes(BOOTED, "b-1", after(31), after(20))


def test_a_daemon_that_is_not_running_has_no_start_time(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    assert ProcessTable(proc).read() == ProcessStartTimes(BOOTED, "b-1", None, after(20))


@pytest.mark.parametrize("command", ["kube let)", "(sd-pam)", ") S 1 1 (", "a\nb", "kubelet) S 0 (x", "tmux: server"])
def test_other_process_names_are_ignored(proc: Path, command: str) -> None:
    process(proc, 5, command, 1)
    process(proc, 80, "kubelet", 31)
    assert ProcessTable(proc).read().kubelet == after(31)


def test_a_restarted_kubelet_is_detected(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    process(proc, 80, "kubelet", 31)
    table = ProcessTable(proc)
    table.read()
    end(proc, 80)
    process(proc, 95, "kubelet", 500)
    assert table.read() == ProcessStartTimes(BOOTED, "b-1", after(500), after(20))


def test_a_restarted_kubelet_with_the_same_pid_is_detected(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    process(proc, 80, "kubelet", 31)
    table = ProcessTable(proc)
    table.read()
    process(proc, 80, "kubelet", 500)
    assert table.read().kubelet == after(500)


def test_a_zombie_kubelet_does_not_hide_the_next(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    stat = process(proc, 80, "kubelet", 31)
    stat.write_text(stat.read_text().replace(" S ", " Z ", 1))
    assert ProcessTable(proc).read().kubelet is None
    process(proc, 90, "kubelet", 400)
    assert ProcessTable(proc).read().kubelet == after(400)


def test_stopped_and_started_daemons_are_detected(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    process(proc, 80, "kubelet", 31)
    table = ProcessTable(proc)
    table.read()
    end(proc, 80)
    assert table.read().kubelet is None
    process(proc, 90, "kubelet", 60)
    assert table.read().kubelet == after(60)


def test_known_daemons_are_cached_and_others_are_not_read_again(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    process(proc, 80, "kubelet", 31)
    table = ProcessTable(proc)
    table.read()
    process(proc, 95, "kubelet", 900)  # it would be seen if all were read again
    assert table.read(complete=False).kubelet == after(31)
    assert table.read().kubelet == after(900)


# A kubelet or a docker by another name, and more than one of a kind


@pytest.mark.parametrize("command", ["kubelet", "k3s-server", "k3s-agent", "kubelite"])
def test_a_kubelet_inside_another_program_is_a_kubelet(proc: Path, command: str) -> None:
    process(proc, 80, command, 31)
    assert ProcessTable(proc).read().kubelet == after(31)


@pytest.mark.parametrize(("component", "start"), [("kubelet", after(31)), ("apiserver", None)])
def test_hyperkube_is_the_component_that_it_was_started_as(proc: Path, component: str, start: datetime | None) -> None:
    process(proc, 70, "dockerd", 20)
    process(proc, 80, "hyperkube", 31)
    write_cmdline(proc, 80, "/hyperkube", component, "--v=2", "kubelet")
    assert ProcessTable(proc).read().kubelet == start


@pytest.mark.parametrize("command", ["dockerd", "dockerd-current"])
def test_a_docker_daemon_is_docker(proc: Path, command: str) -> None:
    process(proc, 70, command, 20)
    assert ProcessTable(proc).read().docker == after(20)


def test_cri_dockerd_has_a_start_of_its_own(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    process(proc, 81, "cri-dockerd", 33)
    found = ProcessTable(proc).read()
    assert (found.docker, found.cri_dockerd, found.kubelet) == (after(20), after(33), None)


@pytest.mark.parametrize("pids", [(70, 900), (900, 70)])
def test_an_older_process_of_the_same_name_does_not_hide_a_restart(proc: Path, pids: tuple[int, int]) -> None:
    for kind, offset in (("dockerd", 0), ("kubelet", 1)):
        process(proc, pids[0] + offset, kind, 20)
        process(proc, pids[1] + offset, kind, 90_000)
    found = ProcessTable(proc).read()
    assert (found.docker, found.kubelet) == (after(90_000), after(90_000))


def test_a_kubelet_that_its_wrapper_starts_again_is_found_where_it_matters(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    process(proc, 80, "kubelet", 25)
    table = ProcessTable(proc)
    table.read()  # while only the wrapper runs
    process(proc, 81, "kubelet", 90_000)
    assert table.read(complete=True).kubelet == after(90_000)


def test_the_flags_are_those_of_the_youngest_kubelet(proc: Path) -> None:
    for pid, name in ((80, "wrapper"), (81, "worker-1")):
        process(proc, pid, "kubelet", pid)
        write_cmdline(proc, pid, "kubelet", f"--hostname-override={name}")
    table = ProcessTable(proc)
    table.read()
    assert table.kubelet_flags("hostname-override") == {"hostname-override": "worker-1"}


# Whether docker may be asked


def why_not_docker(proc: Path) -> str:
    with pytest.raises(SourceError) as raised:
        ProcessTable(proc).require("docker")
    return str(raised.value)


def test_docker_may_be_asked_while_it_runs(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    table = ProcessTable(proc)
    table.require("docker")
    table.require("docker")
    end(proc, 70)
    process(proc, 80, "kubelet", 31)
    with pytest.raises(SourceError, match="docker does not run"):
        table.require("docker")


@pytest.mark.parametrize("other", ["kubelet", "containerd", "podman", "systemd"])
def test_docker_may_not_be_asked_where_it_does_not_run(proc: Path, other: str) -> None:
    process(proc, 80, "kubelet", 31)
    process(proc, 81, other, 31)
    assert why_not_docker(proc) == (
        f"docker does not run on this node (no dockerd or dockerd-current in {proc}), so it was not asked"
    )


def test_docker_may_not_be_asked_where_processes_cannot_be_seen(proc: Path) -> None:
    process(proc, 1, "python3", 900)
    assert why_not_docker(proc).startswith("docker was not asked, because it is unknown whether it runs: no kubelet ")


# The runtime that the kubelet names


@pytest.mark.parametrize(
    ("lines", "runtime"),
    [
        ([], None),
        ([["kubelet"]], ""),
        ([["kubelet", "--container-runtime=remote"]], ""),
        ([["kubelet", "--network-plugin=kubenet"]], "docker"),
        ([["kubelet", "--container-runtime=remote", "--network-plugin=kubenet"]], ""),
        ([["kubelet", "--container-runtime-endpoint="]], ""),
        ([["kubelet", "--container-runtime-endpoint", "unix:///var/run/cri-dockerd-mke.sock"]], "docker"),
        ([["kubelet", "--container-runtime-endpoint=/run/crio/crio.sock"]], "/run/crio/crio.sock"),
        ([["kubelet", "--container-runtime-endpoint=/run/x\x1b.sock"]], "/run/x\\x1b.sock"),
        ([["sh", "/usr/bin/kubelet"], ["kubelet", "--container-runtime=docker"]], "docker"),
        ([["kubelet", "--container-runtime=docker"], ["kubelet", "--container-runtime-endpoint=/b.sock"]], "/b.sock"),
        ([["kubelet", "--container-runtime=docker", "--container-runtime-endpoint=/run/kubelet-cri.sock"]], "docker"),
    ],
)
def test_the_runtime_is_what_the_kubelet_names(proc: Path, lines: list[list[str]], runtime: str | None) -> None:
    process(proc, 70, "dockerd", 20)
    for pid, words in enumerate(lines, 80):
        process(proc, pid, "kubelet", 31)
        write_cmdline(proc, pid, *words)
    assert ProcessTable(proc).read().runtime == runtime


@pytest.mark.parametrize(
    ("names", "disputed"),
    [
        (["", "/b.sock"], False),
        (["docker"], False),
        (["/a.sock", "/b.sock"], True),
        (["/run/a.sock", "unix:///var/run//a.sock", ""], False),
        (["docker", "/b.sock"], True),
        (["/b.sock", "docker", ""], True),
    ],
)
def test_kubelets_dispute_which_one_is_the_runtime(proc: Path, names: list[str], disputed: bool) -> None:
    for pid, name in enumerate(names, 80):
        process(proc, pid, "kubelet", 31)
        socket = "/run/dockershim.sock" if name == "docker" else name
        write_cmdline(proc, pid, "kubelet", f"--container-runtime-endpoint={socket}")
    assert ProcessTable(proc).read().runtime_disputed is disputed


@pytest.mark.parametrize(
    ("text", "runtime"),
    [
        ("containerRuntimeEndpoint: /a.sock\n", "/a.sock"),
        ("kind: X\ncontainerRuntimeEndpoint: '/a.sock' # ours", "/a.sock"),
        ('{"kind":"X","containerRuntimeEndpoint":"unix:///run/cri-dockerd.sock"}', "docker"),
        ('{\n  "kind": "X",\n  "containerRuntimeEndpoint": "/a.sock"\n}', "/a.sock"),
        ("kind: X\r\ncontainerRuntimeEndpoint: /a.sock\r\n", "/a.sock"),
        ("{kind: X,\n\n  containerRuntimeEndpoint: /a.sock}", "/a.sock"),
        ("# containerRuntimeEndpoint: /a.sock\n", ""),
        ("containerRuntimeEndpoint:\ncpuManagerPolicy: none\n", ""),
        ('containerRuntimeEndpoint: ""\n', ""),
        (None, ""),
    ],
)
def test_a_configuration_file_names_the_runtime_if_the_command_line_does_not(
    proc: Path, text: str | None, runtime: str
) -> None:
    process(proc, 80, "kubelet", 31)
    write_cmdline(proc, 80, "kubelet", "--config=/etc/kubelet.yaml")
    (proc / "80/root/etc").mkdir(parents=True)
    if text is not None:
        (proc / "80/root/etc/kubelet.yaml").write_text(text)
    assert ProcessTable(proc).read().runtime == runtime
    write_cmdline(proc, 80, "kubelet", "--config=/etc/kubelet.yaml", "--container-runtime-endpoint=/b.sock")
    assert ProcessTable(proc).read().runtime == "/b.sock"


def test_a_configuration_that_is_no_file_is_not_opened(proc: Path) -> None:
    process(proc, 80, "kubelet", 31)
    write_cmdline(proc, 80, "kubelet", "--config=/fifo")
    (proc / "80/root").mkdir()
    os.mkfifo(proc / "80/root/fifo")
    assert ProcessTable(proc).read().runtime == ""


def test_a_link_to_the_socket_is_followed(proc: Path) -> None:
    process(proc, 80, "kubelet", 31)
    write_cmdline(proc, 80, "kubelet", "--container-runtime-endpoint=unix:///var/run//mine/cri.sock")
    assert ProcessTable(proc).read().runtime == "/run/mine/cri.sock"
    (proc / "80/root/run/mine").mkdir(parents=True)
    link = proc / "80/root/run/mine/cri.sock"
    for target, endpoint in (
        ("/var/run/k3s/containerd.sock", "/run/k3s/containerd.sock"),
        ("../k3s/containerd.sock", "/run/k3s/containerd.sock"),
        ("cri-dockerd.sock", "docker"),
    ):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert ProcessTable(proc).read().runtime == endpoint


def test_the_link_that_is_the_root_directory_itself_names_no_runtime(proc: Path) -> None:
    process(proc, 80, "kubelet", 31)
    write_cmdline(proc, 80, "kubelet")
    (proc / "80/root").symlink_to("/")
    assert ProcessTable(proc).read().runtime == ""


def seconds_to_search(root: Path, text: str) -> float:
    """Return the shortest CPU time of several measurements, because other processes can only lengthen one."""
    (root / "kubelet.yaml").write_text(text)
    search = partial(named_runtime, ["--config=/kubelet.yaml"], root)
    return min(timeit.repeat(search, timer=time.thread_time, number=1, repeat=20))


@pytest.mark.parametrize("part", ["\n", " ", "\r\n", " \n", "{", "{ ", ",\n", "containerRuntimeEndpoint: "], ids=repr)
def test_no_configuration_file_takes_more_than_linear_time(tmp_path: Path, part: str) -> None:
    small, large = (part * (size // len(part)) for size in (2048, 32 * 1024))
    # 16 times as long: linear is at most 16, quadratic 256.
    assert seconds_to_search(tmp_path, large) < 64 * seconds_to_search(tmp_path, small)


def test_a_large_configuration_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    field = "containerRuntimeEndpoint: /a.sock\n"
    (tmp_path / "kubelet.yaml").write_text("#\n" * 16 * 1024 + field)
    assert named_runtime(["--config=/kubelet.yaml"], tmp_path) == "/a.sock"
    (tmp_path / "kubelet.yaml").write_text("#\n" * 512 * 1024 + field)
    assert named_runtime(["--config=/kubelet.yaml"], tmp_path) == ""


@pytest.mark.parametrize("runtime", ["containerd", "crio"])
def test_another_runtime_is_detected(proc: Path, runtime: str) -> None:
    process(proc, 7, runtime, 3)
    found = ProcessTable(proc).read()
    started = {"containerd": found.start_of("containerd"), "crio": found.start_of("cri-o")}
    assert {name: start for name, start in started.items() if start} == {runtime: after(3)}
    assert (found.booted, found.kubelet, found.docker) == (BOOTED, None, None)


def test_the_process_table_of_a_container_is_unavailable(proc: Path) -> None:
    process(proc, 1, "python3", 900)
    assert error_of(ProcessTable(proc)) == (
        f"no kubelet and no container runtime in {proc}: they are stopped, or it is not the host's (set hostPID: true, "
        "or check --proc)"
    )


def test_an_unreadable_file_is_named_in_the_error(proc: Path) -> None:
    (proc / "sys/kernel/random/boot_id").unlink()
    assert error_of(ProcessTable(proc)) == f"cannot read {proc}/sys/kernel/random/boot_id: no such file or directory"
    assert error_of(ProcessTable(proc / "none")) == f"cannot read {proc}/none/stat: no such file or directory"


@pytest.mark.parametrize("text", ["", "cpu 1 2\n", "btime soon\n", "btime \n"])
def test_without_a_boot_time_processes_are_unavailable(proc: Path, text: str) -> None:
    (proc / "stat").write_text(text)
    assert error_of(ProcessTable(proc)).startswith(f"cannot parse {proc}: ")


@pytest.mark.parametrize("text", ["", "80 (kubelet", "80 (kubelet) S 1 2 3"])
def test_a_process_that_ends_while_it_is_read_hides_no_other(proc: Path, text: str) -> None:
    process(proc, 70, "dockerd", 20)
    process(proc, 80, "sh", 31).write_text(text)
    assert ProcessTable(proc).read().docker == after(20)


def test_the_real_process_table_has_the_real_boot_time() -> None:
    own = str(Path("/proc/self/ns/pid").stat().st_ino)  # nodes of hack/cluster have others
    table = [line.split() for line in run("ps", "-e", "-o", "pidns=,comm=").splitlines()]
    needs([own, "dockerd"] in table or [own, "kubelet"] in table, "a docker engine or a kubelet on this machine")
    processes = ProcessTable(Path("/proc")).read()
    assert processes.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for started in (processes.kubelet, processes.docker):
        assert started is None or started >= processes.booted


def test_a_docker_in_a_container_does_not_hide_a_restart_of_the_nodes_docker(proc: Path) -> None:
    process(proc, 80, "kubelet", 31)
    process(proc, 900, "dockerd", 100)
    (proc / "900/status").write_text("Name:\tdockerd\nNSpid:\t900\t7\n")
    process(proc, 5000, "dockerd", 90_000)
    (proc / "5000/status").write_text("Name:\tdockerd\nNSpid:\t5000\n")
    assert ProcessTable(proc).read().docker == after(90_000)


# The kubelet's flags


def flags_of(proc: Path, *arguments: str) -> dict[str, str]:
    process(proc, 70, "dockerd", 20)
    process(proc, 80, "kubelet", 31)
    (proc / "80/cmdline").write_bytes(
        "".join(f"{argument}\0" for argument in ("/usr/bin/kubelet", *arguments)).encode()
    )
    table = ProcessTable(proc)
    table.read()
    return dict(table.kubelet_flags("hostname-override", "cloud-provider"))


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--hostname-override=worker-1"], "worker-1"),
        (["--v=2", "--hostname-override", "worker-1", "--v=2"], "worker-1"),
        (["--hostname-override=a", "--hostname-override=worker-1"], "worker-1"),
        (["--hostname-override="], ""),
        (["--hostname-override"], ""),
        (["--hostname-override=a\x1b[2J"], "a\\x1b[2J"),
    ],
)
def test_a_kubelet_flag_is_read_as_given(proc: Path, arguments: list[str], value: str) -> None:
    assert flags_of(proc, *arguments) == {"hostname-override": value}


@pytest.mark.parametrize(
    "arguments", [[], ["--bootstrap-token=secret", "hostname-override=x", "--hostname-override-x=y"]]
)
def test_no_other_argument_of_the_command_line_is_stored(proc: Path, arguments: list[str]) -> None:
    assert flags_of(proc, *arguments) == {}


def test_without_a_kubelet_there_are_no_flags(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    table = ProcessTable(proc)
    table.read()
    with pytest.raises(SourceError, match="no kubelet in"):
        table.kubelet_flags("cloud-provider")
    process(proc, 80, "kubelet", 31)
    table.read()
    with pytest.raises(SourceError, match=r"80/cmdline: the kubelet.s flags are unknown"):
        table.kubelet_flags("cloud-provider")


@pytest.mark.parametrize(
    ("arguments", "plugin"),
    [
        (["--v=2", "--network-plugin=kubenet"], "kubenet"),
        (["--network-plugin", "cni", "--v=2"], "cni"),
        (["--network-plugin="], ""),
        (["--network-plugin"], ""),
        (["--v=2", "network-plugin=kubenet", "--network-plugin-mtu=1500"], ""),
    ],
)
def test_the_network_plugin_comes_from_the_kubelet_flag(proc: Path, arguments: list[str], plugin: str) -> None:
    process(proc, 80, "kubelet", 31)
    write_cmdline(proc, 80, "/usr/bin/kubelet", *arguments)
    assert ProcessTable(proc).read().network_plugin == plugin


def test_the_network_plugin_may_be_a_flag_of_cri_dockerd(proc: Path) -> None:
    for pid, command in ((80, "kubelet"), (81, "cri-dockerd")):
        process(proc, pid, command, 31)
        write_cmdline(proc, pid, command, *(["--network-plugin=kubenet"] if pid == 81 else []))
    assert ProcessTable(proc).read().network_plugin == "kubenet"


@pytest.mark.parametrize("lines", [[["cni"], ["kubenet"]], [["kubenet"], ["cni"]], [["kubenet"], []]])
def test_of_several_network_plugins_kubenet_counts(proc: Path, lines: list[list[str]]) -> None:
    """It is the one whose directory must not look unused."""
    for pid, plugins in enumerate(lines, 80):
        process(proc, pid, "kubelet", 31)
        write_cmdline(proc, pid, *(f"--network-plugin={plugin}" for plugin in plugins))
    assert ProcessTable(proc).read().network_plugin == "kubenet"


def test_without_a_kubelet_the_network_plugin_is_unknown(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    assert ProcessTable(proc).read().network_plugin is None
    process(proc, 80, "kubelet", 31)
    write_cmdline(proc, 80)  # it is ending
    assert ProcessTable(proc).read().network_plugin is None


def test_a_second_runtime_that_ended_is_looked_for_until_it_returns(proc: Path) -> None:
    for pid, command in ((70, "containerd"), (71, "dockerd"), (80, "kubelet")):
        process(proc, pid, command, 20)
    table = ProcessTable(proc)
    assert table.read().docker == after(20)
    end(proc, 71)
    assert table.read(complete=False).docker is None
    process(proc, 72, "dockerd", 50)
    assert table.read(complete=False).docker == after(50)


def test_a_second_runtime_that_does_not_return_is_no_longer_looked_for(proc: Path) -> None:
    for pid, command in ((70, "containerd"), (71, "crio"), (80, "kubelet")):
        process(proc, pid, command, 20)
    table = ProcessTable(proc)
    table.read()
    end(proc, 71)
    for _ in range(41):
        table.read(complete=False)
    process(proc, 95, "kubelet", 900)  # it would be seen if all were read again
    assert table.read(complete=False).kubelet == after(20)
    end(proc, 95)
    process(proc, 72, "crio", 50)
    assert table.read().crio == after(50)


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
        process(proc, pid, command, 40)
        write_cmdline(proc, pid, *words)
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
