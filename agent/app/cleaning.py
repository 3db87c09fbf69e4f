"""Who may release addresses, and who puts them back."""

from collections.abc import Callable
from contextlib import ExitStack

from agent.app import loop
from agent.app.sources import node_name
from agent.checks import engine
from agent.cleanup import restore as restoring
from agent.cleanup.book import Book, Busy
from agent.cleanup.cleaner import Cleaner, DryRun, Live, Off
from agent.cleanup.files import Actuator
from agent.cleanup.journal import Entry, Journal
from agent.cleanup.release import said
from agent.cleanup.restore import Restoration
from agent.cleanup.session import Budget, Judge
from agent.cleanup.signals import deferred
from agent.config import Config, UsageError, option, variable
from agent.model.release import Cleaning, Limits
from agent.model.snapshot import Unread
from agent.sources.error import Unavailable
from agent.sources.live import LiveSources


def cleaner(
    config: Config,
    mode: str,
    by: str,
    sources: LiveSources,
    limits: Limits,
    budget: Budget,
    alive: Callable[[], None] = lambda: None,
) -> Cleaner:
    """Wire who may clean: `off`, `dry-run` or `auto`. `by`: who the journal says it was. `alive`: see Live."""
    book = Book(config.state_dir)
    judge = Judge(limits, budget, book, by)
    match mode:
        case "off":
            return Off()
        case "dry-run":
            return DryRun(judge)
        case _:
            patience = config.lock_timeout.total_seconds()
            return Live(judge, sources, lambda: actuator(config), book, loop.wall, patience, alive)


def limits(config: Config, only: frozenset[str] | None = None) -> Limits:
    """`only`: the addresses that were asked for by name."""
    return Limits(
        networks=frozenset(config.cleanup_network),
        grace=config.grace,
        settle=config.settle,
        max_share=config.max_share,
        only=only,
    )


def actuator(config: Config) -> Actuator:
    return Actuator(
        config.cni_networks_dir, config.cni_cache_dir, config.lock_timeout.total_seconds(), loop.clock
    )  # fmt: skip


def clean_once(
    config: Config,
    sources: LiveSources,
    until_told: ExitStack,
    *,
    only: frozenset[str] | None,
    most: int | None,
    mode: str,
) -> Cleaning:
    """Look twice, judge, and release what may be released in this mode (`dry-run` or `auto`).

    `until_told`: from the first release until it is closed, an ending waits.
    """
    budget = Budget(per_round=None if most is None else ("--max", most))
    one = cleaner(config, mode, "clean", sources, limits(config, only), budget)
    one.before_look(loop.wall())
    looks = loop.look_twice(sources, node_name(config), config.grace, config.confirm)
    until_told.enter_context(deferred())
    cleaning = one.after_look(looks, engine.replay(looks, patience=config.grace, period=config.confirm))
    if cleaning is None:
        raise ValueError(mode)
    return cleaning


def read_journal(config: Config) -> Journal:
    try:
        return Book(config.state_dir).read()
    except Unavailable as error:
        raise UsageError(f"{option('state_dir')} ({variable('state_dir')}): {error}") from error


def releases(config: Config) -> tuple[tuple[Entry, ...] | Unread, tuple[str, ...]]:
    """Return what a timeline tells of the journal, which may be silent as any other record may, and its damage."""
    try:
        journal = Book(config.state_dir).read()
    except Unavailable as error:
        return Unread("journal", str(error)), ()
    return journal.entries, journal.damage


def restore(config: Config, entry: Entry) -> Restoration:
    """Put an entry back, as the only cleaner of the node."""
    book = Book(config.state_dir)
    try:
        with book.alone(config.lock_timeout.total_seconds()), deferred():
            _check_last(book.read(), entry)
            return restoring.restore(entry, actuator(config), book, loop.wall())
    except (Busy, OSError, restoring.Refused, Unavailable) as error:
        return Restoration(entry, done=False, why=said(error))


def try_restore(config: Config, entry: Entry) -> Restoration:
    """Say what restoring would do, and touch nothing."""
    try:
        _check_last(read_journal(config), entry)
        restoring.missing_of(entry, actuator(config))
    except (restoring.Refused, OSError) as error:
        return Restoration(entry, done=False, why=said(error))
    return Restoration(entry, done=True)


def _check_last(journal: Journal, entry: Entry) -> None:
    if later := journal.released_again(entry):
        raise restoring.Refused(f"it was restored, and released again since: restore {later.name}")
