"""What a status says of each node, which one is worst, and the table."""

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent.fleet.answers import Answer, answer_of
from agent.fleet.inventory import Agent, Target
from agent.fleet.status import NodeStatus, Rank, node_status, status_table, summary, worst_first
from tests.fleet.kubectl import finding, status

AGENT = Agent("worker-1", "kube-system", "nodeleak-x", "nodeleak")
TARGET = Target("worker-1", "Ready", AGENT)


def of(document: Any, code: int = 0, error: str = "", target: Target = TARGET) -> NodeStatus:
    return node_status(target, Answer(target.node, code, json.dumps(document), error))


def named(node: str, **changes: Any) -> NodeStatus:
    return of(status(node, **changes), target=Target(node, "Ready", AGENT))


def test_a_document_has_a_rank_and_a_text() -> None:
    critical, leaks = finding("critical", "exhausted_range"), finding("warning", "leaked_reservation", 7)
    info, fatal = finding("info", "left_over_network"), finding("fatal", "x")
    pods = {"source": "pods", "why": "timed out"}
    halted = status()["cleanup"] | {"halted": "a container reappeared"}
    old = {"taken_at": "", "age_seconds": 400.0, "interval_seconds": 15}
    no_reason = "incomplete: the agent gives no reason"
    cases: list[tuple[str, dict[str, Any], Rank, bool, str]] = [
        ("ok", {}, Rank.OK, True, ""),
        ("ok", {"findings": [info]}, Rank.INFO, True, "info: left_over_network"),
        ("findings", {}, Rank.UNKNOWN, True, ""),
        ("findings", {"findings": [leaks]}, Rank.WARNING, True, "warning: 7 leaked_reservation"),
        (
            *("findings", {"findings": [critical, leaks]}, Rank.CRITICAL, True),
            "critical: exhausted_range; warning: 7 leaked_reservation",
        ),
        ("findings", {"findings": [fatal]}, Rank.UNKNOWN, True, "fatal: x"),
        ("findings", {"cleanup": halted}, Rank.CRITICAL, True, "critical: cleanup halted: a container reappeared"),
        (
            *("findings", {"findings": [leaks], "unavailable": [pods]}, Rank.UNKNOWN, False),
            "pods unavailable: timed out; warning: 7 leaked_reservation",
        ),
        ("incomplete", {"unavailable": [pods]}, Rank.UNKNOWN, False, "incomplete: pods unavailable: timed out"),
        ("incomplete", {}, Rank.UNKNOWN, False, no_reason),
        ("incomplete", {"findings": [critical]}, Rank.CRITICAL, False, f"{no_reason}; critical: exhausted_range"),
        ("stalled", {"report": old}, Rank.UNKNOWN, False, "stalled: the last report is 6m40s old"),
    ]
    for state, changes, rank, complete, text in cases:
        found = of(status(state=state, **changes))
        assert (found.rank, found.complete, found.text, found.agent) == (rank, complete, text, "0.1.0")


def test_a_node_without_a_usable_answer_is_unknown() -> None:
    schema = "nodeleak.status/v1"
    no_report = {"schema": schema, "state": "no_report", "why": "starting"}
    forbidden = 'Error from server (Forbidden): pods "x" is forbidden'
    cases = [
        (Answer("worker-1", None, "", "no answer within 20 s"), "no answer", "no answer within 20 s"),
        (answer_of("worker-1", 1, "", f"{forbidden}\n"), "no answer", forbidden),
        (Answer("worker-1", 0, "OK\n"), "no answer", "its output is not the expected document"),
        (Answer("worker-1", 69, json.dumps(no_report)), "no report", "no report: starting"),
    ]
    documents: list[tuple[dict[str, Any], str, str]] = [
        ({"x": math.nan}, "no answer", "its output is not the expected document"),
        (
            *({"schema": "nodeleak.status/v2"}, "unknown schema"),
            f'answers with schema "nodeleak.status/v2", this command reads {schema}: use one version',
        ),
        ({"schema": None}, "unknown schema", 'with schema "None"'),
        ({"state": "resting"}, "unreadable", f"cannot read its {schema}"),
        ({"findings": [1]}, "unreadable", f"cannot read its {schema}"),
        ({"report": {"age_seconds": 1e99}}, "unreadable", f"cannot read its {schema}"),
    ]
    cases += [
        (Answer("worker-1", 0, json.dumps(status() | changes)), agent, text) for changes, agent, text in documents
    ]
    for answer, agent, text in cases:
        found = node_status(TARGET, answer)
        assert (found.rank, found.complete, found.agent) == (Rank.UNKNOWN, False, agent)
        assert text in found.text


