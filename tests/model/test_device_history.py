"""The history of the device plugins as text: read back completely, or empty with the reason."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.state_files import HISTORY_SCHEMA, StoredHistory, dump_history, load_history
from tests.builders import KVM, KVM_SOCKET, NOW, transition

STARTED = transition(TransitionKind.KUBELET_STARTED, ago=timedelta(minutes=9))
APPEARED = transition(TransitionKind.SOCKET_APPEARED, socket=KVM_SOCKET, ago=timedelta(minutes=8))
KNOWN = transition(TransitionKind.REGISTERED, KVM, ago=timedelta(minutes=7), exact=False)


def text(*transitions: DeviceTransition, **changes: Any) -> str:
    """Write them, and change the last."""
    tree = json.loads(dump_history(transitions or (KNOWN,)))
    tree["transitions"][-1].update(changes)
    return json.dumps(tree)


def test_a_history_is_read_back_in_order() -> None:
    assert load_history(dump_history([STARTED, APPEARED, KNOWN])) == StoredHistory((STARTED, APPEARED, KNOWN))


def test_bytes_are_accepted() -> None:
    assert load_history(dump_history([KNOWN]).encode()) == StoredHistory((KNOWN,))


def test_an_empty_history_is_valid() -> None:
    assert load_history(dump_history([])) == StoredHistory()


def test_transitions_of_other_boots_are_kept() -> None:
    earlier = transition(TransitionKind.LOST, KVM, ago=timedelta(days=9), boot_id="another")
    assert load_history(dump_history([earlier, KNOWN])).transitions == (earlier, KNOWN)


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
    assert load_history(dump_history(history)) == StoredHistory(tuple(history))


# Damage


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        ("", "not JSON"),
        (dump_history([KNOWN])[:-9], "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        ("[" * 9000, "not JSON"),
        ("null", f"its schema is not {HISTORY_SCHEMA!r}"),
        ("{}", f"its schema is not {HISTORY_SCHEMA!r}"),
        ('{"schema": "nodeleak.device-plugins/v2", "transitions": []}', f"its schema is not {HISTORY_SCHEMA!r}"),
        (json.dumps({"schema": HISTORY_SCHEMA}), "it has no list of transitions"),
        (json.dumps({"schema": HISTORY_SCHEMA, "transitions": {}}), "it has no list of transitions"),
    ],
)
def test_a_damaged_history_is_empty_and_reported(damaged: str | bytes, why: str) -> None:
    assert load_history(damaged) == StoredHistory((), why)


@pytest.mark.parametrize(
    "changes",
    [
        {"what": "exploded"},
        {"what": 7},
        {"at": "soon"},
        {"at": None},
        {"at": NOW.replace(tzinfo=None).isoformat()},
        {"at": "0001-01-01T00:00:00+14:00"},
        {"uptime": "long"},
        {"uptime": True},
        {"uptime": float("nan")},
        {"uptime": 1e300},
        {"boot_id": 7},
        {"resource": None},
        {"socket": []},
        {"exact": 1},
    ],
    ids=lambda changes: "{}={!r}".format(*next(iter(changes.items()))),
)
def test_a_truncated_history_is_damaged(changes: dict[str, Any]) -> None:
    found = load_history(text(STARTED, KNOWN, **changes))
    assert found.transitions == ()
    assert found.trouble.startswith("transitions[1]")


def test_a_missing_field_is_damage_and_a_new_one_is_not() -> None:
    tree = json.loads(dump_history([KNOWN]))
    del tree["transitions"][0]["what"]
    assert load_history(json.dumps(tree)).trouble == "transitions[0].what: missing"
    assert load_history(text(KNOWN, colour="green")) == StoredHistory((KNOWN,))


@given(st.binary(max_size=80) | st.text(max_size=80))
@example(json.dumps({"schema": HISTORY_SCHEMA, "transitions": [7]}))
def test_any_other_text_is_empty_and_reported(damaged: bytes | str) -> None:
    found = load_history(damaged)
    assert found.transitions == ()
    assert found.trouble
