"""The layers of a message: each program wraps the words of the one below it in its own."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_LONGEST_INPUT: Final = 65536
"""Characters that are looked at. No kubelet shortens an Event; the cause stands far before that."""
_LONGEST_TEXT: Final = 8192
"""Characters that are compared, once what repeats the configuration is cut off."""
_MOST_LAYERS: Final = 16
_MOST_ESCAPES: Final = 4
"""How often quotes can have been escaped: each layer that prints with %q does it once."""
_QUOTES: Final = str.maketrans("\u201c\u201d\u2018\u2019\xa0", "\"\"'' ")
"""What web pages make of quotes."""
_ESCAPED: Final = r'\\(["\\nt])'
_BYTES: Final = r"StdinData:\[[\d ]{0,65536}\]"
"""How Multus 4.0 repeats the whole configuration before the cause."""
_REPETITIONS: Final = (
    "': StdinData:",  # of multus-shim: the whole configuration
    ", failed to clean up sandbox container ",  # of docker
    '", failed to "Kill',  # of the kubelet
    '" pod="',  # of the kubelet's log
)
"""With what a second cause begins, or what says nothing of the cause."""
_OPERATIONS: Final = {
    "add": "add",
    "create": "add",
    "adding": "add",
    "setup": "add",
    "set up": "add",
    "delete": "delete",
    "del": "delete",
    "removing": "delete",
    "destroy": "delete",
    "teardown": "delete",
    "tear down": "delete",
}
_NETWORK: Final = (
    r'(?:to|from) CNI network "?([^"\s:]{1,253})"?: '
    r'|error (?:adding|removing) \S{1,20} (?:to|from) network "?([^"\s:]{1,253})"?: '
    r'|conflist(?:Add|Del) - "?([^"\s:]{1,253})"?'
    r'|(?:set|get) network "?([^"\s:]{1,253})"? cached result'
)
"""In the words of CRI-O and Multus, of Multus before 3.9, and of libcni."""
_NO_BINARY: Final = r'failed to find plugin "?(?P<plugin>[^"\s:]{1,100})"? in path'
_REQUESTED: Final = (
    r"(?:requested IP address|failed to allocate all requested IPs:|requested ip) "
    r"(?P<ip>[0-9A-Fa-f:.]{2,45})"
)
_RANGE_SET: Final = r"available in range set:? (?P<range_set>[0-9A-Fa-f.:,-]{1,400})"
_EVENT: Final = (
    r"(?:^|\s)(?:Warning|Normal)\s(?P<reason>[A-Z]\w{3,60})\s"
    r"(?:pod/\S{1,253}\s|node/\S{1,253}\s"
    r"|\S{1,20}\s(?:\(x\d{1,9} over \S{1,20}\)\s)?(?:[a-z][\w.-]{1,60})(?:, \S{1,253})?\s)"
)
"""The columns of `kubectl get events` and of `kubectl describe`, before the message."""
_LAYERS: Final = (
    r"\(combined from similar events\): ",
    r"failed (?:to )?create pod sandbox: ",
    r"(?<!due to )rpc error: code = \w{1,30} desc = ",
    # The kubelet, of a teardown.
    (
        r'error killing pod: \[?failed to "?KillPodSandbox"? for "?(?P<pod_uid>[^"\s:]{1,60})"? '
        r'with KillPodSandboxError: "?'
    ),
    # containerd
    (
        r"(?P<containerd>failed to (?P<operation>setup|destroy) network for sandbox) "
        r'"?(?P<sandbox_id>[^"\s:]{1,100})"?: '
    ),
    r'(?P<containerd>failed to forcibly stop sandbox) "?(?P<sandbox_id>[^"\s:]{1,100})"?: ',
    # CRI-O
    (
        r"(?P<crio>(?:failed to (?P<operation>create|destroy) (?:pod network|network for pod) "
        r"sandbox|failed to get network status for pod sandbox"
        r"|network teardown failed for pod sandbox)) "
        r"\S{1,400}?\((?P<sandbox_id>[0-9a-f]{1,64})\): "
    ),
    (
        r"(?P<crio>error (?P<operation>adding|removing) pod) (?P<crio_pod>\S{1,320}) "
        r'(?:to|from) CNI network "?(?P<network>[^"\s:]{1,253})"?: '
    ),
    r"(?P<crio>stop pod network): ",
    # docker
    (
        r"(?P<docker>failed to (?:set up|teardown|clean up|stop)) sandbox container "
        r'"?(?P<sandbox_id>[^"\s:]{1,100})"? network for pod "?[^"\s:]{1,253}"?: '
    ),
    (
        r"(?P<docker>networkPlugin) \S{1,30} failed to (?P<operation>set up|teardown|tear down) "
        r'pod "?(?P<docker_pod>[^"\s:]{1,320})"? network: '
    ),
    # libcni
    (
        r'plugin type="?(?P<plugin>[^"\s:]{1,100})"?(?: name="?(?P<plugin_name>[^"\s:]{1,253})"?)? '
        r"failed \((?P<operation>add|delete)\): "
    ),
    # Plugins that call others.
    r"failed to delegate (?P<operation>add|del)\w{0,4}: ",
    r"\[(?P<pod>[^\]\s/]{1,63}/[^\]\s/:]{1,253})(?:[/:][^\]\s]{0,300})?\]: ",
    r'error (?:adding|removing) \S{1,20} (?:to|from) network "?(?P<network>[^"\s:]{1,253})"?: ',
    r"error (?:adding|removing) container (?:to|from) network: ",
    r'delegate(?:Add|Del): error invoking Delegate(?:Add|Del) - "?(?P<plugin>[^"\s:]{1,100})"?: ',
    (
        r"delegate(?:Add|Del): error invoking conflist(?:Add|Del) - "
        r'"?(?P<network>[^"\s:]{1,253})"?: '
    ),
    r"(?:conflist(?:Add|Del): )?error in getting result from \w{1,30}: ",
    r"Multus: ",
    # The state of the node's network
    (
        r"(?:(?:container )?runtime network not ready: )?NetworkReady=false "
        r"reason:\w{1,40} message: ?(?:Network plugin returns error: |"
        r"docker: network plugin is not ready: )?"
    ),
    (
        r"CNI request failed with status \d{3}: '.{0,1500}?ERRORED: error configuring pod "
        r"\[(?P<pod>[^\]\s]{1,320})\] networking: "
    ),
    r"running IPAM plugin failed: ",
    r"failed to invoke delegated plugin (?P<operation>ADD|DEL)\w{0,4} for IPAM: ",
)
"""What programs write before the words of the one below them, whatever the case."""
_VARIABLE: Final = (
    (
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        "*",
    ),
    (r"\b[0-9a-f]{12,64}\b", "*"),
    (r"\b(?:veth|cali|lxc|tap)[0-9a-f]{4,20}\b", "*"),
    (
        r"\[?[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?:/\d{1,3}|-\*)?\]?",
        "*",
    ),
    (r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?:/\d{1,2})?", "*"),
    (r'"[^"\s/]{0,253}_[^"\s/]{1,253}"|\bk8s_\S{1,400}', "*"),
    (r'\b(pod|sandbox|container) "[^"]{1,253}"', r"\1 *"),
    (r"\b(?:\d{1,6}(?:\.\d{1,12})?(?:ms|µs|h|m|s)){1,3}\b", "#"),
    (r"\d{1,20}", "#"),
    (r"\*(?:[,-]\*)+", "*"),
)
"""In this order: IDs, interfaces, addresses, pods, durations, numbers, lists of these."""


@dataclass(frozen=True, slots=True)
class Peeled:
    """A message without the words of those who pass it on."""

    words: str
    """The innermost part: what the program says that failed."""
    layers: tuple[str, ...]
    """What was left after each step, the innermost first; the last is the whole text."""
    reason: str | None = None
    """Of the Event, where the line of kubectl was copied."""
    runtime: str | None = None
    plugin: str | None = None
    """The type of the innermost CNI plugin that is named: the one that fails, or has no binary."""
    plugin_name: str | None = None
    """`name` of the plugin's own block: a hint at the network, and not always its name."""
    network: str | None = None
    """The network whose list of plugins was run, in the words of CRI-O, Multus and libcni."""
    operation: str | None = None
    """`add` or `delete`."""
    pod: str | None = None
    """`namespace/name`, or the name alone."""
    sandbox_id: str | None = None
    requested_ip: str | None = None
    range_set: str | None = None
    """As host-local writes it: `10.1.0.2-10.1.0.9,10.2.0.2-10.2.0.9`."""

    @property
    def understood(self) -> bool:
        """Whether any layer says who speaks."""
        return len(self.layers) > 1 or self.reason is not None


