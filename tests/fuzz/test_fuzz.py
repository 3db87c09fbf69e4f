"""Any bytes give a value or the documented error: each parser for a moment. `make fuzz` takes a minute for each."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.fuzzer import Fuzzer, Parse
from tests.fuzz.table import FUZZERS

KEPT = Path(__file__).parent / "kept"
EACH = pytest.mark.parametrize("fuzzer", FUZZERS, ids=lambda fuzzer: fuzzer.name)


@pytest.fixture
def parse(fuzzer: Fuzzer, tmp_path: Path) -> Iterator[Parse]:
    with fuzzer.open(tmp_path) as opened:
        yield opened


@EACH
def test_the_samples_are_parsed(fuzzer: Fuzzer, parse: Parse) -> None:
    parse(fuzzer.seeds[0])
    for seed in fuzzer.seeds:
        fuzzer.check(parse, seed)


@EACH
def test_any_mutation_is_a_value_or_the_documented_error(fuzzer: Fuzzer, parse: Parse) -> None:
    @settings(suppress_health_check=list(HealthCheck))
    @given(fuzzer.contents())
    def check(content: bytes) -> None:
        fuzzer.check(parse, content)

    check()


@EACH
def test_what_once_failed_does_not_fail_again(fuzzer: Fuzzer, parse: Parse) -> None:
    for path in sorted((KEPT / fuzzer.name).glob("*")):
        fuzzer.check(parse, path.read_bytes())


def test_every_kept_input_belongs_to_a_fuzzer() -> None:
    assert {path.name for path in KEPT.iterdir()} <= {one.name for one in FUZZERS}
