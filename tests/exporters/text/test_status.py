"""The status as text: everything that matters on one screen."""

from typing import Any

import pytest

from agent.exporters.text.status import status_line, status_table
from agent.model.status import no_report
from tests.model.test_status import GOOD

DOWN = no_report("no daemon answers on 127.0.0.1:9747 (connection refused)")


def changed(**more: Any) -> list[str]:
    return status_table({**GOOD, **more}).splitlines()


def test_the_whole_table() -> None:
    assert (
        status_table(GOOD)
        == """\
Node worker-1, checked 12s ago (every 1m), nodeleak 0.1.0
Warning: 7 leaked pod addresses on worker-1

NETWORK  USABLE  FREE  LEAKED  UNKNOWN
cbr0     253     ?     7       0

FINDING             SEVERITY  COUNT  SINCE
leaked_reservation  warning   7      2026-03-26T20:00:00Z

Unavailable (nothing is concluded from these sources):
  containers: no answer

Cleanup by the daemon: off. Networks that may be cleaned: cbr0.
It is not known whether releases are possible here:
  read-only mount

For more: `nodeleak scan`, `nodeleak explain leaked_reservation`
"""
    )


def test_a_healthy_node_is_short() -> None:
    cleanup = {"mode": "auto", "networks": [], "release_possible": True, "why_not": []}
    lines = changed(networks=[], findings=[], unavailable=[], cleanup=cleanup, headline="OK: no findings")
    assert lines == [
        "Node worker-1, checked 12s ago (every 1m), nodeleak 0.1.0",
        "OK: no findings",
        "",
        "Cleanup by the daemon: auto. Networks that may be cleaned: none.",
        "Releases are possible here. Each address is checked before its release.",
        "",
        "For more: `nodeleak scan`",
    ]


def test_a_command_to_copy_has_only_words() -> None:
    (finding,) = GOOD["findings"]
    lines = changed(findings=[{**finding, "detector": "; rm -rf /"}], unavailable=[])
    assert lines[-1] == "For more: `nodeleak scan`"


def test_what_keeps_releases_from_being_made_is_listed() -> None:
    cleanup = {**GOOD["cleanup"], "release_possible": False}
    lines = changed(cleanup=cleanup)
    assert lines[lines.index("No release is possible here now:") + 1] == "  read-only mount"


def test_a_stalled_daemon_says_how_old_its_report_is() -> None:
    lines = changed(state="stalled", report={**GOOD["report"], "age_seconds": 725.0, "interval_seconds": 0.25})
    assert lines[0] == "Node worker-1, checked 12m ago (every 0.2s), nodeleak 0.1.0"
    assert lines[1] == "Stalled: the daemon has stopped checking this node; what follows is 12m old"


def test_an_absurd_age_is_printed() -> None:
    assert "checked 365d ago" in changed(report={**GOOD["report"], "age_seconds": 1e29})[0]


def test_without_a_daemon_there_is_one_sentence_with_the_remedy() -> None:
    sentence = (
        "No status: no daemon answers on 127.0.0.1:9747 (connection refused); "
        "'nodeleak scan' checks this node without a daemon\n"
    )
    assert status_table(DOWN) == status_line(DOWN) == sentence


def test_a_line_has_time_node_state_and_headline() -> None:
    line = "2026-03-26T20:00:00Z worker-1 findings: Warning: 7 leaked pod addresses on worker-1"
    assert status_line(GOOD) == f"{line} (unavailable: containers)\n"
    assert status_line({**GOOD, "unavailable": []}) == f"{line}\n"


@pytest.mark.parametrize("text", [status_table, status_line])
def test_control_characters_are_escaped(text: Any) -> None:
    assert "\x1b" not in text({**GOOD, "headline": "\x1b[2J"})
