"""Reading and classifying a store in one process, compared with a bare loop that lists, opens and reads the same files.

Read: `agent.sources.host.reservations`, as in every sync. Classified: a whole run of `agent.checks.engine` after it,
with one leaked reservation in 18, as on the node of the incident. The bare loop is `os.listdir` and `open(…).read()`.
"""

import os
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from agent.checks import engine
from agent.model.ranges import subnet_range
from agent.model.snapshot import (
    Checkpoint,
    CniResult,
    Container,
    Known,
    NetworkStore,
    NotRequested,
    ProcessStartTimes,
    Snapshot,
)
from agent.sources.host import reservations
from tests.bench.measure import Figure, interleaved, minima, ratio
from tests.fakes.host import write_store
from tests.fakes.nodes import FakeNode, PodSandbox, healthy

_CIDR = "10.64.0.0/15"
_SIZES = {125: 60, 1_000: 30, 10_000: 9, 65_000: 5}
"""Number of reservations: repetitions."""
_ONE_LEAK_IN = 18  # as on the node of the incident: 7 of 125


def figures() -> Iterator[Figure]:
    per_file = {}
    now = datetime.now(UTC)
    for size, rounds in _SIZES.items():
        node = healthy(now, size, _CIDR)
        with tempfile.TemporaryDirectory(prefix="nodeleak-bench-") as root:
            directory = Path(root) / "kubenet"
            directory.mkdir()
            write_store(directory, node.reserved)
            times = minima(
                interleaved(
                    {
                        "bare": partial(_bare_loop, str(directory)),
                        "read": partial(reservations.read_reservations, Path(root), "kubenet"),
                        "classified": partial(_read_and_classify, Path(root), _owners(node), now),
                    },
                    rounds,
                )
            )
        per_file[size] = times["read"] / size
        yield ratio(f"{size:,} reservations: read, against the bare loop", times["read"], times["bare"], 2)
        yield ratio(
            f"{size:,} reservations: read and classified, against the bare loop", times["classified"], times["bare"], 2
        )
    yield ratio(
        "one reservation of 65,000: read, against one of 1,000 (linear: 1x)", per_file[65_000], per_file[1_000], 1.5
    )


def _bare_loop(directory: str) -> None:
    for name in os.listdir(directory):
        open(os.path.join(directory, name)).read()  # noqa: PTH118, PTH123, SIM115 (intentionally the simplest loop)


def _owners(node: FakeNode) -> tuple[Container, ...]:
    """Return the containers of a node on which a few sandboxes lost theirs."""
    return tuple(_container(sandbox) for number, sandbox in enumerate(node.running) if number % _ONE_LEAK_IN)


def _container(sandbox: PodSandbox) -> Container:
    return Container(sandbox.id, "running", 0, f"{sandbox.namespace}/{sandbox.pod}", sandbox.uid, sandbox=True)


def _read_and_classify(networks: Path, containers: tuple[Container, ...], now: datetime) -> None:
    snapshot = _snapshot(reservations.read_reservations(networks, "kubenet"), containers, now)
    engine.run(snapshot, None, grace=timedelta(minutes=5), confirm_after=timedelta(0))


def _snapshot(store: NetworkStore, containers: tuple[Container, ...], now: datetime) -> Snapshot:
    """Return a snapshot in which everything except the store is trivial."""
    ranges = ((subnet_range(_CIDR),),)
    no_checkpoints: Known[tuple[Checkpoint, ...]] = Known(())
    return Snapshot(
        node_name="worker-1",
        taken_at=now,
        uptime=timedelta(days=3),
        reservations=(store,),
        checkpoints=no_checkpoints,
        containers=Known(containers),
        cni_results=Known((CniResult("kubenet", "0" * 64, "eth0", "", ranges, "", 0),)),
        addresses=Known(()),
        pods=NotRequested("pods", "not measured"),
        node=NotRequested("node", "not measured"),
        processes=Known(
            ProcessStartTimes(now - timedelta(days=3), "", now - timedelta(hours=9), now - timedelta(hours=9))
        ),
    )
