"""explain: every word that nodeleak prints."""

import re
from collections.abc import Iterable

from agent.checks.registry import DETECTORS
from agent.cli.parser import COMMANDS
from agent.exporters.json.status import NodeState
from agent.model.assessment import State
from agent.model.catalog import entries
from agent.model.finding import LeakCause, Severity, WaitCause
from agent.model.rejections import PodOutcome, RejectionCause
from agent.model.release import Reason, Verdict
from agent.model.snapshot import SOURCES
from agent.model.volumes import Confidence
from tests.cli.commands import nodeleak, options_of
from tests.deploy.monitoring import known_metrics, rules

FINDINGS = [detector.NAME for detector in DETECTORS]
ALERTS = {rule["alert"] for rule in rules("alert")}
WORDS: dict[str, Iterable[str]] = {
    "finding": FINDINGS,
    "severity of a finding": Severity,
    "likely cause of a leak": LeakCause,
    "likely cause of a pod rejection": RejectionCause,
    "cause of waiting pods": WaitCause,
    "outcome of a rejected pod": PodOutcome,
    "evidence that a volume is lost": Confidence,
    "state of a reservation": State,
    "reason why clean refuses an address": Reason,
    "result of clean for an address": Verdict,
    "state of a node in nodeleak status": NodeState,
    "alert": ALERTS,
    "source": {*SOURCES, "journal"},
    "metric": {
        re.sub("_(bucket|count|sum)$", "", name)
        for name in known_metrics()
        if name.startswith("nodeleak_")
    },
    "command": COMMANDS,
    "Kubernetes condition or Event": {
        "CNIAddressPressure",
        "ReleasedReservation",
        "FailedCreatePodSandBox",
        "FailedKillPod",
        "NetworkNotReady",
        "FailedMount",
        "FailedMapVolume",
        "FailedSync",
    },
}
"""By their kind."""


def explain(*words: str) -> str:
    done = nodeleak("explain", *words)
    assert (done.code, done.err) == (0, ""), done
    return done.out


def explain_all() -> str:
    """Return the texts of all words that are written for people who type them."""
    kinds = ("word", "Kubernetes condition or Event", "command")
    listed = re.split(r"^(\S.*):\n", explain(), flags=re.MULTILINE)
    lists = dict(zip(listed[1::2], listed[2::2], strict=True))
    words = [word.strip() for kind in kinds for word in lists[kind].split("\n\n")[0].split(",")]
    assert len(words) > 70
    return "\n\n".join(explain("--", word) for word in words)


def test_every_word_is_listed_and_explained_with_what_to_do() -> None:
    listed = explain()
    for kind, words in WORDS.items():
        for word in words:
            assert f"{word} ({kind})\n\n" in explain(word)
            assert re.search(rf"[\s]{word}[\s,]", listed), word
    settings = [option for option, text in options_of("run").items() if "NODELEAK_" in text]
    for setting in settings:
        assert "(setting)\n\n" in explain("--", setting)
    assert len(listed.splitlines()) < 140
    for finding in FINDINGS:
        page = explain(finding)
        assert re.search("^Means: .*\nDo: ", page, re.MULTILINE | re.DOTALL)
        assert not re.search(r"\b(as|of|with):\s", page), page
    for source in {*SOURCES} - {"runtimes", "registration"}:
        assert "\nDo: " in explain(source)
    for alert in ALERTS:
        assert "\nRun: " in explain(alert)
        for word in re.findall(r"nodeleak explain (\w+)", explain(alert)):
            explain(word)
    for entry in entries():
        for word in re.findall(r"nodeleak explain (\w+)", explain(entry.key)):
            explain(word)


