"""The files that hack/manifests renders: up to date, and the Job differs from the DaemonSet's pod as it has to."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from agent.cli.parser import parse_arguments
from tests.deploy.manifests import (
    DEPLOY,
    FILES,
    JOB,
    ROOT,
    Object,
    container,
    environment,
    mounts,
    of_kind,
    pod_spec,
    rendered,
    writable,
)
from tests.wire import needs

SCRIPT = ROOT / "hack" / "manifests"
OVERLAY = "overlays/cleanup-exec"
LABELS = {"app.kubernetes.io/name": "nodeleak", "app.kubernetes.io/component": "agent"}


def job() -> Object:
    (only,) = rendered(JOB)
    return only


def commands(name: str) -> str:
    """Return the commands that the head of a file shows."""
    lines = (DEPLOY / name).read_text().splitlines()
    return "\n".join(line.removeprefix("#   ") for line in lines if line.startswith("#   "))


def check_in(top: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(top / "hack" / "manifests"), "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (ours)


def test_the_files_are_up_to_date() -> None:
    needs(shutil.which("kubectl") is not None, "kubectl, to render deploy/")
    done = check_in(ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run hack/manifests again"


def test_the_check_names_a_file_that_is_out_of_date(tmp_path: Path) -> None:
    needs(shutil.which("kubectl") is not None, "kubectl, to render deploy/")
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    (tmp_path / "hack").mkdir()
    shutil.copy(SCRIPT, tmp_path / "hack" / "manifests")
    daemonset = tmp_path / "deploy/base/daemonset.yaml"
    daemonset.write_text(daemonset.read_text().replace("memory: 256Mi", "memory: 257Mi"))
    done = check_in(tmp_path)
    assert done.returncode == 1
    assert sorted(re.findall(r"/([a-z-]+\.yaml) is out of date", done.stderr)) == sorted(FILES)


@pytest.mark.parametrize(("name", "source"), [("install.yaml", "base"), ("install-cleanup.yaml", OVERLAY)])
def test_an_installation_is_its_kustomization(name: str, source: str) -> None:
    def by_name(objects: tuple[Object, ...]) -> dict[tuple[str, str], Object]:
        return {(one["kind"], one["metadata"]["name"]): one for one in objects if one["kind"] != "DaemonSet"}

    assert by_name(rendered(name)) == by_name(rendered(source))
    assert (environment(name), mounts(name)) == (environment(source), mounts(source))
    assert {**pod_spec(name), "containers": []} == {**pod_spec(source), "containers": []}


@pytest.mark.parametrize("name", ["install.yaml", "install-cleanup.yaml"])
def test_the_commands_of_an_installation_set_the_image(name: str) -> None:
    shown = commands(name).replace("| kubectl apply -f -", "")
    output = subprocess.run(["bash", "-euc", shown], cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603, S607
    (daemonset,) = [one for one in yaml.safe_load_all(output) if one["kind"] == "DaemonSet"]
    (agent,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert re.fullmatch(r"your\.registry/nodeleak:[0-9.]+", agent["image"])


# The Job


def test_the_job_cleans_once_and_is_not_repeated() -> None:
    spec = job()["spec"]
    assert (spec["backoffLimit"], pod_spec(JOB)["restartPolicy"]) == (0, "Never")
    assert spec.keys() >= {"activeDeadlineSeconds", "ttlSecondsAfterFinished"}
    assert container(JOB)["args"] == ["clean", "--apply", "--cleanup-network=auto"]
    assert parse_arguments(container(JOB)["args"]).apply


def test_the_job_sees_and_writes_what_the_overlay_does() -> None:
    assert mounts(JOB) == mounts(OVERLAY)
    assert writable(JOB) == {"/var/lib/nodeleak", "/var/lib/cni"}
    assert environment(JOB) == {
        name: value for name, value in environment(OVERLAY).items() if name != "NODELEAK_CLEANUP_NETWORK"
    }
    assert container(JOB)["securityContext"] == container(OVERLAY)["securityContext"]


def test_the_job_runs_beside_the_agent_on_its_node() -> None:
    """One address for both: hostNetwork. The agent has the port, the Job must not ask for it."""
    assert (pod_spec(JOB)["hostNetwork"], pod_spec(JOB)["hostPID"]) == (True, True)
    assert container(JOB).keys().isdisjoint({"ports", "livenessProbe", "readinessProbe"})
    assert pod_spec(JOB)["tolerations"] == [{"operator": "Exists"}]
    assert "priorityClassName" not in pod_spec(JOB)


def test_nothing_that_selects_the_agents_pods_finds_those_of_the_job() -> None:
    """The runbooks select by the name alone; the DaemonSet would adopt or delete a pod that it selects."""
    labels = job()["spec"]["template"]["metadata"]["labels"]
    (daemonset,) = of_kind("base", "DaemonSet")
    assert daemonset["spec"]["selector"]["matchLabels"] == LABELS
    assert not LABELS.items() & labels.items()


@pytest.mark.parametrize("mode", ["--dry-run", "--apply"])
def test_the_commands_of_the_job_fill_in_node_mode_and_image(mode: str) -> None:
    (fill,) = re.findall(r"^JOB=\$\((sed .*) \|\n +kubectl create -f - -o name\)$", commands(JOB), re.MULTILINE)
    given = f"NODE=worker-1 MODE={mode} IMAGE=your.registry/nodeleak:1\n{fill}"
    output = subprocess.run(["bash", "-euc", given], cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603, S607
    filled = yaml.safe_load(output)["spec"]["template"]["spec"]
    (only,) = filled["containers"]
    assert (filled["nodeName"], only["image"]) == ("worker-1", "your.registry/nodeleak:1")
    assert parse_arguments(only["args"]).apply == (mode == "--apply")


def test_runbooks_and_readme_show_the_commands_of_the_job() -> None:
    shown = re.sub(r" +#.*", "", commands(JOB)).splitlines()[2:]
    pages = [one for one in (*ROOT.glob("docs/runbooks/*.md"), DEPLOY / "README.md") if JOB in one.read_text()]
    assert len(pages) > 1
    for page in pages:
        lines = [line.strip() for line in page.read_text().splitlines()]
        assert [line for line in shown if line.strip() not in lines] == [], page


def test_the_api_server_refuses_a_job_without_a_node() -> None:
    """A node's name is lower-case."""
    assert not re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", pod_spec(JOB)["nodeName"])
