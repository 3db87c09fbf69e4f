"""Settings: how each is named, read from text, and explained.

Options win over the environment, and that over defaults.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from agent.model.settings import (
    AUTO,
    GRACE,
    MAX_RESERVATIONS,
    MAX_SHARE,
    PROVISION_TIME,
    SETTLE,
    Expected,
    endpoint_path,
)
from agent.model.text import did_you_mean, quote

_T = TypeVar("_T")
_Text: TypeAlias = str | list[str]

ENV_PREFIX: Final = "NODELEAK_"
OFF: Final = "off"


class UsageError(Exception):
    """The user has to change something.

    The text has one line for each mistake, with the setting, the value and the remedy. `hint`: what
    to run next, shown after these lines; empty: nothing.
    """

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class Setting(NamedTuple):
    """How one setting is read and explained. `parse` raises ValueError with what it expected."""

    parse: Callable[[str], Any]
    default: str
    group: str
    metavar: str
    help: str
    """Sentences without a final period. `--help` shows the first one, `--help-all` all of them."""
    commands: frozenset[str] = frozenset({"run", "scan", "timeline", "record", "clean"})
    many: bool = False
    """Whether it is a list."""
    common: bool = False
    """Whether `--help` shows it."""


CONNECTIONS = "API server and container runtime"
PATHS = "node paths"
DETECTION = "detection"
CLEANUP = "cleanup"
DAEMON = "daemon"

# The commands that have a setting.
_RUN = frozenset({"run"})
_CLEANING = frozenset({"run", "clean"})
_WRITING = frozenset({"run", "clean", "restore", "resume"})
_STATE = _WRITING | {"journal", "scan", "timeline", "record"}
_LISTEN = frozenset({"run", "status"})
_EVERYWHERE = frozenset({"run", "scan", "timeline", "record", "clean", "restore"})


def _setting(
    default: str, parse: Callable[[str], Any], group: str, metavar: str, **more: Any
) -> Any:
    """Return a field of `Config`; `more`: the other fields of its `Setting`."""
    more["help"] = " ".join(more["help"].split())
    return field(metadata={"setting": Setting(parse, default, group, metavar, **more)})


def _choice(words: str, default: str, group: str, **more: Any) -> Any:
    """Return the field of a setting with one of these words; see `one_of`."""
    return _setting(default, one_of(words), group, words, **more)


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART: Final = r"(\d+(?:\.\d+)?)(ms|s|m|h|d)"


def duration(text: str) -> timedelta:
    """Read `90s`, `5m` or `1h30m`. A number without a unit is an error."""
    # Without this check, the time to search a long number for a unit would be quadratic.
    if not re.fullmatch(f"(?:{_DURATION_PART})+", text):
        raise ValueError("expected a duration such as 90s or 5m")

    parts = re.findall(_DURATION_PART, text)
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    except OverflowError as error:
        raise ValueError("duration is too long") from error


def duration_between(minimum: str, maximum: str) -> Callable[[str], timedelta]:
    """Return a parser of durations; both ends are allowed."""

    def parse(text: str) -> timedelta:
        period = duration(text)
        if not duration(minimum) <= period <= duration(maximum):
            raise ValueError(f"expected a duration from {minimum} to {maximum}")
        return period

    return parse


# The parsers of `Config`, named after what they read.
short_duration = duration_between("1ms", "1h")
age = duration_between("0s", "36500d")  # the longest duration that a snapshot can have


def matching(pattern: str, expected: str, convert: Callable[[str], _T]) -> Callable[[str], _T]:
    """Return a parser of texts that match as a whole. `expected`: for the error."""

    def parse(text: str) -> _T:
        if not re.fullmatch(pattern, text, re.DOTALL):
            raise ValueError(f"expected {expected}")
        return convert(text)

    return parse


path = matching("/.*", "an absolute path", Path)
positive = matching(r"[1-9]\d{0,8}", "a whole number of 1 or more", int)


def number_up_to(limit: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from 1 on."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[1-9]\d{0,8}", text) or int(text) > limit:
            raise ValueError(f"expected a whole number from 1 to {limit}")
        return int(text)

    return parse


node_name = matching(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?",
    "a node name: lower-case letters, digits, dots and dashes",
    str,
)
# It becomes a directory name; libcni has the same rule.
network_name = matching(
    r"[a-zA-Z0-9][a-zA-Z0-9_.-]*",
    "a CNI network name: letters, digits, dots, dashes and underscores",
    str,
)
node_label = matching(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
    r"=([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?",
    "a label and its value, such as nodeleak.dev/cleanup=auto",
    str,
)
_LABEL: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
brake = matching(
    rf"off|({_LABEL}/)?{_LABEL}(\.{_LABEL})*",
    "the name of a ConfigMap, such as nodeleak-brake or kube-system/nodeleak-brake, or off",
    str,
)
filesystem = matching(
    r"[a-zA-Z0-9][a-zA-Z0-9_.-]*", "a type of file system, such as virtiofs or fuse.sshfs", str
)
endpoint = matching(
    "(unix://)?/.*",
    "unix:// and the absolute path of a socket",
    lambda text: Path(endpoint_path(text)),
)


def optional(parse: Callable[[str], _T]) -> Callable[[str], _T | None]:
    """Return a parser for which an empty text is None."""
    return lambda text: parse(text) if text else None


def path_or_off(text: str) -> Path | None:
    return None if text == "off" else path(text)


def one_of(words: str) -> Callable[[str], str]:
    """Return a parser of one of these words, such as `on|off`."""
    return matching(words, f"one of: {words.replace('|', ', ')}", str)


def percentage(text: str) -> float:
    """Read `50%`. A number without the percent sign is an error."""
    matched = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)%", text)
    if matched is None or float(matched[1]) > 100:  # noqa: PLR2004 (percent)
        raise ValueError("expected a percentage from 0% to 100%, such as 50%")
    return float(matched[1]) / 100


def listen(text: str) -> tuple[str, int]:
    """Read `host:port`. An empty host means every address; an IPv6 host is in brackets."""
    matched = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]*)):(\d{1,5})", text)
    if matched is None or int(matched[3]) > 65535:  # noqa: PLR2004 (the range of a port)
        raise ValueError("expected HOST:PORT, such as :9747, 127.0.0.1:9747 or [::1]:9747")
    return matched[1] or matched[2] or "", int(matched[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    # A table: the first lines of a setting say how it is read, the next ones explain it to users.
    # fmt: off
    node: str = _setting("", node_name, CONNECTIONS, "NAME", common=True, help="""
        name of this node's Node object; required unless --api=off. In a pod, set it from
        spec.nodeName. It has no default, because a wrong name would read the pods of another
        node""")
    kubeconfig: Path | None = _setting(
        "", optional(Path), CONNECTIONS, "FILE", common=True, help="""
        credentials for the API server; the kubelet's own file is enough. Without it: the service
        account of the pod, then KUBECONFIG""")
    api: str = _choice("on|off", "on", CONNECTIONS, common=True, help="""
        off: do not use the API server, for a node without credentials. Results then rest on the
        container runtime, sandbox checkpoints and network namespaces""")
    api_timeout: timedelta = _setting("10s", short_duration, CONNECTIONS, "DURATION", help="""
        how long to wait for one response of the API server, or of a kubeconfig's exec plugin""")
    runtime: str = _choice("auto|docker|cri", "auto", CONNECTIONS, commands=_EVERYWHERE, help="""
        container runtimes to ask. auto: the one that the kubelet names and every other one that
        runs; docker: docker alone; cri: containerd and CRI-O alone""")
    cri_endpoint: Path | None = _setting(
        "", optional(endpoint), CONNECTIONS, "URL", commands=_EVERYWHERE, help="""
        CRI socket of this node, such as unix:///run/containerd/containerd.sock: a path of the
        node, also in a pod. Without it: the one that the kubelet names, and the usual places of
        containerd (k3s, RKE2, k0s and MicroK8s too) and CRI-O""")
    docker_host: str = _setting("", str, CONNECTIONS, "URL", commands=_EVERYWHERE, help="""
        docker engine of this node, such as unix:///run/docker.sock: in a pod, the path at which
        the pod has it. Without it: DOCKER_HOST, then docker's default socket. It is asked only
        while docker runs""")
    docker_timeout: timedelta = _setting(
        "5s", short_duration, CONNECTIONS, "DURATION", commands=_EVERYWHERE, help="""
        how long to wait for one response of docker or of another runtime. After that the
        containers count as unavailable""")
    network: tuple[str, ...] = _setting(
        "auto", network_name, PATHS, "NAME|auto", many=True, common=True, help="""
        CNI network to check; auto: those that pods use. containerd and the CNI configuration
        name them, and the kubelet kubenet. A name is that of a directory below
        --cni-networks-dir. Repeat the option for more networks""")
    cni_networks_dir: Path = _setting(
        "/var/lib/cni/networks", path, PATHS, "DIR", commands=_EVERYWHERE, help="""
        directory of host-local's reservations (its dataDir)""")
    cni_config_dir: Path | None = _setting(
        "", optional(path), PATHS, "DIR", commands=_EVERYWHERE, help="""
        directory of the CNI configuration, whose first file names the networks of the pods.
        Without it: the one that the runtime names, or /etc/cni/net.d""")
    cni_cache_dir: tuple[Path, ...] = _setting(
        "/var/lib/cni/cache/results,/var/lib/cni/results,/var/lib/cni/multus/results", path, PATHS,
        "DIR", commands=_EVERYWHERE, many=True, help="""
        directory of libcni's cached results, which say which pod a container ID belonged to, and
        of those of Multus. Repeat the option for more directories""")
    checkpoint_dir: tuple[Path, ...] = _setting(
        "/var/lib/dockershim/sandbox,/var/lib/cri-dockerd/sandbox", path, PATHS, "DIR", many=True,
        help="""
        directory of the sandbox checkpoints of dockershim or cri-dockerd. Repeat the option for
        more directories""")
    run_dir: Path = _setting("/run", path, PATHS, "DIR", commands=_EVERYWHERE, help="""
        the node's /run, with the sockets of its container runtimes. A pod mounts it elsewhere""")
    local_filesystem: tuple[str, ...] = _setting("", filesystem, PATHS, "TYPE", many=True, help="""
        type of file system, such as virtiofs, to treat as local to this node. By default,
        reservations on a type that nodes may share are unavailable. Name a type only if no other
        node writes to the directory: the addresses of that node's pods would look leaked. Repeat
        the option for more types""")
    device_plugins_dir: Path | None = _setting(
        "/var/lib/kubelet/device-plugins", path_or_off, PATHS, "DIR|off", help="""
        directory of the device plugin sockets, beside `plugins_registry`; off: do not check device
        plugins. A missing directory is an error only on a node that has devices""")
    kubelet_dir: Path | None = _setting("/var/lib/kubelet", path_or_off, PATHS, "DIR|off", help="""
        root directory of the kubelet, at its path on the host; off: do not check mounted
        volumes. It is read only while the status of the Node object lacks a volume""")
    proc: Path = _setting("/proc", path, PATHS, "DIR", commands=_EVERYWHERE, help="""
        the host's /proc; a pod needs hostPID: true""")
    state_dir: Path = _setting("/var/lib/nodeleak", path, PATHS, "DIR", commands=_STATE, help="""
        directory where nodeleak keeps its own files: the journal of releases (journal/), the
        lock that allows one cleanup at a time, the device history, and the last known Node
        object""")
    max_reservations: int = _setting("16384", number_up_to(MAX_RESERVATIONS), PATHS, "N", help="""
        maximum number of files in the directories of all networks, at most 65536; the
        reservations of the network that exceeds it count as unavailable. A leaked one takes
        about 2 KiB of memory: to raise it in a pod, raise the container's memory limit as well""")
    grace: timedelta = _setting(
        f"{GRACE // timedelta(minutes=1)}m", age, DETECTION, "DURATION", common=True, help="""
        minimum age of a reservation without an owner before it counts as leaked. 0s is safe with
        docker, containerd (since 1.5.15 and 1.6.9) and CRI-O, which record the sandbox before
        its address is reserved""")
    confirm_after: timedelta = _setting(
        "", duration_between("0s", "1d"), DETECTION, "DURATION", help="""
        how long a finding must last before it is confirmed. Commands take two snapshots this far
        apart (scan, record, timeline: 5ms; clean: 3s). run: every sync must see it for this long
        (30s)""")
    stale_after: timedelta = _setting(
        "2m", duration_between("2s", "1d"), DETECTION, "DURATION", commands=_RUN, help="""
        how long the last data of the API server stay valid after it stops responding""")
    provider_id: Expected = _setting(
        "auto", lambda text: Expected(one_of("|".join(Expected))(text)), DETECTION,
        "auto|required|ignored", help="""
        whether the Node object must have a provider ID; cluster-autoscaler deletes instances
        without one. auto: only if the cluster uses a cloud provider; ignored: on bare metal, or
        without an autoscaler""")
    max_node_provision_time: timedelta = _setting(
        f"{PROVISION_TIME // timedelta(minutes=1)}m",
        duration_between("1m", "1d"), DETECTION, "DURATION", help="""
        cluster-autoscaler's option of this name: how long it leaves an instance without a Node
        that has its provider ID, before it deletes the instance. The findings about that become
        warnings after a fifth of it, and critical after half of it""")
    cleanup: str = _choice("off|dry-run|auto", "off", CLEANUP, commands=_RUN, common=True, help="""
        off: only detect leaks; dry-run: report what would be released; auto: release confirmed
        leaks that pass every guard""")
    cleanup_network: tuple[str, ...] = _setting(
        "", network_name, CLEANUP, "NAME|auto", commands=_CLEANING, many=True, common=True, help="""
        CNI network to clean; auto: those that pods use. Nothing is released without it. With
        auto, these are the networks that containerd, the CNI configuration or the kubelet names.
        Name a network only if all its sandboxes belong to this node's runtime. Repeat the option
        for more networks""")
    cleanup_node_label: str = _setting(
        "", lambda text: node_label(text) if text else "", CLEANUP, "KEY=VALUE", commands=_RUN,
        help="""
        with --cleanup=auto or dry-run, release only while the Node object has this label. Without
        the label, or if the Node cannot be read, the daemon only observes. Empty: on every node""")
    settle: timedelta = _setting(
        f"{SETTLE // timedelta(minutes=1)}m",
        duration_between("0s", "1d"), CLEANUP, "DURATION", commands=_CLEANING, help="""
        how long the node, the kubelet and the container runtime must have been running before
        anything is released. This leaves time for the kubelet's own cleanup, and for the list of
        containers to become complete""")
    max_share: float = _setting(
        f"{MAX_SHARE:.0%}", percentage, CLEANUP, "PERCENT", commands=_CLEANING, help="""
        if more than this share of a range looks leaked and the API server does not confirm it,
        assume a faulty reading and release nothing""")
    max_per_sync: int = _setting("10", positive, CLEANUP, "N", commands=_RUN, help="""
        maximum number of addresses released in one sync, oldest first""")
    max_per_hour: int = _setting("60", positive, CLEANUP, "N", commands=_RUN, help="""
        maximum number of addresses released in one hour""")
    release_host_ports: str = _choice("on|off", "off", CLEANUP, commands=_RUN, help="""
        with --cleanup=auto, release also an address to which rules in iptables or nftables may
        still forward host ports: they then lead to the next pod that gets it. clean --apply
        releases it anyway, and warns""")
    probe: str = _choice("on|off", "on", CLEANUP, commands=_CLEANING, help="""
        before a release, probe the address with a UDP datagram to port 9: if anything answers,
        it is not released. A network namespace that has no process left still answers. Only
        clean --apply and --cleanup=auto send it, only on a link of the node, never through a
        gateway, and at most three times within 14 s. off: send nothing. An address whose
        namespace only an open file descriptor holds is then released, although it still answers,
        and the next pod shares it""")
    brake: str = _setting(OFF, brake, CLEANUP, "[NAMESPACE/]NAME|off", help="""
        ConfigMap that is the brake: while it exists, nothing is released. It is read again right
        before each release, and if it cannot be read, nothing is released either. Without a
        namespace: that of the pod. deploy/ sets it to nodeleak-brake. off: no brake, as on a node
        without credentials for it""")
    lock_timeout: timedelta = _setting(
        "5s", duration_between("0s", "1m"), CLEANUP, "DURATION", commands=_WRITING, help="""
        how long to wait for host-local's locks, or for another cleanup on this node to end""")
    interval: timedelta = _setting(
        "15s", short_duration, DAEMON, "DURATION", commands=_RUN, common=True, help="""
        time from the start of one sync to the start of the next""")
    listen: tuple[str, int] = _setting(
        ":9747", listen, DAEMON, "HOST:PORT", commands=_LISTEN, common=True, help="""
        address of the daemon's HTTP server: /metrics, /healthz, /readyz and the status page.
        `status` asks it on loopback. `scan`, `timeline` and `clean` ask it for names of pods
        that only the daemon has: for them, set the variable""")
    tls_cert_file: Path | None = _setting(
        "", optional(path), DAEMON, "FILE", commands=_RUN, help="""
        serve HTTPS with this certificate (PEM, followed by its intermediate certificates). Needs
        --tls-key-file. The files are read again when they change""")
    tls_key_file: Path | None = _setting("", optional(path), DAEMON, "FILE", commands=_RUN, help="""
        private key of --tls-cert-file (PEM, without a password)""")
    tls_client_ca_file: Path | None = _setting(
        "", optional(path), DAEMON, "FILE", commands=_RUN, help="""
        require other machines to show a client certificate signed by one of these authorities
        (PEM), except for /healthz and /readyz, because the kubelet has none to show. Needs
        --tls-cert-file""")
    page: str = _choice("on|off", "on", DAEMON, commands=_RUN, help="""
        the status page at /. It names pods, so only clients on this machine may read it, such as
        `kubectl port-forward`""")
    events: str = _choice("on|off", "on", DAEMON, commands=_RUN, help="""
        report confirmed findings and releases as Kubernetes Events of the node and its pods.
        Needs the verbs create and patch on events. With --api=off no Events are sent""")
    node_condition: str = _choice("on|off", "off", DAEMON, commands=_RUN, help="""
        on: maintain the condition CNIAddressPressure on the Node object. Needs the verb patch on
        nodes/status""")
    log_format: str = _choice("auto|json|text", "auto", DAEMON, commands=_RUN, help="""
        format of log lines. auto: text on a terminal, JSON otherwise""")
    # fmt: on


