"""The last-seen Node on disk: rarely written, and exactly when it matters."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from agent.checks import engine
from agent.model.documents import LAST_SEEN_FILE, load_last_seen
from agent.model.registration import LastSeen, Removal
from agent.model.report import Report
from agent.state.stores import LastSeenExporter
from tests.builders import INSTANCE, last_seen, node, registration, unavailable

NOTHING, FRESH = timedelta(0), timedelta(minutes=10)


def report(
    ago: timedelta,
    provider_id: str = INSTANCE,
    removal: Removal = Removal.NONE,
    in_use: timedelta | None = None,
    **changes: Any,
) -> Report:
    last = last_seen(ago, provider_id=provider_id, removal=removal, in_use=in_use)
    snapshot = node(registration=registration(last), **changes)
    return engine.run(snapshot, None, grace=NOTHING, confirm_after=NOTHING)[0]


def stored(state_dir: Path) -> LastSeen:
    return load_last_seen((state_dir / LAST_SEEN_FILE).read_text())


def test_the_record_is_stored_and_updated_but_not_in_every_sync(tmp_path: Path) -> None:
    """Nor while a cordoned node is in use."""
    for removal, is_used in ((Removal.NONE, False), (Removal.CORDONED, True)):
        state_dir = tmp_path / removal.name
        exporter = LastSeenExporter(state_dir)
        later = (FRESH, FRESH - timedelta(seconds=15), timedelta(seconds=1))
        for ago, expected in (*((ago, FRESH) for ago in later), (NOTHING, NOTHING)):
            exporter.export(report(ago, removal=removal, in_use=ago if is_used else None), 0.1)
            used = expected if is_used else None
            assert stored(state_dir) == last_seen(expected, removal=removal, in_use=used)


def test_another_provider_id_and_a_cordon_are_stored_at_once(tmp_path: Path) -> None:
    exporter = LastSeenExporter(tmp_path)
    exporter.export(report(timedelta(seconds=15)), 0.1)
    for ago, removal in enumerate((Removal.NONE, Removal.DRAINED, Removal.CORDONED, Removal.NONE)):
        exporter.export(report(timedelta(seconds=ago), "kind://b", removal), 0.1)
        assert stored(tmp_path) == last_seen(
            timedelta(seconds=ago), provider_id="kind://b", removal=removal
        )


def test_the_time_of_disappearance_is_stored_once_and_a_sync_without_a_record_changes_nothing(
    tmp_path: Path,
) -> None:
    exporter = LastSeenExporter(tmp_path)
    exporter.export(report(timedelta(minutes=2)), 0.1)
    exporter.export(report(timedelta(minutes=1), node=[]), 0.1)
    before = (tmp_path / LAST_SEEN_FILE).stat().st_ino
    exporter.export(report(timedelta(minutes=1), node=[]), 0.1)
    for incomplete in (
        node(registration=unavailable("registration")),
        node(registration=registration()),
    ):
        exporter.export(engine.run(incomplete, None, grace=NOTHING, confirm_after=NOTHING)[0], 0.1)
    assert (tmp_path / LAST_SEEN_FILE).stat().st_ino == before
    assert stored(tmp_path) == last_seen(timedelta(minutes=1))
