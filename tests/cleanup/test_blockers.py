"""What a dry run says of the place it runs in: each reason why nothing could be released, and nothing is changed."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.cleanup.blockers import find_blockers
from agent.cleanup.files import NodeFiles
from agent.cleanup.journal_store import JournalStore
from agent.model.release import BlockedBy, Blocker
from agent.model.snapshot import Known, NetworkStore, NotRequested, Snapshot, Unavailable
from tests.builders import guard_context, make_limits, node
from tests.cleanup.stores import in_child, may_mount, mount
from tests.wire import as_nobody, open_directory


def stored(*stores: NetworkStore) -> Snapshot:
    return replace(node(), reservations=stores)


def store(network: str, data_dir: str = "") -> NetworkStore:
    return NetworkStore(network, Known(()), data_dir=data_dir)


def made(networks: Path, *names: str) -> Path:
    for name in names:
        (networks / name).mkdir(parents=True)
    return networks


def check(networks: Path) -> Callable[[str], None]:
    return NodeFiles(networks, [], 0.05, lambda: 0.0).check_writable


def found(networks: Path, *stores: NetworkStore, allowed: str = "auto") -> list[tuple[str, str, str]]:
    limits = make_limits(networks=frozenset(allowed.split(",")))
    context = guard_context(stored(*stores), limits=limits)
    return [(one.by.value, one.network, one.why) for one in find_blockers(context, check(networks))]


def test_where_everything_can_be_written_nothing_is_in_the_way(tmp_path: Path) -> None:
    made(tmp_path, "kubenet")
    before = (tmp_path / "kubenet").stat()
    assert found(tmp_path, store("kubenet")) == []
    assert (tmp_path / "kubenet").stat() == before
    assert list((tmp_path / "kubenet").iterdir()) == [], "no lock file either"


def test_a_read_only_mount_names_the_manifest(tmp_path: Path) -> None:
    may_mount()
    made(tmp_path, "kubenet", "storage")

    def observed() -> list[tuple[str, str, str]]:
        mount("--bind", "-o", "ro", tmp_path, tmp_path)
        return found(tmp_path, store("kubenet"), store("storage"))

    remedy = (
        "to release, create a Job (kubectl nodeleak clean-job, or deploy/clean-one-node.yaml), "
        "or apply deploy/overlays/cleanup-exec with your image"
    )
    assert in_child(observed) == [
        ["network_unwritable", "", f"cannot change {tmp_path / network}: read-only mount: {remedy}"]
        for network in ("kubenet", "storage")
    ]


def test_one_network_of_several_is_named() -> None:
    with open_directory() as networks:
        made(networks, "kubenet", "storage")
        (networks / "kubenet").chmod(0o777)
        with as_nobody():
            (blocker,) = found(networks, store("kubenet"), store("storage"))
            assert blocker[:2] == ("network_unwritable", "storage")
            assert blocker[2] == f"cannot change {networks / 'storage'}: permission denied (run as root)"
            assert found(networks, store("kubenet"), store("storage"), allowed="kubenet") == []


def test_networks_that_nothing_is_released_from_do_not_count(tmp_path: Path) -> None:
    """Their directories do not exist, so a check would fail."""
    unused = NetworkStore("old", NotRequested("reservations", "no pod uses it"))
    unread = NetworkStore("broken", Unavailable("reservations", "it gave no word"))
    fresh = NetworkStore("kubenet", Known(()), absent=True)
    assert found(tmp_path, unused, unread, fresh) == []
    assert found(tmp_path, store("gone")) == [
        ("network_unwritable", "", f"cannot change {tmp_path / 'gone'}: no such file or directory")
    ]


@pytest.mark.parametrize(
    ("known", "by", "why"),
    [
        ({"halted": "released container 9999 reappeared"}, BlockedBy.HALTED, "cleanup halted: released container 9999"),
        ({"journal_trouble": "/x is mounted read-only"}, BlockedBy.JOURNAL_UNWRITABLE, "/x is mounted read-only: "),
        ({"journal_trouble": "/x: gone", "journal_room": 0}, BlockedBy.JOURNAL_UNWRITABLE, "/x: gone"),
        ({"journal_room": 0}, BlockedBy.JOURNAL_FULL, "until its oldest entry is 24 hours old"),
    ],
    ids=["halted", "unwritable", "its room is not known", "full"],
)
def test_each_reason_of_the_guards_is_one_here(
    known: dict[str, object], by: BlockedBy, why: str, tmp_path: Path
) -> None:
    made(tmp_path, "kubenet")
    limits = make_limits()
    (blocker,) = find_blockers(guard_context(stored(store("kubenet")), limits=limits, **known), check(tmp_path))
    assert (blocker.by, blocker.network) == (by, "")
    assert why in blocker.why


def test_without_a_network_to_clean_it_says_so(tmp_path: Path) -> None:
    made(tmp_path, "kubenet")
    context = guard_context(stored(store("kubenet")), limits=make_limits())
    assert find_blockers(context, check(tmp_path), "not set") == (Blocker(BlockedBy.NO_CLEANUP_NETWORK, "not set"),)


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path: Path) -> None:
    may_mount()

    def full() -> str:
        mount("-t", "tmpfs", "-o", "size=8k", "none", tmp_path)
        assert JournalStore(tmp_path / "state").trouble() == ""
        (tmp_path / "filler").write_bytes(b"x" * 8192)
        return JournalStore(tmp_path / "state").trouble()

    assert in_child(full) == f"{tmp_path}: no space left on device"