DEFAULT_CONFIRM_AFTER: Final = {
    "run": "30s",
    "scan": "5ms",
    "timeline": "5ms",
    "record": "5ms",
    "clean": "3s",
}
"""By command. The others confirm nothing."""


def settings_of(command: str) -> dict[str, Setting]:
    """Return the settings of one command, by name."""
    settings = all_settings().items()
    return {name: setting for name, setting in settings if command in setting.commands}


def all_settings() -> dict[str, Setting]:
    """Return the settings of all commands, by name: those of `Config`."""
    return {field.name: field.metadata["setting"] for field in fields(Config)}


def option(name: str) -> str:
    """Return the option of a setting, such as `--api-timeout`."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """Return the environment variable of a setting, such as `NODELEAK_API_TIMEOUT`."""
    return ENV_PREFIX + name.upper()


def both_names(name: str) -> str:
    """Return option and variable, for messages: `--api-timeout (NODELEAK_API_TIMEOUT)`."""
    return f"{option(name)} ({variable(name)})"


def load(
    command: str, options: Mapping[str, _Text | None], environment: Mapping[str, str]
) -> Config:
    """Return the settings of a command; raises UsageError with every mistake.

    `options`: by the names of settings; None: the option was not used.
    """
    mistakes = _unknown_variables(environment)
    values = {}
    for name, setting in all_settings().items():
        text = options.get(name)
        source = option(name)
        # An empty variable counts as not set: manifests use it to clear a value.
        if text is None and (text := environment.get(variable(name)) or None):
            source = variable(name)
        if text is None:
            text = setting.default
            if name == "confirm_after":
                text = DEFAULT_CONFIRM_AFTER.get(command, "0s")

        try:
            values[name] = _parse(setting, text)
        except ValueError as error:
            shown = text if isinstance(text, str) else ",".join(text)
            mistakes.append(invalid(source, shown, error))

    mistakes += _contradictions(command, values)
    if mistakes:
        raise UsageError("\n".join(mistakes))
    return Config(**values)


def invalid(source: str, text: str, error: ValueError) -> str:
    """Return the message for a value that cannot be parsed. `source`: its option or variable."""
    return f"{source}: invalid value {quote(text)}: {error}"


def _parse(setting: Setting, text: _Text) -> Any:
    """Return the value; raises ValueError. If an option is repeated, the last value counts."""
    texts = [text] if isinstance(text, str) else text
    if not setting.many:
        return setting.parse(texts[-1])
    if not any(texts) and not setting.default:
        return ()

    parts = ",".join(texts).split(",")
    return tuple(dict.fromkeys(setting.parse(part.strip()) for part in parts))


def _contradictions(command: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a mistake for values that contradict each other; `values`: those that were parsed."""
    settings = settings_of(command)
    if "node" in settings and values.get("api") == "on" and values.get("node") == "":
        yield (
            f"{both_names('node')} is not set: give the name of this node's "
            f"Node object, or {option('api')}=off to run without the API server"
        )
    if "cleanup_network" in settings:
        yield from _unchecked_network(values)

    state_dir = values.get("state_dir")
    networks_dir = values.get("cni_networks_dir")
    if state_dir and networks_dir and state_dir.is_relative_to(networks_dir):
        where = f"{option('state_dir')}={state_dir}"
        yield f"{where}: host-local reads every file below {networks_dir}: use another directory"
    if "tls_cert_file" in settings:
        yield from _incomplete_tls(values)

    has_no_api = values.get("api") == OFF
    brake_name = values.get("brake", OFF)
    # A daemon that only observes releases nothing, and its findings do not depend on the brake.
    cleans = command == "clean" or (command in _RUN and values.get("cleanup", OFF) != OFF)
    if cleans and brake_name != OFF and has_no_api:
        yield (
            f"{option('brake')}={brake_name} needs the API server: remove {option('api')}=off, or "
            f"set {option('brake')}=off ({variable('brake')}) to release without a brake"
        )
    if command in _RUN and values.get("cleanup_node_label") and has_no_api:
        label = f"{option('cleanup_node_label')}={values['cleanup_node_label']}"
        yield f"{label} needs the API server: remove it, or remove {option('api')}=off"
    if values.get("node_condition") == "on" and has_no_api:
        condition = f"{option('node_condition')}=on"
        yield f"{condition} needs the API server: remove it, or remove {option('api')}=off"


