"""The history of the device plugins as text: read back completely, or empty with the reason."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.documents import StoredHistory, dump_history, load_history
from tests.builders import KVM, NOW, transition

SCHEMA = "nodeleak.device-plugins/v1"
STARTED = transition(TransitionKind.KUBELET_STARTED, ago=timedelta(minutes=9))
KNOWN = transition(TransitionKind.REGISTERED, KVM, ago=timedelta(minutes=7), exact=False)


def text(*transitions: DeviceTransition, **changes: Any) -> str:
    """Write them, and change the last."""
    tree = json.loads(dump_history(transitions or (KNOWN,)))
    tree["transitions"][-1].update(changes)
    return json.dumps(tree)


moments = st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 (bounds are naive)
transitions = st.builds(
    DeviceTransition,
    what=st.sampled_from(TransitionKind),
    at=moments,
    uptime=st.timedeltas(timedelta(0), timedelta(days=9000)),
    boot_id=st.text(max_size=8),
    resource=st.text(max_size=8),
    socket=st.text(max_size=8),
    exact=st.booleans(),
)


@given(st.lists(transitions, max_size=4))
def test_any_history_is_read_back_to_the_microsecond(history: list[DeviceTransition]) -> None:
    assert load_history(dump_history(history).encode()) == StoredHistory(tuple(history))


def test_what_is_damaged_in_a_history_is_ignored_and_reported() -> None:
    other_version = '{"schema": "nodeleak.device-plugins/v2", "transitions": []}'
    for why, texts in {
        "not JSON": ("", dump_history([KNOWN])[:-9], b"\xff\xfe\x00", "[" * 9000),
        f"its schema is not {SCHEMA!r}": ("null", "{}", other_version),
        "history.transitions: expected a list, found null": (json.dumps({"schema": SCHEMA}),),
    }.items():
        for damaged in texts:
            assert load_history(damaged) == StoredHistory((), why)
    wrong: dict[str, tuple[Any, ...]] = {
        "what": ("exploded", 7),
        "at": (
            "soon",
            None,
            NOW.replace(tzinfo=None).isoformat(),
            "0001-01-01T00:00:00+14:00",
            "0001-01-01T00:00:00+00:00",
            "9999-12-31T23:59:59+00:00",
        ),
        "uptime": ("long", True, float("nan"), 1e300, 1e13, -1e13),
        "boot_id": (7,),
        "resource": (None,),
        "socket": ([],),
        "exact": (1,),
    }
    for field, values in wrong.items():
        for value in values:
            found = load_history(text(STARTED, KNOWN, **{field: value}))
            assert found.transitions == (STARTED,), "one bad entry does not cost the others"
            assert found.trouble is not None
            assert found.trouble.startswith(f"history.transitions[1].{field}: ")
            assert found.trouble.endswith(" (ignored)")
    # A missing field is damage, and a new one is not.
    tree = json.loads(dump_history([KNOWN]))
    del tree["transitions"][0]["what"]
    assert (
        load_history(json.dumps(tree)).trouble == "history.transitions[0].what: missing (ignored)"
    )
    assert load_history(text(KNOWN, colour="green")) == StoredHistory((KNOWN,))
    tree["transitions"] *= 3
    assert load_history(json.dumps(tree)).trouble == (
        "history.transitions[0].what: missing (ignored, like 2 others)"
    )


@given(st.binary(max_size=80) | st.text(max_size=80))
@example(json.dumps({"schema": SCHEMA, "transitions": [7]}))
def test_any_other_text_is_empty_and_reported(damaged: bytes | str) -> None:
    found = load_history(damaged)
    assert found.transitions == ()
    assert found.trouble
