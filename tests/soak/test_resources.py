from tests.soak.plot import svg
from tests.soak.resources import Sample, grown, growth, runs

_FLAT = [Sample(15.0 * number, 57_000 + number % 3, 8 + number % 2, 30, 4096, 900) for number in range(1, 181)]


def test_a_daemon_that_stays_as_it_is_does_not_grow() -> None:
    assert not grown(_FLAT)


def test_a_leak_of_each_kind_is_told() -> None:
    leaking = [
        one._replace(memory=one.memory + 20 * number, threads=8 + number // 60, descriptors=30 + number // 30)
        for number, one in enumerate(_FLAT)
    ]
    assert [text.partition(":")[0] for text in grown(leaking)] == ["memory", "threads", "descriptors"]


def test_what_is_needed_once_is_no_growth() -> None:
    warmed = [one._replace(memory=40_000) if one.seconds < 300 else one for one in _FLAT]
    assert not grown(warmed)


def test_a_short_run_tells_nothing() -> None:
    assert growth(_FLAT[:50], "memory") is None


def test_each_daemon_is_a_run_and_a_line() -> None:
    samples = _FLAT + _FLAT[:60]
    assert [len(run) for run in runs(samples)] == [180, 60]
    assert svg(samples).count("<polyline") == 2 * 5
