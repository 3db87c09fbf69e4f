"""Latencies and histograms."""

from tests.stress.metrics import histogram, nothing
from tests.stress.stopwatch import Beside, Stopwatch, quantile


def test_an_add_counts_only_within_one_slice() -> None:
    adds = Stopwatch()
    for beside, seconds in ((Beside.CLEANERS, 2.0), (Beside.NOTHING, 1.0), (None, 9.0)):
        adds.now(beside)
        adds.end(adds.begin(occupied=3), seconds)
    straddling = adds.begin(occupied=3)
    adds.now(Beside.NOTHING)
    adds.end(straddling, 9.0)

    found = {beside: (one.count, one.p50, one.occupied) for beside, one in adds.latencies().items()}
    assert found == {Beside.CLEANERS: (1, 2.0, 3.0), Beside.NOTHING: (1, 1.0, 3.0)}


def test_a_quantile_is_one_of_the_values() -> None:
    assert (quantile([1, 2, 3], 0.5), quantile([1, 2, 3], 0.99), quantile([], 0.5)) == (2, 3, 0)


def test_histograms_are_summed_over_labels_and_runs() -> None:
    text = """# TYPE lock_seconds histogram
lock_seconds_bucket{network="a",le="0.1"} 98
lock_seconds_bucket{network="a",le="1.0"} 99
lock_seconds_bucket{network="a",le="+Inf"} 99
lock_seconds_count{network="a"} 99
lock_seconds_sum{network="a"} 1.5
lock_seconds_bucket{network="b",le="0.1"} 1
lock_seconds_bucket{network="b",le="1.0"} 1
lock_seconds_bucket{network="b",le="+Inf"} 1
lock_seconds_count{network="b"} 1
lock_seconds_sum{network="b"} 0.01
"""
    found = histogram(text, "lock_seconds") + histogram(text, "lock_seconds")

    assert (found.count, found.bound(0.99), found.bound(1.0)) == (200, 0.1, 1.0)


def test_a_missing_histogram_has_no_bound() -> None:
    assert histogram("", "lock_seconds") == nothing()
    assert nothing().bound(0.99) is None
