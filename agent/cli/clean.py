"""nodeleak clean: release leaked addresses, or say which could be released."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from typing import Final

from agent.app.cleaning import clean_once
from agent.app.sources import for_command
from agent.cli.node import remembered_pods
from agent.cli.output import (
    BLOCKED,
    DOCUMENTS,
    DONE,
    FAILED,
    INTERRUPTED,
    OUTPUT,
    UNAVAILABLE,
    progress,
    warn,
    write,
)
from agent.cli.parser import add_address_table, add_apply, config_of, value, view_of
from agent.config import UsageError, positive
from agent.exporters.json.clean import clean_document
from agent.exporters.text.clean import clean_names, clean_table
from agent.exporters.text.layout import TableView, by_reason
from agent.model import bug
from agent.model.release import BlockedBy, Cleaning, Reason, Verdict

HELP: Final = """\
It prints for each address without a container whether it can be released, or why not. Without
--apply it changes nothing. A release takes host-local's own lock, and 'nodeleak restore' undoes it.

examples:
  kubectl exec -n kube-system POD -- nodeleak clean
  nodeleak clean --api=off                on the node, without credentials
  nodeleak clean --api=off --apply --cleanup-network=auto     release the leaks
  nodeleak clean --node worker-1 --kubeconfig /etc/kubernetes/kubelet.conf

exit codes:
  0  done, also if there was nothing to release or every release was refused
  2  wrong usage or configuration; nothing was released
  3  some data are unavailable; nothing was released
  4  a release failed; its address is still reserved
  5  interrupted by a signal; the output lists what was released
  6  dry run: nothing can be released from here, such as from a read-only pod;
     the first lines say what to do
  70 a bug in nodeleak; 'nodeleak journal' lists what was released before
  74 cannot write the output (releases are in the journal), or the journal
"""


def _write_table(cleaning: Cleaning, view: TableView, arguments: argparse.Namespace) -> None:
    write(clean_table(cleaning, view, verbose=arguments.verbose))


def _write_names(cleaning: Cleaning, view: TableView, _: argparse.Namespace) -> None:
    write(clean_names(cleaning, view))
    warn(*(blocker.why for blocker in cleaning.blockers))
    warn(*by_reason(clean_document(cleaning)["unavailable"]))


def _write_document(cleaning: Cleaning, view: TableView, arguments: argparse.Namespace) -> None:
    write(DOCUMENTS[arguments.output](clean_document(cleaning, view.release)))


_FORMATS: Final[Mapping[str, Callable[[Cleaning, TableView, argparse.Namespace], None]]] = {
    "table": _write_table,
    "wide": _write_table,
    "name": _write_names,
    **dict.fromkeys(DOCUMENTS, _write_document),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_apply(parser, "release every address that passes all guards; needs --cleanup-network")
    add = parser.add_argument
    text = "only this address, even outside the range; repeat it for more addresses"
    add("--ip", type=value(_addresses), action="extend", metavar="ADDRESS", help=text)
    text = "release at most N addresses, oldest first (default: all)"
    add("--max", type=value(positive), metavar="N", help=text)
    add_address_table(parser, _FORMATS, ("ip", "age", "verdict", "cause", "pod"))
    text = "list each address, and every reason with its addresses ('nodeleak explain REASON')"
    add("-v", "--verbose", action="store_true", help=text)


def _addresses(text: str) -> list[str]:
    """Read addresses, and write them as host-local does."""
    try:
        return [str(ip_address(address.strip())) for address in text.split(",")]
    except ValueError:
        raise ValueError("expected an IP address such as 10.244.1.9") from None


def execute(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    view = view_of(arguments)
    if arguments.apply and view.release.by_job and not config.cleanup_network:
        raise UsageError(view.release.only_by_job(config.node))

    sources = for_command(config)
    # Before the cleanup: afterwards, the daemon forgets the pods of addresses that were released.
    pods = remembered_pods(config)

    with ExitStack() as until_written:
        with progress("taking two snapshots of the node"), _explained_bugs(arguments):
            cleaning = clean_once(
                config,
                sources,
                until_written,
                only=None if arguments.ip is None else frozenset(arguments.ip),
                limit=arguments.max,
                dry_run=not arguments.apply,
            )
        _FORMATS[arguments.output](cleaning.with_pods(pods), view, arguments)

    for each in cleaning.bugs:
        warn(*each.traceback.splitlines(), prefix="")
    return bug.EXIT_CODE if cleaning.bugs else _exit_code(cleaning)


@contextmanager
def _explained_bugs(arguments: argparse.Namespace) -> Iterator[None]:
    """If a bug ends a cleanup before its output, say where its releases are listed."""
    try:
        yield
    except UsageError:
        raise
    except Exception:
        if arguments.apply:
            warn("a bug ended this cleanup: 'nodeleak journal' lists what it has released")
        raise


def _exit_code(cleaning: Cleaning) -> int:
    if cleaning.unavailable:
        return UNAVAILABLE
    # The first refusal is the most important one.
    reasons = {outcome.refusals[0].reason for outcome in cleaning.outcomes if outcome.refusals}
    if not cleaning.dry_run and Reason.JOURNAL_UNWRITABLE in reasons:
        return OUTPUT

    if cleaning.failed:
        return FAILED
    if cleaning.tally()[Verdict.INTERRUPTED]:
        return INTERRUPTED

    # An option names the networks: the command that the output advises has it.
    is_blocked = any(
        not blocker.network and blocker.by is not BlockedBy.NO_CLEANUP_NETWORK
        for blocker in cleaning.blockers
    )
    return BLOCKED if is_blocked else DONE
