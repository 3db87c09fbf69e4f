"""Test settings: hypothesis profiles, the garbage collector, signals, and what did not run.

`make check` uses the profile "quick". HYPOTHESIS_PROFILE=deep tries twenty times as many examples.
"""

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from agent.sources.host import mount_table
from agent.sources.host.mount_table import OWN_PROC, MountEntry

# The proof keeps hundreds of thousands of small tuples alive; frequent collections of them take 15 % of its time.
gc.set_threshold(200_000, 50, 100)

# No deadline and no health check for slow examples: a busy machine must not fail a property.
# The same examples in every run: what is new is looked for by `deep`, and by `make fuzz`.
settings.register_profile(
    "quick",
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    database=None,
)
settings.register_profile(
    "deep", parent=settings.get_profile("quick"), max_examples=500, derandomize=False
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(scope="session", autouse=True)
def _no_mount_above_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let no directory of a test look mounted from the node because /tmp is a file system of its own."""
    read = mount_table.read_mount_table
    above = {str(parent) for parent in tmp_path_factory.getbasetemp().parents} - {"/"}

    def without_those_above(proc: Path, process: str = "1") -> tuple[MountEntry, ...]:
        entries = read(proc, process)
        if proc != OWN_PROC:
            return entries
        return tuple(entry for entry in entries if entry.point not in above)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mount_table, "read_mount_table", without_those_above)
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line what could not run on this machine (`needs`), and in another what need not (`only_with`)."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())]
    for why, loud in (("DID NOT RUN: ", True), ("only with ", False)):
        missing = Counter(reason.partition(why)[2] for reason in reasons if why in reason)
        if missing:
            texts = "; ".join(f"{reason} ({count})" for reason, count in missing.most_common())
            terminalreporter.write_line(
                f"{why}{missing.total()} tests: {texts}", red=loud, bold=loud
            )


# A shell ignores SIGINT in a job that it starts in the background, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
