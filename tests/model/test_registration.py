"""The text on disk of a Node as it was last seen."""

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.documents import Damaged, dump_last_seen, load_last_seen
from agent.model.registration import LastSeen, Removal
from tests.builders import NOW, last_seen

A = "kind://a"


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