def test_a_node_that_was_not_asked_says_why() -> None:
    missing = node_status(Target("worker-1", "Ready", None), None)
    assert (missing.rank, missing.agent, missing.text) == (Rank.UNKNOWN, "missing", "no agent pod on this node")
    waiting = Agent("worker-1", "kube-system", "nodeleak-x", "nodeleak", not_running="CrashLoopBackOff")
    stopped = node_status(Target("worker-1", "Ready", waiting), None)
    assert (stopped.rank, stopped.agent) == (Rank.UNKNOWN, "not running")
    assert stopped.text.endswith("is not running: CrashLoopBackOff")


def test_no_answer_names_the_state_of_the_node() -> None:
    target = Target("worker-1", "NotReady", AGENT)
    assert node_status(target, Answer("worker-1", None, "", "no answer")).text == "no answer (node NotReady)"


def test_an_agent_that_is_not_ready_says_so() -> None:
    target = Target("worker-1", "Ready", Agent("worker-1", "kube-system", "nodeleak-x", "nodeleak", ready=False))
    assert of(status(), target=target).agent == "0.1.0 not ready"


def test_nodes_are_sorted_worst_first() -> None:
    few = [{"name": "cbr0", "usable": 253, "free": 3, "leaked": 9, "unknown": 0}]
    not_known = [{"name": "cbr0", "usable": None, "free": None, "leaked": 0, "unknown": 0}]
    critical = {"state": "findings", "findings": [finding("critical", "exhausted_range")]}
    warning = {"state": "findings", "findings": [finding("warning", "leaked_reservation")]}
    found = [
        named("worker-10"),
        named("worker-9"),
        named("ranges", networks=not_known),
        named("leaks", networks=few, **warning),
        named("more", **warning),
        named("incomplete", state="incomplete"),
        named("worst", **critical),
        named("info", findings=[finding("info", "left_over_network")]),
    ]
    order = [status.target.node for status in worst_first(found)]
    assert order == ["worst", "incomplete", "leaks", "more", "info", "worker-9", "worker-10", "ranges"]


def test_the_summary_counts_nodes_and_names_different_versions() -> None:
    found = [named("a"), named("b"), named("c", version="0.2.0", state="incomplete")]
    assert summary(found) == ["3 nodes: 1 unknown, 2 ok", "The agents have different versions: 0.1.0 (2), 0.2.0 (1)"]
    assert summary([named("a")]) == ["1 node: 1 ok"]
    assert summary([]) == ["no nodes"]


def test_the_table_has_a_row_for_each_network() -> None:
    two = [
        {"name": "cbr0", "usable": 253, "free": 12, "leaked": 7, "unknown": 0},
        {"name": "storage", "usable": None, "free": None, "leaked": None, "unknown": 3},
    ]
    found = [named("worker-1", networks=two), node_status(Target("worker-2", "Ready", None), None)]
    assert status_table(found, wide=False) == (
        "2 nodes: 1 unknown, 1 ok\n"
        "\n"
        "NODE      AGENT    NETWORK  FREE    LEAKED  AGE  FINDINGS\n"
        "worker-1  0.1.0    cbr0     12/253  7       12s  none\n"
        "worker-1  0.1.0    storage  ?/?     ?       12s  none\n"
        "worker-2  missing  -        -       -       -    no agent pod on this node\n"
    )


def test_the_wide_table_shows_pods_cleanup_and_long_texts() -> None:
    why = "x" * 150
    found = named("worker-1", state="incomplete", unavailable=[{"source": "pods", "why": why}])
    assert why not in status_table([found], wide=False)
    wide = status_table([found], wide=True)
    assert why in wide
    assert "kube-system/nodeleak-x" in wide
    assert "off, cannot release: read-only mount" in wide


def test_cleanup_says_whether_a_release_is_possible() -> None:
    for possible, text in ((True, "auto, can release"), (None, "auto, unknown")):
        cleanup = status()["cleanup"] | {"mode": "auto", "release_possible": possible, "why_not": []}
        assert f"  {text}  " in status_table([of(status(cleanup=cleanup))], wide=True)


def test_a_text_of_a_node_cannot_control_the_terminal() -> None:
    found = named("worker-1", state="incomplete", unavailable=[{"source": "pods", "why": "\x1b[2Jgone"}])
    assert "\x1b" not in status_table([found], wide=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(status())), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(status())), JSON))
def test_no_document_is_read_as_healthy_by_accident(changes: dict[str, Any]) -> None:
    """Whatever an agent sends: it is shown, and healthy only if it says so itself."""
    found = of(status() | changes)
    assert status_table([found], wide=True)
    if found.rank is Rank.OK:
        assert (status() | changes)["state"] == "ok"
