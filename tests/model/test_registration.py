"""The last-seen record of a Node across snapshots, and its text on disk."""

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.codec import Damaged
from agent.model.documents import dump_last_seen, load_last_seen
from agent.model.registration import LastSeen, Removal, remember
from tests.builders import INSTANCE, NOW, WORKER_UID, last_seen

LATER = NOW + timedelta(seconds=15)
A, B = "kind://a", "kind://b"


def seen(*ids: str) -> LastSeen:
    """See a Node again and again, each time with one of these provider IDs."""
    last: LastSeen | None = None
    for number, container_id in enumerate(ids):
        last = remember(last, "worker-1", "u-1", container_id, NOW + number * timedelta(minutes=1))
    assert last is not None
    return last


def test_another_provider_id_has_the_previous_one_and_its_time() -> None:
    same: list[tuple[str, ...]] = [(A,), ("", A), (A, A), (A, "", A), ("", "", "")]  # it appears, or returns
    for ids in same:
        assert (seen(*ids).earlier_id, seen(*ids).changed) == ("", None)
    others: list[tuple[tuple[str, ...], str, int]]
    others = [((A, B), A, 1), ((A, B, B, B), A, 1), ((A, "", B), A, 2), ((A, B, A), B, 2)]
    for ids, earlier, minute in others:
        assert (seen(*ids).earlier_id, seen(*ids).changed) == (earlier, NOW + minute * timedelta(minutes=1))


def test_a_lost_provider_id_is_remembered() -> None:
    assert (seen(A, "").provider_id, seen(A, "", "").earlier_id) == ("", A)


def test_a_record_of_another_node_is_dropped() -> None:
    assert remember(last_seen(name="worker-2"), "worker-1", "u-1", B, LATER) == LastSeen("worker-1", "u-1", B, LATER)


def test_a_drained_node_stays_drained_until_it_is_uncordoned() -> None:
    """Pods that tolerate the cordon may return; so may pods of a Node that registers again."""

    def then(removal: Removal, uid: str = WORKER_UID) -> Removal:
        last = last_seen(removal=Removal.DRAINED, in_use=timedelta(hours=1))
        return remember(last, "worker-1", uid, INSTANCE, LATER, removal, in_use=True).removal

    assert then(Removal.CORDONED) is Removal.DRAINED
    assert then(Removal.CORDONED, "another") is Removal.CORDONED
    assert then(Removal.NONE) is Removal.NONE
    assert then(Removal.SCALE_DOWN) is Removal.SCALE_DOWN


def test_a_node_that_is_there_again_is_not_gone() -> None:
    assert remember(last_seen(gone=timedelta(0)), "worker-1", WORKER_UID, INSTANCE, LATER).gone is None


def test_a_record_of_the_version_before_is_read() -> None:
    """It knew neither the removal nor the time of the disappearance."""
    text = (
        '{"schema": "nodeleak.node/v1", "name": "worker-1", "uid": "u-1", "provider_id": "kind://a", '
        '"at": "2026-03-26T20:00:00+00:00", "earlier_id": "", "changed": null}'
    )
    assert load_last_seen(text) == LastSeen("worker-1", "u-1", A, NOW)


def test_a_record_is_read_back_and_any_other_text_is_damaged() -> None:
    for last in (
        last_seen(),
        last_seen(earlier_id=A, changed=timedelta(hours=1), provider_id=""),
        last_seen(removal=Removal.DRAINED, gone=timedelta(0), in_use=timedelta(hours=1)),
    ):
        assert load_last_seen(dump_last_seen(last)) == last
    for text in ("", "[]", "{}", '{"schema": "nodeleak.node/v1"}', "[" * 9000, '{"schema": "other"}'):
        with pytest.raises(Damaged):
            load_last_seen(text)


@given(
    st.dictionaries(
        st.sampled_from(["name", "uid", "provider_id", "at", "changed", "removal", "gone", "in_use"]),
        st.none() | st.text() | st.integers(),
    )
)
def test_a_record_with_any_value_replaced_is_read_or_damaged(changes: dict[str, object]) -> None:
    tree = json.loads(dump_last_seen(last_seen())) | changes
    try:
        assert isinstance(load_last_seen(json.dumps(tree)), LastSeen)
    except Damaged as damaged:
        assert str(damaged)  # noqa: PT017 (either is fine; anything else is not)