def test_a_word_is_found_however_it_is_written_and_an_unknown_one_suggests_the_nearest() -> None:
    for word, start in {
        "LeakedReservation": "leaked_reservation (finding)\n\n",
        "leaked-reservation": "leaked_reservation (finding)\n\n",
        "nodeleakrangeexhausted": "NodeleakRangeExhausted (alert)\n\n",
        "nodeleak_sync_seconds_bucket": "nodeleak_sync_seconds (metric)\n\n",
        "lock-timeout": "lock_timeout (setting)\n\n",
        "NODELEAK_LOCK_TIMEOUT": "lock_timeout (setting)\n\n",
        # Messages of other programs.
        "no IP addresses available in range set": "range_full (message of",
        'failed to find plugin "loopback" in path [/opt/cni/bin]': "plugin_binary_missing (message",
        "Volume not attached according to node status for volume": "volume_not_attached (message",
        "Multi-Attach error": "volume_used_elsewhere (message of attach/detach controller)",
        "requested-address-taken": "requested_address_taken (message of host-local",
        "KillPodSandboxError": "KillPodSandboxError (Kubernetes condition or Event)",
        "UnexpectedAdmissionError": "UnexpectedAdmissionError (Kubernetes condition or Event)",
        # What people type.
        "ContainerCreating": "ContainerCreating (Kubernetes condition or Event)",
        "Multi-Attach": "Multi-Attach (Kubernetes condition or Event)",
        "dry run": "dry-run (word)",
        "device plugin": "device-plugin (word)",
        "podCIDR": "pod-CIDR (word)",
        "cni": "CNI (word)",
    }.items():
        assert explain(word).startswith(start)
    for line in re.findall(r"^Run: .*(?:\n.+)*", explain_all(), re.MULTILINE):
        for advised in re.findall(r"nodeleak explain ([A-Za-z][\w-]*)", line):
            explain(advised)
    page = explain("unknown")
    assert "unknown (state of a reservation)" in page
    assert "unknown (likely cause of a leak)" in page
    done = nodeleak("explain", "leaked_reservations")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        'nodeleak: unknown word "leaked_reservations": did you mean "leaked_reservation"?\n'
        "run 'nodeleak explain' for a list of all words\n"
    )


def test_a_message_is_explained_with_its_own_names_and_its_steps() -> None:
    page = explain(
        "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network "
        'for sandbox "4fab2c": plugin type="bridge" failed (add): failed to set bridge addr: '
        '"cbr0" already has an IP address different from 10.244.1.1/24'
    )
    for part in (
        "bridge_other_address (message of CNI plugin bridge",
        "CNI plugin bridge, container runtime containerd, sandbox 4fab2c.",
        "During: CNI ADD: ",
        "Addresses: It has nothing to do with host-local's addresses.",
        "`ip addr show dev cbr0`",
        "\nDo:\n1. ",
    ):
        assert part in page, page
    assert "10.244.1.1/24" not in explain("bridge_other_address")
    assert "`ip addr show dev BRIDGE`" in explain("bridge_other_address")


def test_of_an_unknown_message_the_parts_are_explained_and_what_to_run() -> None:
    crio = (
        "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to create pod "
        "network sandbox k8s_web-0_shop_8b1a_0(72d5aa): error adding pod shop_web-0 to CNI network "
        '"acme-net": plugin type="acme" failed (add): the moon is full'
    )
    page = explain(crio)
    for part in (
        "unknown message of the CNI plugin acme: only its parts can be explained\n",
        "CNI plugin acme, network acme-net, container runtime CRI-O,",
        "During: CNI ADD: ",
        "It ends with: the moon is full\n",
        "`nodeleak scan`",
        "`journalctl -u crio --since -1h | grep 72d5aa`",
    ):
        assert part in " ".join(page.split(" ")) or part in " ".join(page.split()), page
    done = nodeleak("explain", "the moon is full")
    done.fails(2, 'unknown message "the moon is full"', "nodeleak scan")


def test_several_events_are_read_from_standard_input() -> None:
    lines = (
        "Events:",
        "  Normal   Scheduled    61s  default-scheduler  Successfully assigned shop/web-0",
        "  Warning  FailedCreatePodSandBox  60s (x9 over 5m)  kubelet  no IP ranges specified",
        "  Warning  FailedMount  3s   kubelet  unmounted volumes=[data], unattached volumes=[]",
        "  Warning  FailedMount  1s   kubelet  unmounted volumes=[data], unattached volumes=[]",
    )
    done = nodeleak("explain", "-", given="\n".join(lines))
    assert (done.code, done.err) == (0, "")
    assert re.findall(r"^(\w+) \(message of", done.out, re.MULTILINE) == [
        "no_ranges",
        "volumes_not_mounted",
    ]
