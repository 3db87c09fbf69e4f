"""How often Events are sent: new ones at once, again after five minutes, and never a flood."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from agent.kube_events.messages import About, EventSpec
from agent.kube_events.rate_limit import BURST, REPEAT_AFTER, TOKEN_INTERVAL, RateLimiter
from tests.builders import UPTIME
from tests.kube_events.syncs import INTERVAL


def about(number: int) -> EventSpec:
    return EventSpec(
        "n", About("Pod", "shop", f"render-{number}", f"uid {number}"), "RejectedPod", "Warning", "refused"
    )


RELEASED = replace(about(0), reason="ReleasedReservation", lasting=False)


def test_a_lasting_event_is_sent_at_once_and_again_after_five_minutes() -> None:
    limiter, sent = RateLimiter(), []
    for number in range(41):
        due, missed = limiter.due([about(1)], UPTIME + INTERVAL * number)
        assert missed == 0
        sent += [number] * len(due)
    assert sent == [0, 20, 40]


def test_an_event_that_has_become_more_severe_does_not_wait() -> None:
    info, warning, critical = replace(about(1), type="Normal"), about(1), replace(about(1), critical=True)
    for before, worse in ((info, warning), (warning, critical), (info, critical)):
        limiter = RateLimiter()
        assert limiter.due([before], UPTIME)[0] == [before]
        assert limiter.due([worse], UPTIME + INTERVAL)[0] == [worse]
        assert limiter.due([worse], UPTIME + INTERVAL * 2) == ([], 0)
        assert limiter.due([before], UPTIME + INTERVAL * 3) == ([], 0)


def test_a_less_severe_event_does_not_replace_one_that_is_critical_again() -> None:
    limiter, worse = RateLimiter(), replace(about(1), critical=True)
    syncs = [worse, about(1), worse, about(1)]
    sent = [limiter.due([one], UPTIME + INTERVAL * number)[0] for number, one in enumerate(syncs)]
    assert sent == [[worse], [], [], []]
    assert limiter.due([about(1)], UPTIME + REPEAT_AFTER)[0] == [about(1)]
    assert limiter.due([worse], UPTIME + REPEAT_AFTER + INTERVAL)[0] == [worse]


def test_an_event_that_has_become_critical_is_sent_before_those_that_were_sent_longer_ago() -> None:
    limiter, events = RateLimiter(), [about(number) for number in range(BURST)]
    limiter.due(events[1:], UPTIME)
    limiter.due(events[:1], UPTIME + INTERVAL)
    due, _ = limiter.due([*events[1:], replace(events[0], critical=True)], UPTIME + REPEAT_AFTER)
    assert due[0] == replace(events[0], critical=True)


def test_a_critical_event_is_sent_before_less_severe_ones_that_were_never_sent() -> None:
    limiter = RateLimiter()
    limiter.due([about(number) for number in range(BURST)], UPTIME)
    warning, critical = about(BURST), replace(about(BURST + 1), critical=True)
    assert limiter.due([warning, critical], UPTIME + TOKEN_INTERVAL)[0] == [critical]
    assert limiter.due([warning, critical], UPTIME + TOKEN_INTERVAL * 2)[0] == [warning]


def test_the_releases_of_every_sync_are_sent() -> None:
    limiter = RateLimiter()
    assert [len(limiter.due([RELEASED], UPTIME + INTERVAL * number)[0]) for number in range(3)] == [1, 1, 1]


def test_many_events_are_sent_over_time_each_once_before_any_is_repeated() -> None:
    limiter, events, sent = RateLimiter(), [about(number) for number in range(200)], []
    first, missed = limiter.due(events, UPTIME)
    assert (len(first), missed) == (BURST, 200 - BURST)
    sent += first
    for number in range(1, 5):
        due, missed = limiter.due(events, UPTIME + INTERVAL * number)
        assert missed == 0, "they are counted once"
        sent += due
    assert len(sent) <= BURST + 5, "in the first minute"
    for number in range(5, 200):
        sent += limiter.due(events, UPTIME + INTERVAL * number)[0]
    assert {one.name for one in sent[:200]} == {one.name for one in events}


def test_releases_come_before_lasting_events() -> None:
    limiter = RateLimiter()
    due, missed = limiter.due([*(about(number) for number in range(1, BURST + 5)), RELEASED], UPTIME)
    assert due[0] == RELEASED
    assert missed == 5


def test_a_release_over_the_limit_is_counted_each_time() -> None:
    limiter = RateLimiter()
    several = [replace(RELEASED, subject=str(number)) for number in range(BURST + 1)]
    assert [limiter.due(several, UPTIME)[1] for _ in range(2)] == [1, BURST + 1]


syncs = st.lists(
    st.tuples(st.timedeltas(timedelta(0), timedelta(minutes=20)), st.sets(st.integers(0, 60))), max_size=30
)


@given(syncs)
def test_the_limits_hold_for_any_events(
    snapshots: list[tuple[timedelta, set[int]]],
) -> None:
    limiter, now, sent = RateLimiter(), UPTIME, []
    for after, present in snapshots:
        now += after
        due, missed = limiter.due([about(number) for number in present], now)
        assert {one.name for one in due} <= {about(number).name for number in present}
        assert 0 <= missed <= len(present) - len(due)
        sent += [(now, one.name) for one in due]
    for place, (at, name) in enumerate(sent):
        later = sent[place:]
        for end, _ in later:
            assert sum(moment <= end for moment, _ in later) <= BURST + (end - at) / TOKEN_INTERVAL + 1
        assert not [moment for moment, other in later[1:] if other == name and moment - at < REPEAT_AFTER]