def _unchecked_network(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a mistake if no network that is to be cleaned is checked."""
    cleaned = values.get("cleanup_network", ())
    checked = values.get("network", ())
    if cleaned and AUTO not in checked and not {AUTO, *checked} & set(cleaned):
        names = f"{option('cleanup_network')}={','.join(cleaned)}"
        yield f"{names}: network is not checked: add {option('network')}={cleaned[0]}"


_TLS_NEEDS: Final = {
    "tls_cert_file": ("tls_key_file", "the file of its private key"),
    "tls_key_file": ("tls_cert_file", "the file of its certificate"),
    "tls_client_ca_file": ("tls_cert_file", "clients show certificates over HTTPS only"),
}
"""The setting that another one needs, and the reason."""


def _incomplete_tls(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a mistake for each file that is of no use without another one."""
    for name, (needed, reason) in _TLS_NEEDS.items():
        if values.get(name) and not values.get(needed, "invalid"):
            setting = f"{option(name)}={values[name]}"
            yield f"{setting} needs {both_names(needed)}: {reason}"


_SERVICE_LINK = re.compile(
    r"\w+_SERVICE_(HOST|PORT\w*)=.*|\w+_PORT_\d+_(TCP|UDP|SCTP)\w*=.*|\w+_PORT=(tcp|udp|sctp)://.*"
)
"""Variables that Kubernetes sets in every pod for a Service named nodeleak or nodeleak-metrics."""


def _unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return a mistake for each misspelled variable, which would otherwise be ignored."""
    variables = {variable(name) for name in all_settings()}
    mistakes = []
    for name in sorted(environment):
        is_ours = name.startswith(ENV_PREFIX) and name not in variables
        if is_ours and not _SERVICE_LINK.fullmatch(f"{name}={environment[name]}"):
            mistakes.append(f"{name}: unknown setting{did_you_mean(name, variables)}")
    return mistakes
