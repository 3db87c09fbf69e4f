"""The last-seen record of a Node across snapshots, and its text on disk."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.documents import Damaged, dump_last_seen, load_last_seen
from agent.model.registration import TO_BE_DELETED, Expected, LastSeen, Removal, Taint
from agent.model.snapshot import Known, Node
from agent.sources.host.registration import RegistrationTracker
from tests.builders import NOW, last_seen, worker

A, B = "kind://a", "kind://b"
MINUTE = timedelta(minutes=1)


def seen(state: Path, *nodes: Node) -> LastSeen:
    """See a Node again and again, a minute apart, while no pods are listed."""
    tracker = RegistrationTracker(
        "worker-1", Expected.AUTO, state, lambda *_: {}, state / "proc", lambda: None
    )
    for number, present in enumerate(nodes):
        last = tracker.read(Known(present), Known(()), NOW + number * MINUTE).known().last
    assert last is not None
    return last


def test_another_provider_id_has_the_previous_one_and_its_time(tmp_path: Path) -> None:
    same = ((A,), ("", A), (A, A), (A, "", A), ("", "", ""))  # it appears, or returns
    others = (((A, B), A, 1), ((A, B, B, B), A, 1), ((A, "", B), A, 2), ((A, B, A), B, 2))
    for ids, earlier, minute in (*((ids, "", None) for ids in same), *others):
        last = seen(tmp_path, *(worker(provider_id=provider_id) for provider_id in ids))
        assert last.provider_id == ids[-1]
        assert (last.earlier_id, last.changed) == (
            earlier,
            None if minute is None else NOW + minute * MINUTE,
        )


def test_a_drained_node_stays_drained_until_it_is_uncordoned(tmp_path: Path) -> None:
    """Pods that tolerate the cordon may return; so may pods of a Node that registers again."""
    cordoned = replace(worker(provider_id=A), unschedulable=True)
    drained = (worker(provider_id=A), cordoned)
    for after, removal in (
        (cordoned, Removal.DRAINED),
        (replace(cordoned, uid="another"), Removal.CORDONED),
        (worker(provider_id=A), Removal.NONE),
        (worker(Taint(TO_BE_DELETED), provider_id=A), Removal.SCALE_DOWN),
    ):
        assert seen(tmp_path, *drained, after).removal is removal


def test_a_record_is_read_back_and_any_other_text_is_damaged() -> None:
    for last in (
        last_seen(),
        last_seen(earlier_id=A, changed=timedelta(hours=1), provider_id=""),
        last_seen(removal=Removal.DRAINED, gone=timedelta(0), in_use=timedelta(hours=1)),
    ):
        assert load_last_seen(dump_last_seen(last)) == last
    # The version before knew neither the removal nor the time of the disappearance.
    text = (
        '{"schema": "nodeleak.node/v1", "name": "worker-1", "uid": "u-1", "provider_id": "kind://a", '
        '"at": "2026-03-26T20:00:00+00:00", "earlier_id": "", "changed": null}'
    )
    assert load_last_seen(text) == LastSeen("worker-1", "u-1", A, NOW)
    for text in (
        "",
        "[]",
        "{}",
        '{"schema": "nodeleak.node/v1"}',
        "[" * 9000,
        '{"schema": "other"}',
    ):
        with pytest.raises(Damaged):
            load_last_seen(text)


@given(
    st.dictionaries(
        st.sampled_from(
            ["name", "uid", "provider_id", "at", "changed", "removal", "gone", "in_use"]
        ),
        st.none() | st.text() | st.integers(),
    )
)
def test_a_record_with_any_value_replaced_is_read_or_damaged(changes: dict[str, object]) -> None:
    tree = json.loads(dump_last_seen(last_seen())) | changes
    try:
        assert isinstance(load_last_seen(json.dumps(tree)), LastSeen)
    except Damaged as damaged:
        assert str(damaged)  # noqa: PT017 (either is fine; anything else is not)
