"""All fuzzers."""

from typing import Final

from tests.fuzz import host_parsers, kube_parsers, own_parsers, runtime_parsers
from tests.fuzz.fuzzer import Fuzzer

FUZZERS: Final[tuple[Fuzzer, ...]] = (
    *host_parsers.FUZZERS,
    *runtime_parsers.FUZZERS,
    *kube_parsers.FUZZERS,
    *own_parsers.FUZZERS,
)
