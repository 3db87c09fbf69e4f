"""Real samples, and what once failed in `make fuzz`, are a value or the documented error."""

from pathlib import Path

from tests.fuzz.parsers import FUZZERS


def test_samples_are_parsed_and_what_once_failed_does_not_fail_again(tmp_path: Path) -> None:
    for fuzzer in FUZZERS:
        (tmp_path / fuzzer.name).mkdir()
        with fuzzer.open(tmp_path / fuzzer.name) as parse:
            parse(fuzzer.samples[0])
            for content in (*fuzzer.samples, *fuzzer.kept):
                fuzzer.check(parse, content)


def test_every_kept_input_belongs_to_a_fuzzer() -> None:
    kept = Path(__file__).parent / "kept"
    assert {path.name for path in kept.iterdir()} <= {fuzzer.name for fuzzer in FUZZERS}
