"""clean: list the leaked addresses that can be released, and release them on request."""

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, TypeVar

from agent.cli.exit_codes import BLOCKED, DONE, FAILED, INTERRUPTED, OUTPUT, UNAVAILABLE
from agent.cli.options import add_address_table, add_apply, config_of, view_of
from agent.cli.output import progress, warn, write, write_json
from agent.cli.owners import remembered_pods
from agent.config import Config, UsageError, invalid, positive

if TYPE_CHECKING:
    from agent.model.release import Cleaning

_T = TypeVar("_T")

SUMMARY: Final = "list leaked addresses that can be released; --apply releases them"
OPERANDS: Final = ""
SETTINGS: Final = "clean"
DESCRIPTION: Final = """\
Prints for each address without a container whether it can be released, or why not. Without --apply
it changes nothing. A release takes host-local's own lock, and 'nodeleak restore' undoes it.
"""
EPILOG: Final = """\
examples:
  kubectl exec -n kube-system POD -- nodeleak clean
  nodeleak clean --node worker-1 --kubeconfig /etc/kubernetes/kubelet.conf
  nodeleak clean --api=off --cleanup-network auto --apply   release the leaks

exit codes:
  0  done, also if there was nothing to release or every release was refused
  2  wrong usage or configuration; nothing was released
  3  some data are unavailable; nothing was released
  4  a release failed; its address is still reserved
  5  interrupted by a signal; the output lists what was released
  6  dry run: no release is possible here; the first lines of the output say why
  74 cannot write the output (releases are in the journal), or the journal
"""


CLEAN_ORDERS: Final = ("ip", "age", "verdict", "cause", "pod")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_apply(parser, "release every address that passes all guards; needs --cleanup-network")
    parser.add_argument(
        "--ip",
        action="append",
        metavar="ADDRESS",
        help="only this address, even outside the range; repeat it for more addresses",
    )
    parser.add_argument("--max", metavar="N", help="release at most N addresses, oldest first (default: all)")
    add_address_table(parser, CLEAN_ORDERS)
    text = "list every reason with its addresses ('nodeleak explain REASON')"
    parser.add_argument("-v", "--verbose", action="store_true", help=text)


def execute(arguments: argparse.Namespace) -> int:
    from agent.app.cleaning import clean_once
    from agent.app.sources import for_command

    (config, only, most), view = _options(arguments), view_of(arguments)
    mode = "auto" if arguments.apply else "dry-run"
    sources = for_command(config)
    # Before the cleanup: afterwards, the daemon forgets the pods of addresses that were released.
    pods = remembered_pods(config)
    with ExitStack() as until_written:
        with progress("taking two snapshots of the node"):
            cleaning = clean_once(config, sources, until_written, only=only, most=most, mode=mode).with_pods(pods)
        if arguments.output == "json":
            from agent.exporters.json.clean import clean_document

            write_json(clean_document(cleaning))
        elif arguments.output == "name":
            from agent.exporters.text.clean import clean_names
            from agent.exporters.text.unavailable import by_reason

            write(clean_names(cleaning, view))
            warn(*[one.why for one in cleaning.blockers], *by_reason(cleaning.unavailable))
        else:
            from agent.exporters.text.clean import clean_table

            write(clean_table(cleaning, view, verbose=arguments.verbose))
    return _exit_code(cleaning)


def _exit_code(cleaning: "Cleaning") -> int:
    if cleaning.unavailable:
        return UNAVAILABLE
    if cleaning.applied and cleaning.journal_unwritable:
        return OUTPUT
    if cleaning.failed:
        return FAILED
    if cleaning.interrupted:
        return INTERRUPTED
    return BLOCKED if cleaning.blocked else DONE


def _options(arguments: argparse.Namespace) -> tuple[Config, frozenset[str] | None, int | None]:
    """Read the configuration, `--ip` and `--max`; raises UsageError with every mistake."""
    mistakes: list[str] = []
    config = _collect(mistakes, lambda: config_of("clean", arguments))
    only = _collect(mistakes, lambda: _addresses(arguments.ip))
    most = _collect(mistakes, lambda: _maximum(arguments.max))
    if config is None or mistakes:
        raise UsageError("\n".join(mistakes))
    return config, only, most


def _collect(mistakes: list[str], read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except UsageError as error:
        mistakes.append(str(error))
        return None


def _addresses(given: list[str] | None) -> frozenset[str] | None:
    """Return addresses as host-local writes them."""
    if given is None:
        return None
    addresses, mistakes = set(), []
    for text in (part.strip() for one in given for part in one.split(",")):
        try:
            addresses.add(str(ip_address(text)))
        except ValueError:
            mistakes.append(invalid("--ip", text, ValueError("expected an IP address such as 10.244.1.9")))
    if mistakes:
        raise UsageError("\n".join(mistakes))
    return frozenset(addresses)


def _maximum(text: str | None) -> int | None:
    try:
        return None if text is None else positive(text)
    except ValueError as error:
        raise UsageError(invalid("--max", text or "", error)) from error