def peel(text: str) -> Peeled:
    """Return the innermost part of a message, and what the layers around it name."""
    rest = _plain(text)
    values: dict[str, str] = {}

    event = re.search(_EVENT, rest[:400])
    if event:
        values["reason"] = event["reason"]
        rest = rest[event.end() :]

    layers = [rest]
    while len(layers) < _MOST_LAYERS:
        first = _first_layer(rest)
        if first is None:
            break
        values |= {name: value for name, value in first.groupdict().items() if value}
        rest = _without_closing(rest[first.end() :].strip())
        if not rest:
            break
        layers.append(rest)

    return _peeled(tuple(reversed(layers)), values)


def events(text: str) -> list[str]:
    """Return the Events that were copied from `kubectl`, one a text; a message is itself one."""
    texts: list[str] = []
    for line in text[:_LONGEST_INPUT].splitlines():
        if texts and not re.search(_EVENT, " ".join(line[:400].split())):
            texts[-1] += f" {line}"
        else:
            texts.append(line)
    return texts


def without_variable_parts(text: str) -> str:
    """Return a key: the same for messages that differ in IDs, names, addresses and numbers."""
    peeled = peel(text)
    words = peeled.words[:_LONGEST_TEXT]
    for pattern, replacement in _VARIABLE:
        words = re.sub(pattern, replacement, words, flags=re.IGNORECASE)

    named = (peeled.plugin, peeled.operation, words)
    return " ".join(filter(None, named))


