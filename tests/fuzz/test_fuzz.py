"""Real samples, and what once failed in `make fuzz`, are a value or the documented error."""

import tempfile
from pathlib import Path

from tests.fuzz.commands import FUZZERS


def test_samples_are_parsed_and_what_once_failed_does_not_fail_again() -> None:
    for fuzzer in FUZZERS:
        # A short path: there are sockets below some.
        with tempfile.TemporaryDirectory(prefix="nf-") as directory, fuzzer.open(Path(directory)) as parse:
            parse(fuzzer.samples[0])
            for content in (*fuzzer.samples, *fuzzer.kept):
                fuzzer.check(parse, content)


def test_every_kept_input_belongs_to_a_fuzzer() -> None:
    kept = Path(__file__).parent / "kept"
    assert {path.name for path in kept.iterdir()} <= {fuzzer.name for fuzzer in FUZZERS}
