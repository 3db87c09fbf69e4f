"""When the daemons of the node started: from copies of a process table, and from the real one."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.model.snapshot import ProcessStartTimes
from agent.sources.error import SourceError
from agent.sources.host.processes import ProcessTable
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
    process(proc, 5, "kubelet", 1)  # an older one that cannot be: it would be seen if all were read again
    assert table.read().kubelet == after(31)


@pytest.mark.parametrize("runtime", ["containerd", "crio", "k3s-server"])
def test_another_runtime_is_detected(proc: Path, runtime: str) -> None:
    process(proc, 7, runtime, 3)
    assert ProcessTable(proc).read() == ProcessStartTimes(BOOTED, "b-1", None, None)


def test_the_process_table_of_a_container_is_unavailable(proc: Path) -> None:
    process(proc, 1, "python3", 900)
    assert error_of(ProcessTable(proc)) == (
        f"no kubelet and no docker in {proc}: it is not the host's (set hostPID: true, or check --proc)"
    )  # fmt: skip


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
    table = run("ps", "-e", "-o", "comm=").split()
    needs("dockerd" in table or "kubelet" in table, "a docker engine or a kubelet on this machine")
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


def test_without_a_kubelet_the_network_plugin_is_unknown(proc: Path) -> None:
    process(proc, 70, "dockerd", 20)
    assert ProcessTable(proc).read().network_plugin is None
    process(proc, 80, "kubelet", 31)
    write_cmdline(proc, 80)  # it is ending
    assert ProcessTable(proc).read().network_plugin is None
