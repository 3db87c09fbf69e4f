"""What is said of the place that a dry run runs in: each reason why nothing could be released. Nothing is changed."""

from dataclasses import replace
from pathlib import Path

from agent.cleanup.summary import find_blockers
from agent.cleanup.unlink import NodeFiles
from agent.model.release import BlockedBy, Blocker
from agent.model.snapshot import Known, NetworkStore, NotRequested, Unavailable
from tests.builders import guard_context, make_limits, node, unrecognized, without
from tests.cleanup.leaks import LEAK, THE_IP, only
from tests.cleanup.stores import in_child, may_mount, mount
from tests.cleanup.syncs import Daemon
from tests.wire import as_nobody, open_directory


def store(network: str) -> NetworkStore:
    return NetworkStore(network, Known(()))


def found(
    networks: Path, *stores: NetworkStore, allowed: str = "auto", no_network: str = "", full: str = "", **known: str
) -> list[Blocker]:
    for network in ("kubenet", "storage"):
        (networks / network).mkdir(exist_ok=True)
    snapshot = replace(node(), reservations=stores or (store("kubenet"),))
    context = guard_context(snapshot, limits=make_limits(networks=frozenset(allowed.split(","))), **known)
    writable = NodeFiles(networks, (), 0.05, lambda: 0.0).check_writable
    return list(find_blockers(context, writable, no_network=no_network, journal_full=full))


def test_where_everything_can_be_written_nothing_is_in_the_way(tmp_path: Path) -> None:
    assert found(tmp_path) == []
    assert list((tmp_path / "kubenet").iterdir()) == [], "no lock file either"


def test_a_read_only_mount_says_what_to_do(tmp_path: Path) -> None:
    may_mount()
    assert found(tmp_path) == []

    def observed() -> list[list[str]]:
        mount("--bind", "-o", "ro", tmp_path, tmp_path)
        return [
            [blocker.by.value, blocker.network, blocker.why]
            for blocker in found(tmp_path, store("kubenet"), store("storage"))
        ]

    for (by, network, why), name in zip(in_child(observed), ("kubenet", "storage"), strict=True):
        assert (by, network) == ("network_unwritable", "")
        assert why.startswith(f"cannot change {tmp_path / name}: read-only mount: to release, create a Job (kubectl ")


def test_one_network_of_several_is_named() -> None:
    with open_directory() as networks:
        assert found(networks) == []
        (networks / "kubenet").chmod(0o777)
        with as_nobody():
            (blocker,) = found(networks, store("kubenet"), store("storage"))
            assert found(networks, store("kubenet"), store("storage"), allowed="kubenet") == []
        assert (blocker.by, blocker.network) == (BlockedBy.NETWORK_UNWRITABLE, "storage")
        assert blocker.why == f"cannot change {networks / 'storage'}: permission denied (run as root)"


def test_networks_that_nothing_is_released_from_do_not_count(tmp_path: Path) -> None:
    """Their directories do not exist, so a check would fail."""
    unused = NetworkStore("old", NotRequested("reservations", "no pod uses it"))
    unread = NetworkStore("broken", Unavailable("reservations", "it gave no word"))
    fresh = NetworkStore("new", Known(()), absent=True)
    assert found(tmp_path, unused, unread, fresh) == []
    assert [blocker.by for blocker in found(tmp_path, store("gone"))] == [BlockedBy.NETWORK_UNWRITABLE]


def test_each_other_reason_is_one(tmp_path: Path) -> None:
    (halted,) = found(tmp_path, halted="released container 9999 reappeared")
    assert halted == Blocker(BlockedBy.HALTED, "cleanup halted: released container 9999 reappeared")
    (journal,) = found(tmp_path, journal_trouble="/x is mounted read-only", full="until then")
    assert (journal.by, journal.why.startswith("cannot use the journal: /x is mounted read-only: ")) == (
        BlockedBy.JOURNAL_UNWRITABLE, True,
    )  # fmt: skip
    assert found(tmp_path, full="until then") == [Blocker(BlockedBy.JOURNAL_FULL, "until then")]
    assert found(tmp_path, no_network="not set") == [Blocker(BlockedBy.NO_CLEANUP_NETWORK, "not set")]


def test_an_address_requested_by_name_without_anything_to_release_is_explained() -> None:
    daemon = Daemon(limits=only(THE_IP, "10.244.1.2", "10.244.1.77", "10.244.1.99"))
    cleaning = daemon.sync(LEAK, unrecognized("10.244.1.77", blocks=True))
    assert [(address.ip, address.network, address.why) for address in cleaning.not_releasable] == [
        ("10.244.1.2", "kubenet", "in use: its container is running"),
        ("10.244.1.77", "kubenet", "unrecognized: it is a directory"),
        ("10.244.1.99", "", "not reserved"),
    ]
    assert Daemon().sync(LEAK).not_releasable == ()
    unread = without(node(LEAK), "reservations")
    context = guard_context(unread, limits=only(THE_IP))
    (incomplete,) = Daemon(limits=only(THE_IP)).cleaner.after_snapshot((unread,), context.report).not_releasable
    assert incomplete.why == "not known: cannot read network kubenet"
