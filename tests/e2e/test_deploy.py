"""The deployed agent on a real node: image, manifests, service account and limits."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.manifests import ALL, rules

from .deployment import TAGS, Deployment, build_image
from .node import ROOT, STORE, Cluster, Pods, eventually, reservations, run, throughout, traces
from .nodeleak import BOLD, release

pytestmark = pytest.mark.e2e

UNKNOWN_KINDS = {
    "admission-policy",
    "openshift",
    "prometheus-operator",
    "prometheus-service-monitor",
}
"""Overlays with kinds that a 1.20 server does not have. Unit tests check them against their schemas."""
UNTRUSTED = (0, 3)  # Exit codes: on a full node, the docker list is sometimes not trusted


@pytest.fixture(scope="module")
def agent(whole_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The deployment, applied by each test as needed, deleted after the last one."""
    build_image()
    deployment = Deployment(whole_cluster, tmp_path_factory.mktemp("deploy"), docker=True)
    yield deployment
    deployment.delete()
    shutil.rmtree("/var/lib/nodeleak", ignore_errors=True)  # the journal of these tests is nobody's


def test_the_api_server_accepts_every_object(cluster: Cluster) -> None:
    for name in (name for name in ALL if name.removeprefix("overlays/") not in UNKNOWN_KINDS):
        cluster.kubectl("apply", "--dry-run=server", "-k", str(ROOT / "deploy" / name))


def test_on_a_full_node_it_starts_reports_and_frees_addresses(
    cluster: Cluster, pods: Pods, agent: Deployment
) -> None:
    healthy = pods(1)
    leaked = cluster.reserve(124)
    with pytest.raises(AssertionError, match="no IP addresses available"):
        cluster.reserve(1)
    (waiting,) = pods.ask_for(1)

    agent.apply("base")
    assert agent.restarts() == 0
    assert agent.sources_up() == {1.0}

    def seen() -> tuple[set[str], int]:
        report = agent.scan("--grace=0s")
        return report.having("leaked"), report.network["free"]

    # The list of docker is sometimes not trusted on such a node.
    eventually(seen, equal=(set(leaked), 0))
    status = agent.run_json("status", codes=UNTRUSTED)
    assert [(found["name"], found["usable"], found["free"]) for found in status["networks"]] == [
        ("kubenet", 125, 0)
    ]
    assert (status["cleanup"]["mode"], status["cleanup"]["release_possible"]) == ("off", False)
    assert any(
        "read-only mount: to release, create a Job (" in why for why in status["cleanup"]["why_not"]
    )

    before, journal = traces(STORE), agent.released()
    dry = agent.clean("--dry-run", *BOLD, codes=[6])
    assert {blocker["by"] for blocker in dry.document["blockers"]} == {
        "no_cleanup_network",
        "network_unwritable",
    }
    assert dry.addresses.keys() == set(leaked)
    eventually(lambda: _refuses_to_write(agent))
    assert agent.released() == journal
    assert traces(STORE) == before

    agent.apply("overlays/cleanup-exec")
    throughout(lambda: reservations().keys(), 2, equal={*leaked, *healthy})
    cleanup = agent.run_json("status", codes=UNTRUSTED)["cleanup"]
    assert cleanup["networks"] == ["kubenet"]
    assert [why for why in cleanup["why_not"] if "read-only" in why] == []
    release(lambda: agent.clean("--apply", *BOLD), leaked)
    eventually(lambda: pods.phases(waiting), equal={"Running"})
    assert healthy.items() <= pods.running().items()


def test_the_account_has_exactly_the_rights_of_the_manifest(
    cluster: Cluster, agent: Deployment
) -> None:
    agent.present()
    token = agent.execute("cat", "/var/run/secrets/kubernetes.io/serviceaccount/token").stdout
    asked = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
    output = run(
        *(
            "kubectl",
            "--kubeconfig=/dev/null",
            "--server=https://127.0.0.1:6443",
            f"--token={token}",
        ),
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
    everybody = {
        ("authorization.k8s.io", f"selfsubject{what}reviews", "create")
        for what in ("access", "rules")
    }
    assert may == rules("base") | rules("base", "Role") | everybody
    named = [
        rule["resourceNames"]
        for rule in status["resourceRules"]
        if "configmaps" in rule["resources"]
    ]
    assert named == [["nodeleak-brake"]]


def test_after_a_kill_it_restarts_and_keeps_no_mount_that_the_node_unmounts(
    pods: Pods, agent: Deployment
) -> None:
    agent.present()
    before = agent.restarts()
    mounted = Path("/run/nodeleak-e2e")
    mounted.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "nodeleak-e2e", mounted)
    try:
        os.kill(agent.process(), signal.SIGKILL)
        eventually(lambda: agent.restarts() > before, equal=True)
        assert "/host/run/nodeleak-e2e" in Path(f"/proc/{agent.process()}/mountinfo").read_text()
    finally:
        run("umount", mounted)
        mounted.rmdir()
    assert "/host/run/nodeleak-e2e" not in Path(f"/proc/{agent.process()}/mountinfo").read_text()
    assert pods(1)


def test_it_survives_api_server_and_docker_outages_an_upgrade_and_a_drain(
    cluster: Cluster, pods: Pods, agent: Deployment
) -> None:
    pods(1)
    leaked = set(cluster.reserve(2))
    agent.present()

    running = agent.process()
    with cluster.stopped("apiserver"):
        throughout(lambda: agent.get("/healthz"), 20)
        assert agent.metrics().up("containers") == 1
    assert agent.process() == running

    with cluster.stopped("docker"):
        pass
    eventually(agent.process)
    agent.pod()
    pods.running()

    pod = agent.apply("base", TAGS[1])
    assert pod["spec"]["containers"][0]["image"].endswith(f":{TAGS[1]}")
    assert agent.execute("nodeleak", "--version").stdout.startswith("nodeleak ")

    def unseen() -> set[str]:
        assert agent.sources_up() == {1.0}
        return leaked - agent.scan("--grace=0s").having("leaked")

    eventually(unseen, equal=set())
    assert leaked <= reservations().keys()

    running = agent.process()
    with _drained(cluster):
        assert pods.now() == []
        eventually(unseen, equal=set())
    assert agent.process() == running


@contextmanager
def _drained(cluster: Cluster) -> Iterator[None]:
    try:
        cluster.kubectl(
            "drain",
            cluster.node,
            "--ignore-daemonsets",
            "--force",
            "--grace-period=1",
            "--timeout=60s",
        )
        yield
    finally:
        cluster.kubectl("uncordon", cluster.node)


def _refuses_to_write(agent: Deployment) -> None:
    # While the kubelet creates and removes sandboxes without an address, the docker list is sometimes not trusted.
    output = agent.execute(
        "nodeleak", "clean", "--apply", "--cleanup-network=auto", *BOLD, codes=[4]
    ).stdout
    said = " ".join(output.split())
    sentence = "read-only mount: to release, create a Job (kubectl nodeleak clean-job, or deploy/"
    assert (said.count("read-only"), said.count(sentence)) == (1, 1), output
