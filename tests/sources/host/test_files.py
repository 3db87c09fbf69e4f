"""What is larger than any node has it is not read in part: the source says so."""

import os
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.wired import process_table, read, why_unavailable


def test_a_directory_with_too_many_entries_is_not_read_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = process_table(tmp_path / "proc", "dockerd")
    scandir: Any = os.scandir

    def endless(path: Any) -> Any:
        """Find entries without an end in what is read through an open handle."""
        return (
            closing(SimpleNamespace(name=str(n)) for n in count())
            if isinstance(path, int)
            else scandir(path)
        )

    monkeypatch.setattr(os, "scandir", endless)
    why = f"{tmp_path} has more than 262,144 entries and was not read: find out what fills it"
    for source, option in (
        ("cni_results", "cni_cache_dir"),
        ("checkpoints", "checkpoint_dir"),
        ("device_plugins", "device_plugins_dir"),
        ("networks", "cni_config_dir"),
    ):
        assert why_unavailable(source, proc=proc, network="auto", **{option: tmp_path}) == why
    several = {
        "cni_networks_dir": tmp_path.parent,
        "network": tmp_path.name,
        "max_reservations": 65_536,
    }
    (store,) = read("reservations", **several)
    assert store.reading.why == why
