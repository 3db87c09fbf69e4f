"""The most common incident: leaks fill the whole range, while a dozen pods run."""

import pytest

from tests.e2e.node import eventually
from tests.e2e.nodeleak import Cleaned

from .node import ModernNode

pytestmark = pytest.mark.e2e
_PODS = 12
_SIZE = 125  # Of the node's pod CIDR
_OLD = ("--grace=0s", "--settle=0s", "--confirm-after=1ms")  # these leaks are seconds old
_SHARE = "implausible_share"


def test_the_first_command_that_is_advised_releases_all_leaks(node: ModernNode) -> None:
    pods = node.pods(_PODS)
    leaked = node.reserve(_SIZE - _PODS)
    (waiting,) = node.ask_for(1)

    told = eventually(lambda: _judged(node, leaked))
    assert told.settings == [], told.verdicts
    done = _clean(node, "--apply")
    assert done.verdicts == dict.fromkeys(leaked, "released")
    node.ready([*pods.values(), waiting])
    assert node.reserved().keys() == {*pods, node.address(waiting)}


def test_without_the_api_server_the_refusal_names_the_option_that_works(node: ModernNode) -> None:
    pods = node.pods(_PODS)
    leaked = node.reserve(_SIZE - _PODS)

    refused = _clean(node, "--apply", "--api=off")
    assert refused.verdicts == dict.fromkeys(leaked, _SHARE)
    assert refused.settings == ["--max-share=100%"]
    assert all("--max-share" in one["setting"] for one in refused.addresses.values())
    assert node.reserved().keys() == {*pods, *leaked}

    done = _clean(node, "--apply", "--api=off", *refused.settings)
    assert done.verdicts == dict.fromkeys(leaked, "released")
    assert node.reserved().keys() == pods.keys()


def _judged(node: ModernNode, leaked: list[str]) -> Cleaned:
    """Return a dry run that judges every leak, and no address of a pod that is about to start."""
    dry = _clean(node)
    assert set(dry.verdicts) == set(leaked)
    assert set(dry.verdicts.values()) <= {"would_release", _SHARE}, dry.verdicts
    return dry


def _clean(node: ModernNode, *options: str) -> Cleaned:
    return node.nodeleak.clean(*_OLD, *options, wrapped=node.inside)