def _plain(text: str) -> str:
    """Return a text on one line, its quotes as they were before others escaped them."""
    text = " ".join(text[:_LONGEST_INPUT].translate(_QUOTES).replace("&quot;", '"').split())
    for _ in range(_MOST_ESCAPES):
        if '\\"' not in text:
            break
        text = re.sub(_ESCAPED, lambda found: " " if found[1] in "nt" else found[1], text)

    text = re.sub(_BYTES, "", text)
    for rest in _REPETITIONS:
        text = text.partition(rest)[0]
    return text[:_LONGEST_TEXT].strip()


def _first_layer(text: str) -> re.Match[str] | None:
    """Return the layer that begins first."""
    found = [match for layer in _LAYERS if (match := re.search(layer, text, re.IGNORECASE))]
    return min(found, key=lambda match: (match.start(), -match.end()), default=None)


def _peeled(layers: tuple[str, ...], values: Mapping[str, str]) -> Peeled:
    whole = layers[-1]
    asked = re.search(_REQUESTED, whole, re.IGNORECASE)
    full = re.search(_RANGE_SET, whole, re.IGNORECASE)
    missing = re.search(_NO_BINARY, whole, re.IGNORECASE)

    return Peeled(
        words=layers[0],
        layers=layers,
        reason=values.get("reason"),
        runtime=_runtime(values),
        plugin=missing["plugin"] if missing else values.get("plugin"),
        plugin_name=values.get("plugin_name"),
        network=_last_network(whole),
        operation=_operation(values),
        pod=_pod(values),
        sandbox_id=values.get("sandbox_id"),
        requested_ip=asked["ip"].rstrip(".:") if asked else None,
        range_set=full["range_set"].rstrip(".:,-") if full else None,
    )


def _without_closing(text: str) -> str:
    """Cut off what closes the quotes and lists of outer layers."""
    if text.endswith("':"):
        text = text[:-1]
    if text.endswith("]") and text.count("]") > text.count("["):
        text = text[:-1]
    while text.endswith(("'", '"')) and text.count(text[-1]) % 2:
        text = text[:-1]
    return text


def _runtime(values: Mapping[str, str]) -> str | None:
    """Return the runtime whose words are among the layers."""
    return next(
        (runtime for runtime in ("containerd", "crio", "docker") if runtime in values), None
    )


def _operation(values: Mapping[str, str]) -> str | None:
    """Return `add` or `delete`, whatever the program calls it."""
    word = values.get("operation")
    return _OPERATIONS.get(word.lower()) if word else None


def _pod(values: Mapping[str, str]) -> str | None:
    """Return the pod: CRI-O writes the namespace first, docker last."""
    if "crio_pod" in values:
        return values["crio_pod"].replace("_", "/", 1)
    if "docker_pod" in values:
        name, _, namespace = values["docker_pod"].rpartition("_")
        return f"{namespace}/{name}" if name else namespace
    return values.get("pod")


def _last_network(text: str) -> str | None:
    """Return the last network that a text names, which is the innermost."""
    found = list(re.finditer(_NETWORK, text, re.IGNORECASE))
    return next(filter(None, found[-1].groups()), None) if found else None
