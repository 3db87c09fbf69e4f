"""Which runtime the kubelet names, by its command line and its configuration files."""

import os
from pathlib import Path

import pytest

from tests.sources.host.process_table import process, read
from tests.wired import process_table


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return process_table(tmp_path)


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
