"""Cleaners under stress with real docker and host-local: nodeleak takes no address from its holder, the one-liner does.

Of the real node it needs only docker; it has its own store.
"""

from pathlib import Path

import pytest

from .node import ROOT, run, stress

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def _docker() -> None:
    run(ROOT / "hack" / "cluster", "start", "docker")


def test_nodeleak_reclaims_every_leak_and_takes_no_address_from_its_holder(tmp_path: Path) -> None:
    code, output, report = stress(
        tmp_path / "r.json", "--cleaner=nodeleak", "--daemon=nodeleak", "--seconds=60"
    )
    counts = report["counts"]

    assert (code, report["violations"]) == (0, []), output
    assert "2" not in {code for cleaner in report["cleaners"] for code in cleaner["codes"]}, output
    # Otherwise the run put no stress on anything.
    assert min(counts[what] for what in ("allocations", "exhausted", "half_added")) > 0, output
    assert counts["leaked"] == counts["reclaimed"] > 0, output


def test_restorations_that_are_killed_lose_no_address_and_halt_nothing(tmp_path: Path) -> None:
    """A cleanup that halts reclaims nothing more."""
    commands = ("--cleaner=nodeleak", "--cleaner=restore", "--daemon=nodeleak")
    codes = set[str]()
    for _ in range(5):  # a busy machine finishes few restorations in a run
        code, output, report = stress(tmp_path / "report.json", *commands, "--seconds=40")
        assert (code, report["violations"]) == (0, []), output
        for cleaner in report["cleaners"]:
            if cleaner["name"] == "restore":
                codes |= cleaner["codes"].keys()
        if codes >= {"0", "137"}:
            return
    pytest.fail(f"exit codes of restorations: {sorted(codes)}; the last run:\n{output}")


def test_the_common_one_liner_releases_addresses_in_use(tmp_path: Path) -> None:
    for _ in range(5):  # a race, which a busy machine may not show at once
        code, output, report = stress(
            tmp_path / "report.json", "--cleaner=one-liner", "--seconds=20"
        )
        if "taken from its holder" in {violation["kind"] for violation in report["violations"]}:
            assert code == 1
            return
    pytest.fail(output)
