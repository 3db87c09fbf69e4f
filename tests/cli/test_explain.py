"""explain: every word that nodeleak prints."""

import re
from collections.abc import Iterable

from agent.checks.registry import DETECTORS
from agent.exporters.json.status import NodeState
from agent.model.assessment import State
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
    "Kubernetes condition or Event": {"CNIAddressPressure", "ReleasedReservation"},
}
"""By their kind."""


def explain(*words: str) -> str:
    done = nodeleak("explain", *words)
    assert (done.code, done.err) == (0, ""), done
    return done.out


def test_every_word_is_listed_and_explained_with_what_to_do() -> None:
    listed = explain()
    for kind, words in WORDS.items():
        for word in words:
            assert f"{word} ({kind})\n\n" in explain(word)
            assert re.search(rf"[\s]{word}[\s,]", listed), word
    settings = [option for option, text in options_of("run").items() if "NODELEAK_" in text]
    for setting in settings:
        assert "(setting)\n\n" in explain("--", setting)
    assert len(listed.splitlines()) < 120
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


def test_a_word_is_found_however_it_is_written_and_an_unknown_one_suggests_the_nearest() -> None:
    for word, start in {
        "LeakedReservation": "leaked_reservation (finding)\n\n",
        "leaked-reservation": "leaked_reservation (finding)\n\n",
        "nodeleakrangeexhausted": "NodeleakRangeExhausted (alert)\n\n",
        "nodeleak_sync_seconds_bucket": "nodeleak_sync_seconds (metric)\n\n",
        "lock-timeout": "lock_timeout (setting)\n\n",
        "NODELEAK_LOCK_TIMEOUT": "lock_timeout (setting)\n\n",
        # Messages of other programs.
        "no IP addresses available in range set": "NodeleakRangeExhausted (alert)",
        'plugin type="bridge" failed (add): failed to allocate for range 0: no IP addresses': "NodeleakRangeExhausted",
        'failed to find plugin "loopback" in path [/opt/cni/bin]': "failing_plugin (finding)",
        "UnexpectedAdmissionError": "rejected_pod (finding)",
        "Volume not attached according to node status for volume": "detached_volume (finding)",
    }.items():
        assert explain(word).startswith(start)
    page = explain("unknown")
    assert "unknown (state of a reservation)" in page
    assert "unknown (likely cause of a leak)" in page
    done = nodeleak("explain", "leaked_reservations")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        'nodeleak: unknown word "leaked_reservations": did you mean "leaked_reservation"?\n'
        "run 'nodeleak explain' for a list of all words\n"
    )
    assert nodeleak("explain", "Multi-Attach error").code == 2, (
        "it is not what a lost volume looks like"
    )
