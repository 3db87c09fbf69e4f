"""The deployed agent on a real node: image, manifests, service account and limits."""

import json
import os
import shutil
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.deploy.manifests import ALL, rules

from .agent import BOLD
from .deployment import ROOT, TAGS, Deployment, build_image, get, metrics, since
from .node import NETWORK, STORE, Cluster, Pods, eventually, reservations, run, throughout, traces

pytestmark = pytest.mark.e2e

AWAY = 300 if "NODELEAK_E2E_SLOW" in os.environ else 20
"""Seconds during which the API server is stopped."""

STATE_DIR = Path("/var/lib/nodeleak")
HASTY = {"NODELEAK_GRACE": "0s", "NODELEAK_SETTLE": "0s", "NODELEAK_CONFIRM_AFTER": "0s", "NODELEAK_INTERVAL": "1s"}
MIB = 1 << 20


@pytest.fixture(scope="module")
def agent(whole_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The deployment, applied by each test as needed, deleted after the last one."""
    build_image()
    deployment = Deployment(whole_cluster, tmp_path_factory.mktemp("deploy"), docker=True)
    yield deployment
    deployment.delete()
    shutil.rmtree(STATE_DIR, ignore_errors=True)  # the journal of these tests is nobody's


UNKNOWN_KINDS = {"admission-policy", "prometheus-operator", "prometheus-service-monitor"}
"""Overlays with kinds that a 1.20 server does not have. Unit tests check them against their schemas."""


@pytest.mark.parametrize("name", [one for one in ALL if one.removeprefix("overlays/") not in UNKNOWN_KINDS])
def test_the_api_server_accepts_every_object(cluster: Cluster, name: str) -> None:
    cluster.kubectl("apply", "--dry-run=server", "-k", str(ROOT / "deploy" / name))


def test_on_a_full_node_it_starts_reports_and_frees_addresses(cluster: Cluster, pods: Pods, agent: Deployment) -> None:
    healthy = pods(1)
    leaked = cluster.reserve(124)
    with pytest.raises(AssertionError, match="no IP addresses available"):
        cluster.reserve(1)
    (waiting,) = pods.ask_for(1)

    pod = agent.apply("base")
    created = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    ready = since(pod, "Ready")
    assert ready is not None
    assert ready - created <= timedelta(seconds=10)
    assert agent.restarts() == 0
    assert set(metrics().by("source", "source_up").values()) == {1.0}

    seen = agent.run_json("scan", "--grace=0s")
    assert {one["ip"] for one in seen["reservations"] if one["state"] == "leaked"} == set(leaked)
    assert seen["networks"][0]["free"] == 0

    status = agent.run_json("status", codes=_UNTRUSTED)
    assert [(one["name"], one["usable"], one["free"]) for one in status["networks"]] == [("kubenet", 125, 0)]
    assert (status["cleanup"]["mode"], status["cleanup"]["release_possible"]) == ("off", False)
    assert any("read-only mount: to release, create a Job (" in why for why in status["cleanup"]["why_not"])

    before, journal = traces(STORE), agent.run_json("journal")["entries"]
    dry = agent.run_json("clean", "--dry-run", *BOLD, codes=[6])
    assert {one["by"] for one in dry["blockers"]} == {"no_cleanup_network", "network_unwritable"}
    assert {one["ip"] for one in dry["addresses"]} == set(leaked)
    eventually(lambda: _refuses_to_write(agent), 60)
    assert agent.run_json("journal")["entries"] == journal
    assert traces(STORE) == before

    agent.apply("overlays/cleanup-exec")
    throughout(lambda: _holds({*leaked, *healthy}), 2)
    cleanup = agent.run_json("status", codes=_UNTRUSTED)["cleanup"]
    assert cleanup["networks"] == ["kubenet"]
    assert [why for why in cleanup["why_not"] if "read-only" in why] == []
    eventually(lambda: _cleans(agent, leaked), 60)
    eventually(lambda: _runs(waiting, pods), 30)
    assert healthy.items() <= pods.running().items()
    memory = agent.memory()
    assert memory.limit == 256 * MIB
    assert memory.peak <= 130 * MIB


def test_the_account_has_exactly_the_rights_of_the_manifest(cluster: Cluster, agent: Deployment) -> None:
    agent.present()
    token = agent.execute("cat", "/var/run/secrets/kubernetes.io/serviceaccount/token").stdout
    asked = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
    output = run(
        *("kubectl", "--kubeconfig=/dev/null", "--server=https://127.0.0.1:6443", f"--token={token}"),
        f"--certificate-authority={cluster.admin.parent / 'pki/ca.crt'}",
        *("create", "-o", "json", "-f", "-"),
        text=json.dumps({**asked, "spec": {"namespace": "kube-system"}}),
    )
    status = json.loads(output.stdout)["status"]
    assert not status["incomplete"]
    may = {
        (group, resource, verb)
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    # Every authenticated account may review its own rights.
    everybody = {("authorization.k8s.io", f"selfsubject{what}reviews", "create") for what in ("access", "rules")}
    assert may == rules("base") | everybody


def test_after_a_kill_it_restarts_and_keeps_no_mount_that_the_node_unmounts(pods: Pods, agent: Deployment) -> None:
    agent.present()
    before = agent.restarts()
    mounted = Path("/run/nodeleak-e2e")
    mounted.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "nodeleak-e2e", mounted)
    try:
        os.kill(agent.process(), signal.SIGKILL)
        eventually(lambda: _restarted(agent, before), 60)
        assert "/host/run/nodeleak-e2e" in Path(f"/proc/{agent.process()}/mountinfo").read_text()
    finally:
        run("umount", mounted)
        mounted.rmdir()
    assert "/host/run/nodeleak-e2e" not in Path(f"/proc/{agent.process()}/mountinfo").read_text()
    assert pods(1)


def test_it_survives_api_server_and_docker_outages_and_an_upgrade(
    cluster: Cluster, pods: Pods, agent: Deployment
) -> None:
    owners = pods(1)
    leaked = cluster.reserve(2)
    agent.present()

    running = agent.process()
    with cluster.stopped("apiserver"):
        throughout(lambda: get("/healthz"), AWAY)
        assert metrics().up("containers") == 1
    assert agent.process() == running

    with cluster.stopped("docker"):
        pass
    eventually(agent.process, 60)
    agent.pod()
    pods.running()

    pod = agent.apply("base", TAGS[1])
    assert pod["spec"]["containers"][0]["image"].endswith(f":{TAGS[1]}")
    assert agent.execute("nodeleak", "--version").stdout.startswith("nodeleak ")

    def sees_all() -> None:
        assert set(metrics().by("source", "source_up").values()) == {1.0}
        seen = agent.run_json("scan", "--grace=0s")
        assert {one["ip"] for one in seen["reservations"] if one["state"] == "leaked"} >= set(leaked)

    eventually(sees_all, 30)
    assert set(leaked) <= reservations().keys()
    assert owners

    running = agent.process()
    with _drained(cluster):
        assert pods.now() == []
        eventually(sees_all, 30)
    assert agent.process() == running


def test_with_the_cleanup_overlay_it_releases_addresses(cluster: Cluster, pods: Pods, agent: Deployment) -> None:
    owners = pods(1)
    leaked = cluster.reserve(3)
    agent.apply("overlays/cleanup", **HASTY)
    eventually(lambda: _holds(owners), 30)
    entries = agent.run_json("journal")["entries"]
    assert {(ip, one["by"]) for one in entries for ip in one["addresses"]} >= {(ip, "run") for ip in leaked}
    assert metrics().get("mode_info", mode="clean") == 1


def test_a_job_releases_addresses_beside_the_read_only_agent(cluster: Cluster, pods: Pods, agent: Deployment) -> None:
    owners = pods(1)
    leaked = cluster.reserve(3)
    agent.apply("base", **HASTY)
    eventually(lambda: _counts_leaks(3), 30)
    running, restarts = agent.process(), agent.restarts()

    # While the kubelet creates and removes sandboxes without an address, the docker list is sometimes not trusted.
    eventually(lambda: _job_would_release(agent, leaked), 120)
    assert reservations().keys() == {*leaked, *owners}
    eventually(lambda: _job_leaves(agent, owners), 120)

    assert owners.items() <= pods.running().items()
    entries = agent.run_json("journal")["entries"]
    assert {(ip, one["by"]) for one in entries for ip in one["addresses"]} >= {(ip, "clean") for ip in leaked}
    assert (agent.process(), agent.restarts()) == (running, restarts)
    eventually(lambda: _counts_leaks(0), 30)


_UNTRUSTED = (0, 3)
"""Exit codes: on a full node, the docker list is sometimes not trusted."""


@contextmanager
def _drained(cluster: Cluster) -> Iterator[None]:
    try:
        cluster.kubectl("drain", cluster.node, "--ignore-daemonsets", "--force", "--grace-period=1", "--timeout=60s")
        yield
    finally:
        cluster.kubectl("uncordon", cluster.node)


def _refuses_to_write(agent: Deployment) -> None:
    # While the kubelet creates and removes sandboxes without an address, the docker list is sometimes not trusted.
    output = agent.execute("nodeleak", "clean", "--apply", "--cleanup-network=auto", *BOLD, codes=[4]).stdout
    (sentence,) = [line for line in output.splitlines() if "read-only" in line]
    assert "read-only mount: to release, create a Job (kubectl nodeleak clean-job, or deploy/" in sentence


def _cleans(agent: Deployment, leaked: list[str]) -> None:
    done = agent.run_json("clean", "--apply", *BOLD)
    assert {one["ip"] for one in done["addresses"] if one["verdict"] == "released"} >= set(leaked)


def _job_would_release(agent: Deployment, leaked: list[str]) -> None:
    output = agent.clean_once("--dry-run", **HASTY)
    listed = [line for line in output.splitlines() if "would release" in line]
    assert [sum(ip in line.split() for line in listed) for ip in leaked] == [1] * len(leaked), output


def _job_leaves(agent: Deployment, owners: Iterable[str]) -> None:
    output = agent.clean_once("--apply", **HASTY)
    assert reservations().keys() == set(owners), output


def _counts_leaks(count: int) -> None:
    assert metrics().get("reservations", network=NETWORK, state="leaked") == count


def _holds(ips: Iterable[str]) -> None:
    assert reservations().keys() == set(ips)


def _restarted(agent: Deployment, before: int) -> None:
    assert agent.restarts() > before


def _runs(name: str, pods: Pods) -> None:
    assert {pod["status"]["phase"] for pod in pods.now() if pod["metadata"]["name"] == name} == {"Running"}
