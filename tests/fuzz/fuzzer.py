"""One fuzzer, and the law that it checks.

Any bytes give a value that can be recorded, or the documented error of what reads them. `make fuzz` also checks that
this takes time and memory that grow with the bytes alone.
"""

import gc
import json
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final
from zlib import crc32

from hypothesis import strategies as st

from agent.sources.source_error import SourceError
from tests.fuzz.mutations import expanded, mutated

Parse = Callable[[bytes], None]
Opening = Callable[[Path], AbstractContextManager[Parse]]

_HERE: Final = Path(__file__).parent
SAMPLES: Final = _HERE / "samples"
_MOST_TIME: Final = 4000
"""Times that of the reference, which takes about half a millisecond. Quadratic time is far above it."""
_MOST_BYTES: Final = (
    20 << 20
)  # A reader reserves as much as the largest file that it accepts, before it knows the size
_BYTES_PER_BYTE: Final = 100
_MEASURED: Final = 16  # Memory is measured for one content in so many: it makes a parser slow


class Refused(Exception):
    """A command has refused what it was handed, and has said why."""


@dataclass(frozen=True)
class Fuzzer:
    name: str
    open: Opening  # Returns what reads one content; gets a directory of its own. It may raise SourceError and Refused.
    as_json: bool = True
    in_thread: bool = (
        False  # Whether the content is read in a thread of its own, whose stack has more room
    )
    recordings: Sequence[str] = ()  # Recorded nodes that are samples

    @property
    def samples(self) -> list[bytes]:
        """Real ones; the first one is valid."""
        files = [_HERE.parent / f"nodes/{name}.json" for name in self.recordings]
        return [file.read_bytes() for file in files or sorted((SAMPLES / self.name).iterdir())]

    @property
    def kept(self) -> list[bytes]:
        """What once failed."""
        return [file.read_bytes() for file in sorted((_HERE / "kept" / self.name).glob("*"))]

    def contents(self) -> st.SearchStrategy[bytes]:
        return mutated(self.samples, as_json=self.as_json)

    def check(self, parse: Parse, content: bytes) -> None:
        """Check that a content is a value or the documented error."""
        for each in expanded(content, in_thread=self.in_thread):
            self._read(parse, each)

    def check_cost(self, parse: Parse, content: bytes) -> None:
        """Check the time and the memory that a content takes as well."""
        for each in expanded(content, in_thread=self.in_thread):
            read = partial(self._read, parse, each)
            spent = _timed(read)
            if spent > _MOST_TIME * _reference():  # perhaps the garbage collector, or the machine
                spent = min(spent, *(_timed(read) for _ in range(2)))
            assert spent <= _MOST_TIME * _reference(), f"{spent:.2f} s for {len(each)} bytes"
            if crc32(each) % _MEASURED == 0:
                peak = _peak(read)
                assert peak <= _MOST_BYTES + _BYTES_PER_BYTE * len(each), (
                    f"{peak} bytes for {len(each)}"
                )

    def _read(self, parse: Parse, content: bytes) -> None:
        with suppress(SourceError, Refused):
            parse(content)


def _timed(what: Callable[[], None]) -> float:
    """Return the time of this process alone: others share the machine."""
    start = time.process_time()
    what()
    return time.process_time() - start


@cache
def _reference() -> float:
    """Return the time that `json.loads` takes for 64 KiB here: the bounds are multiples of it."""
    text = json.dumps(
        [{"name": f"item-{number}", "value": [number, None, True]} for number in range(1300)]
    )
    return min(_timed(lambda: json.loads(text)) for _ in range(20))


def _peak(what: Callable[[], None]) -> int:
    gc.collect(0)
    tracemalloc.start()
    try:
        what()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
