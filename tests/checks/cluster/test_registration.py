"""What is remembered of a Node from snapshot to snapshot."""

from dataclasses import replace
from datetime import timedelta

from agent.checks.cluster.registration import advance
from agent.model.registration import TO_BE_DELETED, LastSeen, Removal, Taint
from agent.model.snapshot import Node
from tests.builders import NOW, worker

A, B = "kind://a", "kind://b"
MINUTE = timedelta(minutes=1)


def seen(*nodes: Node) -> LastSeen:
    """See a Node again and again, a minute apart, while no pods are listed."""
    last = None
    for number, present in enumerate(nodes):
        last = advance(last, present, (), NOW + number * MINUTE)
    assert last is not None
    return last


def test_another_provider_id_has_the_previous_one_and_its_time() -> None:
    same = ((A,), ("", A), (A, A), (A, "", A), ("", "", ""))  # it appears, or returns
    others = (((A, B), A, 1), ((A, B, B, B), A, 1), ((A, "", B), A, 2), ((A, B, A), B, 2))
    for ids, earlier, minute in (*((ids, None, None) for ids in same), *others):
        last = seen(*(worker(provider_id=provider_id) for provider_id in ids))
        assert last.provider_id == ids[-1]
        changed = None if minute is None else NOW + minute * MINUTE
        assert (last.earlier_id, last.changed) == (earlier, changed)


def test_a_drained_node_stays_drained_until_it_is_uncordoned() -> None:
    """Pods that tolerate the cordon may return; so may pods of a Node that registers again."""
    cordoned = replace(worker(provider_id=A), unschedulable=True)
    drained = (worker(provider_id=A), cordoned)
    for after, removal in (
        (cordoned, Removal.DRAINED),
        (replace(cordoned, uid="another"), Removal.CORDONED),
        (worker(provider_id=A), Removal.NONE),
        (worker(Taint(TO_BE_DELETED), provider_id=A), Removal.SCALE_DOWN),
    ):
        assert seen(*drained, after).removal is removal
