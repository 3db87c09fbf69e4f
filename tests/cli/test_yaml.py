"""`-o yaml` prints the document of `-o json`, and no reader takes a text in it for a number."""

import json
from pathlib import Path

import yaml  # type: ignore[import-untyped]

from agent.cli.output import DOCUMENTS
from tests.cli.commands import NO_DAEMON, SmallNode, engine, nodeleak
from tests.wire import FakeServer

NODES = Path(__file__).parents[1] / "nodes"


def test_every_command_with_json_prints_the_same_as_yaml(tmp_path: Path) -> None:
    recordings = [str(NODES / "incident.json"), str(NODES / "api-off.json")]
    for recording in recordings:
        as_json = nodeleak("scan", "-o", "json", "--recording", recording)
        as_yaml = nodeleak("scan", "-o", "yaml", "--recording", recording)
        assert (as_json.code, as_yaml.code) == (0, 0)
        assert yaml.safe_load(as_yaml.out) == json.loads(as_json.out)
    several = nodeleak("scan", "-o", "yaml", "--recording", *recordings).out
    assert len(list(yaml.safe_load_all(several))) == len(recordings)

    with FakeServer(engine) as server:
        node = SmallNode(tmp_path, server)
        schemas = {
            command: yaml.safe_load(nodeleak(command, "-o", "yaml", *options).out)["schema"]
            for command, options in {
                "clean": ["--api=off", *node.options],
                "timeline": ["--api=off", *node.options[:-2]],
                "journal": [f"--state-dir={tmp_path}/state"],
            }.items()
        }
    assert schemas == {name: f"nodeleak.{name}/v1" for name in ("clean", "timeline", "journal")}
    done = nodeleak("status", "-o", "yaml", "--listen=127.0.0.1:1")
    assert (done.code, yaml.safe_load(done.out)["state"]) == (NO_DAEMON, "no_report")
    nodeleak("scan", "-o", "yaml", "--sort-by=age", "--api=off").fails(
        2, "--sort-by and -o yaml cannot be combined"
    )


def test_a_text_stays_a_text_for_every_reader_and_has_no_control_characters() -> None:
    # Readers of YAML 1.2 take 950123456e78 for a number, and those of 1.1 take `on` for true.
    texts = [
        "950123456e78",
        "10.244.1.9",
        "1e3",
        "0x1f",
        "on",
        "null",
        "~",
        "1_000",
        "\x1b[2J\u202e",
        "",
    ]
    document = {"schema": "nodeleak.scan/v1", "texts": texts, "numbers": [1, 2.5, None, True]}
    printed = DOCUMENTS["yaml"](document)
    assert yaml.safe_load(printed) == document
    assert printed.replace("\n", "").isprintable()
    lines = printed.splitlines()
    assert lines[:2] == ["---", 'schema: "nodeleak.scan/v1"']
    for line, text in zip(lines[3:], texts, strict=False):
        assert line[2] in "\"'", text
    long = DOCUMENTS["yaml"]({"why": "word " * 1000})
    assert len(long.splitlines()) == 2, "a folded line cannot be searched"
