"""How addresses are released from here, by the environment and the settings of a command."""

from collections.abc import Mapping
from typing import Final

from agent.config import Config, load, variable
from agent.exporters.release_commands import Release
from agent.model.release import Limits
from agent.model.settings import AUTO

_LIMITS: Final = ("cleanup_network", "grace", "settle", "max_share", "probe")
"""The settings that say what the next command releases."""


def release_here(
    environment: Mapping[str, str],
    options: tuple[str, ...] = (),
    *,
    config: Config | None = None,
) -> Release:
    """Return how to release: on a node, in a pod that may, or from outside.

    `config`: the settings of the next command; None: those of its environment. Raises UsageError.
    """
    if config is None:
        names = {variable(name) for name in _LIMITS} & environment.keys()
        config = load("version", {}, {name: environment[name] for name in names})

    in_pod = "KUBERNETES_SERVICE_HOST" in environment
    has_networks = bool(environment.get(variable("cleanup_network")))

    return Release(
        in_pod=in_pod,
        by_job=in_pod and not has_networks,
        options=options,
        has_networks=has_networks,
        limits=Limits(
            networks=frozenset(config.cleanup_network or {AUTO}),
            grace=config.grace,
            settle=config.settle,
            max_share=config.max_share,
        ),
        probes=config.probe == "on",
    )
