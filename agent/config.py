"""Every knob, its unit and its reason. Text in, one frozen record out, or everything that is wrong with it at once."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from agent.model.registration import Expected

PREFIX: Final = "NODELEAK_"

BUG: Final = 70
"""Exit code of a process that ends by a fault of its own (EX_SOFTWARE)."""


class UsageError(Exception):
    """The user has to change something: all of it, a line each, with the setting, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: how its text is read, and how it is explained."""

    parse: Callable[[str], Any]
    default: str
    group: str
    metavar: str
    help: str
    commands: frozenset[str] = frozenset({"run", "scan", "record", "clean"})
    many: bool = False


WHERE, BELIEF, CLEANUP, DAEMON = "where to look", "what to believe", "what to release", "the daemon"
_RUN = frozenset({"run"})
_CLEANING = frozenset({"run", "clean"})
_WRITING = frozenset({"run", "clean", "restore"})
_STATE = _WRITING | {"journal", "scan", "record"}
_EVERYWHERE = frozenset({"run", "scan", "record", "clean", "restore"})


def _setting(default: str, parse: Callable[[str], Any], group: str, metavar: str, text: str, **more: Any) -> Any:
    return field(metadata={"knob": Setting(parse, default, group, metavar, text, **more)})


_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> timedelta:
    """Read `90s`, `5m`, `1h30m`: numbers with units, never a bare number of something."""
    if not text or _SPAN.sub("", text):
        raise ValueError("say a span with its unit, such as 90s, 5m or 1h30m")
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in _SPAN.findall(text)))
    except OverflowError as error:
        raise ValueError("that is longer than any node lives") from error


def duration_between(least: str, most: str) -> Callable[[str], timedelta]:
    """Return what reads a span that is neither shorter nor longer."""

    def parse(text: str) -> timedelta:
        period = duration(text)
        if not duration(least) <= period <= duration(most):
            raise ValueError(f"it must be from {least} to {most}")
        return period

    return parse


short_duration = duration_between("1ms", "1h")


def path(text: str) -> Path:
    if not text.startswith("/"):
        raise ValueError("say an absolute path")
    return Path(text)


def optional_path(text: str) -> Path | None:
    return Path(text) if text else None


def path_or_off(text: str) -> Path | None:
    return None if text == "off" else path(text)


def network_name(text: str) -> str:
    """Read a network's name: it becomes a directory's name, and libcni's own rule is as strict."""
    if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*", text):
        raise ValueError("a CNI network's name has letters, digits, dots, dashes and underscores only")
    return text


def node_name(text: str) -> str:
    if text and not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", text):
        raise ValueError("a node's name has lower-case letters, digits, dots and dashes only")
    return text


def one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"say one of: {', '.join(words)}")
        return text

    return parse


def percentage(text: str) -> float:
    """Read `50%`: never a bare number of something."""
    matched = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)%", text)
    if matched is None or float(matched[1]) > 100:  # noqa: PLR2004 (percent)
        raise ValueError("say a percentage from 0% to 100%, with its sign")
    return float(matched[1]) / 100


