"""docs/reference.md explains every public word of the code, and no other."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from agent.checks.registry import DETECTORS
from agent.exporters.metrics import METRICS, PREFIX
from agent.model.release import BlockedBy
from agent.model.snapshot import SOURCES
from tests.cli.commands import options_of
from tests.cli.test_explain import WORDS

ROOT: Final = Path(__file__).parents[1]
_PARTS: Final = re.split(r"^## (.+)$", (ROOT / "docs/reference.md").read_text(), flags=re.MULTILINE)
SECTIONS: Final = dict(zip(_PARTS[1::2], _PARTS[2::2], strict=True))
GOLDEN: Final = ROOT / "tests/exporters/golden"
SETTINGS: Final = {
    option: text for option, text in options_of("run").items() if "[NODELEAK_" in text
}
TABLES: Final[Mapping[str, Iterable[str]]] = {
    "States": WORDS["state of a reservation"],
    "Detectors": WORDS["finding"],
    "Sources": SOURCES,
    "Guards": WORDS["reason why clean refuses an address"],
    "Blockers": BlockedBy,
    "Verdicts": WORDS["result of clean for an address"],
    "Timeline": {
        kind
        for path in GOLDEN.glob("*.json")
        for kind in re.findall(r'"what": "(\w+)"', path.read_text())
    },
    "`nodeleak.status/v1`": WORDS["state of a node in nodeleak status"],
    "HTTP": ["/", "/metrics", "/healthz", "/readyz", "/api/v1/report", "/api/v1/status"],
    "Settings": SETTINGS,
    "Metrics": WORDS["metric"],
}
"""The words in the first column of each section's table."""


def rows(title: str) -> dict[str, list[str]]:
    """Return a section's table, by the name in its first column."""
    lines = re.findall(r"^\| `([^`]+)` \|(.*)\|$", SECTIONS[title], re.MULTILINE)
    return {name: [cell.strip() for cell in re.split(r"(?<!\\)\|", cells)] for name, cells in lines}


def words(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def test_every_public_word_is_in_its_table_and_all_detectors_are_held_independent() -> None:
    for title, names in TABLES.items():
        assert sorted(rows(title)) == sorted(names), title
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    (independent,) = (
        contract["modules"] for contract in contracts if contract["type"] == "independence"
    )
    for detector in DETECTORS:
        package = vars(detector)["__name__"].rpartition(".")[0]
        assert f"{package}.*" in independent


def test_the_table_of_metrics_has_the_type_and_the_labels_of_each() -> None:
    table = rows("Metrics")
    for metric in METRICS:
        kind, labels, *_ = table[f"{PREFIX}{metric.name}"]
        assert (kind, words(labels)) == (metric.type, set(metric.labels)), metric.name


def test_every_option_is_in_the_reference_and_every_setting_with_its_default() -> None:
    listed = re.findall(r"^\| (`[^|]+`) \| (`--[^|]+`) \|", SECTIONS["Options"], re.MULTILINE)
    for command in (
        "scan",
        "status",
        "timeline",
        "record",
        "clean",
        "restore",
        "resume",
        "journal",
    ):
        documented = set[str]().union(
            *(words(names) for commands, names in listed if command in words(commands))
        )
        own = {option for option, text in options_of(command).items() if "[NODELEAK_" not in text}
        assert documented == own - {"--help", "--help-all"}, command
    for option, text in SETTINGS.items():
        assert set(re.findall(r"\(default: (\S+)\)", text)) <= words(rows("Settings")[option][0]), (
            option
        )


def test_the_page_of_messages_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "hack/messages"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    assert (done.returncode, done.stderr) == (0, ""), "run hack/messages again"
