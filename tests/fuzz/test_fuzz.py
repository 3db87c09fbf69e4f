"""Real samples, and what once failed in `make fuzz`, are a value or the documented error."""

import os
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from tests.fuzz.commands import FUZZERS

OPENED = deque[Any](maxlen=10_000)
sys.addaudithook(lambda event, arguments: OPENED.append(arguments) if event == "open" else None)


def test_samples_are_parsed_and_what_once_failed_does_not_fail_again() -> None:
    assert {path.name for path in (Path(__file__).parent / "kept").iterdir()} <= {
        fuzzer.name for fuzzer in FUZZERS
    }
    for fuzzer in FUZZERS:
        # A short path: there are sockets below some.
        with (
            tempfile.TemporaryDirectory(prefix="nf-") as directory,
            fuzzer.open(Path(directory)) as parse,
        ):
            contents = [*fuzzer.samples, *fuzzer.kept]
            OPENED.clear()
            parse(contents[0])
            if fuzzer.name not in {
                "node-answer",
                "http-request",
            }:  # another process or a socket gets the content
                written, *opened = [
                    os.fsdecode(path) for path, *_ in list(OPENED) if not isinstance(path, int)
                ]
                names = {Path(written).name, os.path.realpath(written)}
                assert names & {*opened, *map(os.path.realpath, opened)}, (
                    f"{fuzzer.name}: nobody reads {written}"
                )
            for content in contents:
                fuzzer.check(parse, content)