def positive(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", text):
        raise ValueError("say a whole number of 1 or more")
    return int(text)


def listen(text: str) -> tuple[str, int]:
    """Read `host:port`; an empty host is every address, an IPv6 host is in brackets."""
    matched = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]*)):(\d{1,5})", text)
    if matched is None or not 0 <= int(matched[3]) <= 65535:  # noqa: PLR2004 (the range of a port)
        raise ValueError("say HOST:PORT, such as :9747, 127.0.0.1:9747 or [::1]:9747")
    return matched[1] or matched[2] or "", int(matched[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    node: str = _setting(
        "",
        node_name,
        WHERE,
        "NAME",
        "name of this node's Node object; in a pod, from the downward API (spec.nodeName). "
        "There is no default on purpose: a wrong one would look for another node's pods",
    )
    network: tuple[str, ...] = _setting(
        "kubenet",
        network_name,
        WHERE,
        "NAME",
        "CNI network whose reservations are read, by the name of its directory; may be given again",
        many=True,
    )
    cni_networks_dir: Path = _setting(
        "/var/lib/cni/networks",
        path,
        WHERE,
        "DIR",
        "where host-local keeps its reservations (its dataDir)",
        commands=_EVERYWHERE,
    )
    cni_cache_dir: tuple[Path, ...] = _setting(
        "/var/lib/cni/cache/results,/var/lib/cni/results",
        path,
        WHERE,
        "DIR",
        "where libcni keeps its results: they tell which pod an id belonged to; may be given again",
        commands=_EVERYWHERE,
        many=True,
    )
    checkpoint_dir: tuple[Path, ...] = _setting(
        "/var/lib/dockershim/sandbox,/var/lib/cri-dockerd/sandbox",
        path,
        WHERE,
        "DIR",
        "where the kubelet keeps its sandbox checkpoints; may be given again",
        many=True,
    )
    device_plugins_dir: Path | None = _setting(
        "/var/lib/kubelet/device-plugins",
        path_or_off,
        WHERE,
        "DIR|off",
        "where the kubelet and its device plugins meet; off: do without. A directory that does not exist is a fault "
        "only on a node with devices",
    )
    kubelet_dir: Path | None = _setting(
        "/var/lib/kubelet",
        path_or_off,
        WHERE,
        "DIR|off",
        "the kubelet's directory, at the path that it has on the node: its notes tell which volumes are mounted. Read "
        "only while the node's status misses a volume; off: do without",
    )
    state_dir: Path = _setting(
        "/var/lib/nodeleak",
        path,
        WHERE,
        "DIR",
        "where the agent keeps its own: the journal of releases (in journal/), the lock of the node's one cleaner, "
        "the history of the device plugins, and the Node as it was last seen",
        commands=_STATE,
    )
    docker_host: str = _setting(
        "", str, WHERE, "URL", "docker engine, such as unix:///run/docker.sock; default: DOCKER_HOST, then docker's own"
    )
    docker_timeout: timedelta = _setting(
        "5s", short_duration, WHERE, "SPAN", "how long one answer of docker may take; a docker that hangs is unread"
    )
    proc: Path = _setting("/proc", path, WHERE, "DIR", "the node's process table (the host's /proc; needs hostPID)")
    api: str = _setting(
        "on",
        one_of("on", "off"),
        WHERE,
        "on|off",
        "off: judge without the API server, on a node without credentials; "
        "verdicts then rest on docker, checkpoints and network namespaces",
    )
    kubeconfig: Path | None = _setting(
        "",
        optional_path,
        WHERE,
        "FILE",
        "credentials for the API server (the kubelet's own will do); default: the service account, then KUBECONFIG",
    )
    api_timeout: timedelta = _setting(
        "10s", short_duration, WHERE, "SPAN", "how long one answer of the API server may take"
    )
    grace: timedelta = _setting(
        "5m",
        duration,
        BELIEF,
        "SPAN",
        "how old an ownerless reservation must be to be called leaked; 0s is safe on docker, where a sandbox exists "
        "before its address is reserved",
    )
    confirm_after: timedelta = _setting(
        "",
        duration_between("0s", "1d"),
        BELIEF,
        "SPAN",
        "how long trouble must last to be believed. scan: the time between its two looks (default 5ms); "
        "clean: the same (default 3s); run: the age of a finding, seen in every round (default 30s)",
    )
    stale_after: timedelta = _setting(
        "2m",
        duration_between("2s", "1d"),
        BELIEF,
        "SPAN",
        "how long the API server may be silent before what it said last is no longer believed",
        commands=_RUN,
    )
    provider_id: Expected = _setting(
        "auto",
        lambda text: Expected(one_of(*Expected)(text)),
        BELIEF,
        "auto|required|ignored",
        "whether the Node must have a provider ID, without which a cluster-autoscaler deletes the instance; auto: "
        "where the cluster is seen to use a cloud; ignored: on bare metal, or where nobody deletes instances",
    )
    cleanup: str = _setting(
        "off",
        one_of("off", "dry-run", "auto"),
        CLEANUP,
        "off|dry-run|auto",
        "off: only look; dry-run: say what would be released, and touch nothing; auto: release confirmed leaks that "
        "pass every guard",
        commands=_RUN,
    )
    cleanup_network: tuple[str, ...] = _setting(
        "kubenet",
        network_name,
        CLEANUP,
        "NAME",
        "CNI network whose addresses may be released; its sandboxes must be this docker's. May be given again",
        commands=_CLEANING,
        many=True,
    )
    settle: timedelta = _setting(
        "5m",
        duration_between("0s", "1d"),
        CLEANUP,
        "SPAN",
        "how long the node, the kubelet and docker must have run, and docker's list been believable, before anything "
        "is released: the kubelet's own retries come first",
        commands=_CLEANING,
    )
    max_share: float = _setting(
        "50%",
        percentage,
        CLEANUP,
        "PERCENT",
        "how much of a network's range may look leaked; with more, our own eyes are suspected, and nothing is released",
        commands=_CLEANING,
    )
    max_per_sync: int = _setting(
        "10", positive, CLEANUP, "N", "how many addresses one round may release, oldest first", commands=_RUN
    )
    max_per_hour: int = _setting(
        "60", positive, CLEANUP, "N", "how many addresses the daemon may release in an hour", commands=_RUN
    )
    lock_timeout: timedelta = _setting(
        "5s",
        duration_between("0s", "1m"),
        CLEANUP,
        "SPAN",
        "how long host-local's locks, or another cleaner of this node, are waited for",
        commands=_WRITING,
    )
    interval: timedelta = _setting(
        "15s", short_duration, DAEMON, "SPAN", "time from one round to the next", commands=_RUN
    )
    listen: tuple[str, int] = _setting(
        ":9747", listen, DAEMON, "HOST:PORT", "where /metrics, /healthz and /readyz are served", commands=_RUN
    )
    page: str = _setting(
        "on",
        one_of("on", "off"),
        DAEMON,
        "on|off",
        "the page to look at, on / for clients of this machine (kubectl port-forward is one), because it names pods",
        commands=_RUN,
    )
    events: str = _setting(
        "on",
        one_of("on", "off"),
        DAEMON,
        "on|off",
        "Kubernetes Events of confirmed findings and of releases, on the node and its pods; needs create and patch of "
        "events. With --api=off there are none",
        commands=_RUN,
    )
    node_condition: str = _setting(
        "off",
        one_of("on", "off"),
        DAEMON,
        "on|off",
        "on: keep the condition CNIAddressPressure on the Node object; needs patch of nodes/status",
        commands=_RUN,
    )
    log_format: str = _setting(
        "auto",
        one_of("auto", "json", "text"),
        DAEMON,
        "auto|json|text",
        "how log lines look; auto: text on a terminal, JSON elsewhere",
        commands=_RUN,
    )


DEFAULT_CONFIRM_AFTER: Final = {"run": "30s", "scan": "5ms", "record": "5ms", "clean": "3s"}


def settings_of(command: str) -> dict[str, Setting]:
    """Return the settings of a command, by field."""
    return {
        one.name: one.metadata["knob"] for one in fields(Config) if command in one.metadata["knob"].commands
    }  # fmt: skip


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    return PREFIX + name.upper()


def load(command: str, given: Mapping[str, str | list[str] | None], environment: Mapping[str, str]) -> Config:
    """Read options, then the environment, then defaults; raises UsageError with everything that is wrong."""
    mistakes = _unknown_variables(environment)
    values: dict[str, Any] = {}
    for one in fields(Config):
        setting: Setting = one.metadata["knob"]
        default = DEFAULT_CONFIRM_AFTER.get(command, "0s") if one.name == "confirm_after" else setting.default
        spelled, text = _text(one.name, given.get(one.name), environment, default)
        try:
            values[one.name] = _parse_many(setting, text) if setting.many else setting.parse(_single(text))
        except ValueError as error:
            mistakes.append(f"{spelled}: {_shown(text)}: {error}")
    if "node" in settings_of(command) and values.get("api") == "on" and values.get("node") == "":
        mistakes.append(
            f"{option('node')} ({variable('node')}): missing: say the name of this node's Node object, "
            f"or {option('api')}=off to do without the API server"
        )
    mistakes += _not_looked_at(command, values) + _in_the_way(values) + _untellable(values)
    if mistakes:
        raise UsageError("\n".join(mistakes))
    return Config(**values)


def _not_looked_at(command: str, values: Mapping[str, Any]) -> list[str]:
    """Find that nothing which is looked at may be cleaned; that the default is not looked at is no mistake."""
    allowed, read = values.get("cleanup_network", ()), values.get("network", ())
    default = (settings_of("clean")["cleanup_network"].default,)
    if "cleanup_network" not in settings_of(command) or allowed == default or set(allowed) & set(read):
        return []
    named = ", ".join(map(repr, allowed))
    return [f"{option('cleanup_network')}: {named}: not looked at: add {option('network')}={allowed[0]}"]


def _in_the_way(values: Mapping[str, Any]) -> list[str]:
    """Find a state directory below host-local's: it reads every file that it finds there."""
    state_dir, networks_dir = values.get("state_dir"), values.get("cni_networks_dir")
    if state_dir is None or networks_dir is None or not state_dir.is_relative_to(networks_dir):
        return []
    return [
        f"{option('state_dir')}: '{state_dir}': host-local reads every file below {networks_dir}: say another place"
    ]


def _untellable(values: Mapping[str, Any]) -> list[str]:
    """Find a condition that was asked for, and no API server to tell it."""
    if values.get("node_condition") != "on" or values.get("api") != "off":
        return []
    return [f"{option('node_condition')}: 'on': {option('api')}=off does without the API server: say one of the two"]


def _text(
    name: str, given: str | list[str] | None, environment: Mapping[str, str], default: str
) -> tuple[str, str | list[str]]:
    if given is not None:
        return option(name), given
    # An empty variable is one that is not set: manifests write it so.
    if text := environment.get(variable(name), ""):
        return variable(name), text
    return option(name), default


def _single(text: str | list[str]) -> str:
    return text if isinstance(text, str) else text[-1]


def _parse_many(setting: Setting, text: str | list[str]) -> tuple[Any, ...]:
    listed = text.split(",") if isinstance(text, str) else [part for one in text for part in one.split(",")]
    return tuple(dict.fromkeys(setting.parse(part.strip()) for part in listed))


def _shown(text: str | list[str]) -> str:
    return repr(text if isinstance(text, str) else ",".join(text))


_SERVICE_LINK = re.compile(
    r"\w+_SERVICE_(HOST|PORT\w*)=.*|\w+_PORT_\d+_(TCP|UDP|SCTP)\w*=.*|\w+_PORT=(tcp|udp|sctp)://.*"
)
"""What Kubernetes itself sets in every pod beside a Service named nodeleak, or nodeleak-metrics."""


def _unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Find misspelt settings: a variable with our prefix that is none of ours would be passed over in silence."""
    known = {variable(one.name) for one in fields(Config)}
    return [
        f"{name}: there is no such setting; did you mean {_nearest(name, known)}?"
        for name in sorted(environment)
        if name.startswith(PREFIX) and name not in known and not _SERVICE_LINK.fullmatch(f"{name}={environment[name]}")
    ]


def _nearest(name: str, known: set[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 (only for a mistake)

    return next(iter(get_close_matches(name, sorted(known), n=1, cutoff=0)), "")
