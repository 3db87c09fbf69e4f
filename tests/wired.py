"""What the agent reads from the files of a node: every source with the reader that a command gives it."""

from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from agent.app.cleaning import recheck_of
from agent.app.sources import for_command
from agent.cleanup.recheck import Recheck
from agent.config import Config, load
from agent.model.snapshot import Snapshot
from agent.sources.source import Sources
from agent.sources.source_error import SourceError
from tests.sources.reading import HEALTHY, value_of

_NOWHERE: Final = {
    name: f"/nonexistent/{name}"
    for name in (
        "proc",
        "cni_networks_dir",
        "cni_cache_dir",
        "cni_config_dir",
        "checkpoint_dir",
        "run_dir",
        "state_dir",
    )
}


class Wired(NamedTuple):
    """What a snapshot and the recheck of a release read."""

    snapshot: Sources
    recheck: Recheck


def of_config(config: Config) -> Wired:
    sources = for_command(config)
    return Wired(sources.snapshot, recheck_of(config, sources.readers))


def wired(**options: object) -> Wired:
    """Wire a node with docker and without an API server. A directory that no option gives does not exist."""
    others = {"api": "off", "runtime": "docker", "device_plugins_dir": "off", "kubelet_dir": "off"}
    return of_config(
        load("scan", _NOWHERE | others | {name: str(value) for name, value in options.items()}, {})
    )


def read(source: str, so_far: Snapshot = HEALTHY, /, **options: object) -> Any:
    """Read one source; `so_far`: what was read before it."""
    return value_of(wired(**options).snapshot, source, so_far)


def why_unavailable(source: str, so_far: Snapshot = HEALTHY, /, **options: object) -> str:
    """Return why a source cannot be read."""
    with pytest.raises(SourceError) as raised:
        read(source, so_far, **options)
    return str(raised.value)


def sample(name: str, number: int = 0) -> str:
    """Return real text that a fuzzer starts with."""
    return (Path(__file__).parent / f"fuzz/samples/{name}/{number}").read_text()


def process_table(proc: Path, *commands: str) -> Path:
    """Write a process table with these processes from ID 7, all started half a second after the boot."""
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("b-1\n")
    (proc / "stat").write_text("btime 1700000000\n")
    for pid, command in enumerate(commands, 7):
        (proc / str(pid)).mkdir()
        (proc / f"{pid}/stat").write_text(f"{pid} ({command}) S {'0 ' * 18}50 0\n")
        (proc / f"{pid}/mountinfo").touch()
    return proc
