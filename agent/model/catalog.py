"""What kubelet, container runtimes and CNI plugins print, and what it means.

The entries are in `messages.toml`, read when first needed. A message of theirs wraps that of the
program below: `peel` takes the layers off, and `find` looks for the innermost that it knows.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Formatter
from typing import Final

from agent.model.word import Word

_LONGEST_INPUT: Final = 65536
"""Characters that are looked at. No kubelet shortens an Event; the cause stands far before that."""
_LONGEST_TEXT: Final = 8192
"""Characters that are compared, once what repeats the configuration is cut off."""
_MOST_LAYERS: Final = 16
_MOST_ESCAPES: Final = 4
"""How often quotes can have been escaped: each layer that prints with %q does it once."""
_LOWER: Final = {ord(upper): upper.lower() for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
"""It keeps the length of every text, which `str.lower` does not."""
_QUOTES: Final = str.maketrans("\u201c\u201d\u2018\u2019\xa0", "\"\"'' ")
"""What web pages make of quotes."""
_ESCAPED: Final = re.compile(r'\\(["\\nt])')

_REPETITIONS: Final = (
    "': StdinData:",  # of multus-shim: the whole configuration
    ", failed to clean up sandbox container ",  # of docker
    '", failed to "Kill',  # of the kubelet
    '" pod="',  # of the kubelet's log
)
"""With what a second cause begins, or what says nothing of the cause."""
_OPERATIONS: Final = {
    "add": "add",
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
_NETWORK: Final = re.compile(
    r'(?:to|from) (?:CNI )?network "([^"\s]{1,253})"|conflist(?:Add|Del) - "([^"\s]{1,253})"',
    re.IGNORECASE,
)
"""In the words of CRI-O, of Multus, and of Multus before 3.9."""
_NO_BINARY: Final = re.compile(r'failed to find plugin "(?P<plugin>[^"\s]{1,100})" in path')
_REQUESTED: Final = re.compile(
    r"(?:requested IP address|failed to allocate all requested IPs:|requested ip) "
    r"(?P<ip>[0-9A-Fa-f:.]{2,45})",
    re.IGNORECASE,
)
_RANGE_SET: Final = re.compile(
    r"available in range set:? (?P<range_set>[0-9A-Fa-f.:,-]{1,400})", re.IGNORECASE
)
_EVENT: Final = re.compile(
    r"(?:^|\s)(?:Warning|Normal)\s(?P<reason>[A-Z]\w{3,60})\s"
    r"(?:pod/\S{1,253}\s|node/\S{1,253}\s"
    r"|\S{1,20}\s(?:\(x\d{1,9} over \S{1,20}\)\s)?(?:[a-z][\w.-]{1,60})(?:, \S{1,253})?\s)"
)
"""The columns of `kubectl get events` and of `kubectl describe`, before the message."""


def _layer(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_LAYERS: Final = (
    _layer(r"\(combined from similar events\): "),
    _layer(r"failed (?:to )?create pod sandbox: "),
    _layer(r"(?<!due to )(?<!desc = )rpc error: code = \w{1,30} desc = "),
    # The kubelet, of a teardown.
    _layer(
        r'error killing pod: \[?failed to "KillPodSandbox" for "(?P<pod_uid>[^"]{1,60})" '
        r'with KillPodSandboxError: "?'
    ),
    # containerd
    _layer(
        r"(?P<containerd>failed to (?P<operation>setup|destroy) network for sandbox) "
        r'"(?P<sandbox_id>[^"]{1,100})": '
    ),
    _layer(r'(?P<containerd>failed to forcibly stop sandbox) "(?P<sandbox_id>[^"]{1,100})": '),
    # CRI-O
    _layer(
        r"(?P<crio>(?:failed to (?P<operation>create|destroy) (?:pod network|network for pod) "
        r"sandbox|network teardown failed for pod sandbox)) "
        r"\S{1,400}?\((?P<sandbox_id>[0-9a-f]{1,64})\): "
    ),
    _layer(
        r"(?P<crio>error (?P<operation>adding|removing) pod) (?P<crio_pod>\S{1,320}) "
        r'(?:to|from) CNI network "(?P<network>[^"\s]{1,253})": '
    ),
    _layer(r"(?P<crio>stop pod network): "),
    # docker
    _layer(
        r"(?P<docker>failed to (?:set up|teardown|clean up|stop)) sandbox container "
        r'"(?P<sandbox_id>[^"]{1,100})" network for pod "[^"]{1,253}": '
    ),
    _layer(
        r"(?P<docker>networkPlugin) \S{1,30} failed to (?P<operation>set up|teardown|tear down) "
        r'pod "(?P<docker_pod>[^"\s]{1,320})" network: '
    ),
    # libcni
    _layer(
        r'plugin type="(?P<plugin>[^"\s]{1,100})"(?: name="(?P<plugin_name>[^"\s]{1,253})")? '
        r"failed \((?P<operation>add|delete)\): "
    ),
    # Plugins that call others.
    _layer(r"failed to delegate (?P<operation>add|del)\w{0,4}: "),
    _layer(r"\[(?P<pod>[^\]\s/]{1,63}/[^\]\s/:]{1,253})(?:/[^\]\s]{0,300})?\]: "),
    _layer(
        r'error (?:adding|removing) \S{1,20} (?:to|from) network "(?P<network>[^"\s]{1,253})": '
    ),
    _layer(
        r'delegate(?:Add|Del): error invoking Delegate(?:Add|Del) - "(?P<plugin>[^"\s]{1,100})": '
    ),
    _layer(
        r'delegate(?:Add|Del): error invoking conflist(?:Add|Del) - "(?P<network>[^"\s]{1,253})": '
    ),
    _layer(r"(?:conflist(?:Add|Del): )?error in getting result from \w{1,30}: "),
    _layer(r"Multus: "),
    # The state of the node's network
    _layer(
        r"(?:(?:container )?runtime network not ready: )?NetworkReady=false "
        r"reason:\w{1,40} message: ?(?:Network plugin returns error: |"
        r"docker: network plugin is not ready: )?"
    ),
    _layer(
        r"CNI request failed with status \d{3}: '.{0,1500}?ERRORED: error configuring pod "
        r"\[(?P<pod>[^\]\s]{1,320})\] networking: "
    ),
    _layer(r"running IPAM plugin failed: "),
    _layer(r"failed to invoke delegated plugin (?P<operation>ADD|DEL)\w{0,4} for IPAM: "),
)
"""What programs write before the words of the one below them."""
_VARIABLE: Final = (
    (
        re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE),
        "*",
    ),
    (re.compile(r"\b[0-9a-f]{12,64}\b", re.IGNORECASE), "*"),
    (re.compile(r"\b(?:veth|cali|lxc|tap)[0-9a-f]{4,20}\b"), "*"),
    (
        re.compile(r"\[?[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?:/\d{1,3}|-\*)?\]?", re.IGNORECASE),
        "*",
    ),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?:/\d{1,2})?"), "*"),
    (re.compile(r'"[^"\s/]{0,253}_[^"\s/]{1,253}"|\bk8s_\S{1,400}'), "*"),
    (re.compile(r'\b(pod|sandbox|container) "[^"]{1,253}"'), r"\1 *"),
    (re.compile(r"\b(?:\d{1,6}(?:\.\d{1,12})?(?:ms|µs|h|m|s)){1,3}\b"), "#"),
    (re.compile(r"\d{1,20}"), "#"),
    (re.compile(r"\*(?:[,-]\*)+"), "*"),
)
"""In this order: IDs, interfaces, addresses, pods, durations, numbers, lists of these."""


class Addresses(Word):
    """What a message has to do with host-local's reservations."""

    DECIDE = "HL", "host-local's reservations decide: look at them."
    CONFIGURED = "file", "It is about host-local, but addresses are not short."
    LEAKING = "L", "It is not about addresses, but each retry can leave one reserved."
    HELD = "H", "It is not about addresses, but pods keep theirs until they can be torn down."
    BOTH = (
        "L, H",
        "It is not about addresses, but retries can leave some reserved, and pods keep theirs.",
    )
    UNRELATED = "none", "It has nothing to do with host-local's addresses."


@dataclass(frozen=True, slots=True)
class Pattern:
    """Constant parts of a message, in their order, and the names of what stands between them."""

    text: str
    parts: tuple[str, ...]
    names: tuple[str, ...]
    at_start: bool
    at_end: bool

    def match(self, text: str) -> dict[str, str] | None:
        """Return what stands in the variable parts, by name. None: the text is another message.

        Upper and lower case are equal. It takes one pass over the text, whatever the text is.
        """
        lower = text.translate(_LOWER)
        values: dict[str, str] = {}
        end = 0
        for index, part in enumerate(self.parts):
            start = self._start(lower, part, index, end)
            if start < end:
                return None
            if index:
                values[self.names[index - 1]] = text[end:start]
            end = start + len(part)
        if len(self.names) == len(self.parts):
            values[self.names[-1]] = _first_word(text[end:])
        return values

    def _start(self, lower: str, part: str, index: int, end: int) -> int:
        if index == 0 and self.at_start:
            return 0 if lower.startswith(part) else -1
        if index == len(self.parts) - 1 and self.at_end:
            return len(lower) - len(part) if lower.endswith(part) else -1
        return lower.find(part, end)


@dataclass(frozen=True, slots=True)
class Entry:
    """One known message."""

    key: str
    group: str
    component: str
    """The program that prints it."""
    patterns: tuple[Pattern, ...]
    unless: tuple[str, ...]
    """Words, in lower case, with which the whole text is another message."""
    addresses: Addresses
    meaning: str
    look: str
    """What to look at on this node; empty: nothing here proves or refutes it."""
    steps: tuple[str, ...]
    """`{names}` are variable parts of the patterns."""
    since: str
    """Version of the component; empty: not known, or long ago."""
    until: str
    samples: tuple[str, ...]

    def match(self, layer: str, whole: str) -> dict[str, str] | None:
        """Return the variable parts of a layer of a whole text, or None if it is not this."""
        lower = whole.translate(_LOWER)
        if any(words in lower for words in self.unless):
            return None
        matches = (pattern.match(layer) for pattern in self.patterns)
        return next((values for values in matches if values is not None), None)


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
    """The type of the innermost CNI plugin that is named."""
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
    event = _EVENT.search(rest[:400])
    if event:
        values["reason"] = event["reason"]
        rest = rest[event.end() :]
    layers = [rest]
    while len(layers) < _MOST_LAYERS:
        first = _first_layer(rest)
        if first is None:
            break
        values |= {name: value for name, value in first.groupdict().items() if value}
        rest = rest[first.end() :].lstrip()
        if not rest:
            break
        layers.append(rest)
    return _peeled(tuple(reversed(layers)), values)


def find(text: str) -> Entry | None:
    """Return the entry of the innermost layer of a message that has one."""
    found = find_parts(text)
    return found[0] if found else None


def find_parts(text: str) -> tuple[Entry, dict[str, str]] | None:
    """Return the entry as `find` does, and the variable parts that its pattern names."""
    for entry, values in _matches(text):
        return entry, values
    return None


def matching(text: str) -> list[Entry]:
    """Return all entries of the innermost layer that has one: more than one is a mistake."""
    return [entry for entry, _ in _matches(text)]


def without_variable_parts(text: str) -> str:
    """Return a key: the same for messages that differ in IDs, names, addresses and numbers."""
    peeled = peel(text)
    words = peeled.words[:_LONGEST_TEXT]
    for pattern, replacement in _VARIABLE:
        words = pattern.sub(replacement, words)
    named = (peeled.plugin, peeled.operation, words)
    return " ".join(filter(None, named))


@cache
def entries() -> tuple[Entry, ...]:
    """Return all entries, in the order of the file."""
    tree = tomllib.loads(files("agent.model").joinpath("messages.toml").read_text())
    return tuple(
        _entry(key=key, group=group, row=row)
        for group, of_group in tree.items()
        for key, row in of_group.items()
    )


def _matches(text: str) -> Iterator[tuple[Entry, dict[str, str]]]:
    layers = peel(text).layers
    for layer in layers:
        found = [
            (entry, values)
            for entry in entries()
            if (values := entry.match(layer, layers[-1])) is not None
        ]
        if found:
            yield from found
            return


def _entry(*, key: str, group: str, row: Mapping[str, object]) -> Entry:
    return Entry(
        key=key,
        group=group,
        component=str(row["component"]),
        patterns=tuple(map(_pattern, _strings(row["patterns"]))),
        unless=tuple(words.lower() for words in _strings(row.get("unless"))),
        addresses=Addresses(str(row["addresses"])),
        meaning=_paragraph(row["meaning"]),
        look=_paragraph(row.get("look", "")),
        steps=tuple(map(_paragraph, _strings(row["steps"]))),
        since=str(row.get("since", "")),
        until=str(row.get("until", "")),
        samples=_strings(row["samples"]),
    )


def _strings(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _paragraph(value: object) -> str:
    return " ".join(str(value).split())


def _pattern(text: str) -> Pattern:
    """Read a pattern: `{name}` is variable; `^` and `$` are the ends of a layer."""
    inner = text.removeprefix("^").removesuffix("$")
    parts = []
    names = []
    for literal, name, _, _ in Formatter().parse(inner):
        parts.append(literal.translate(_LOWER))
        if name is not None:
            names.append(name)
    return Pattern(
        text=text,
        parts=tuple(parts),
        names=tuple(names),
        at_start=text.startswith("^"),
        at_end=text.endswith("$"),
    )


def _first_word(text: str) -> str:
    """Return what a variable part at the end of a pattern stands for."""
    return re.split(r"[\s,;\"'\]]", text[:300], maxsplit=1)[0].rstrip(".:)")


def _plain(text: str) -> str:
    """Return a text on one line, its quotes as they were before others escaped them."""
    text = " ".join(text[:_LONGEST_INPUT].translate(_QUOTES).replace("&quot;", '"').split())
    for _ in range(_MOST_ESCAPES):
        if '\\"' not in text:
            break
        text = _ESCAPED.sub(lambda found: " " if found[1] in "nt" else found[1], text)
    for rest in _REPETITIONS:
        text = text.partition(rest)[0]
    return text[:_LONGEST_TEXT].strip()


def _first_layer(text: str) -> re.Match[str] | None:
    """Return the layer that begins first."""
    found = [match for layer in _LAYERS if (match := layer.search(text))]
    return min(found, key=lambda match: (match.start(), -match.end()), default=None)


def _peeled(layers: tuple[str, ...], values: Mapping[str, str]) -> Peeled:
    whole = layers[-1]
    asked = _REQUESTED.search(whole)
    full = _RANGE_SET.search(whole)
    missing = _NO_BINARY.search(whole)
    return Peeled(
        words=_without_rest(layers[0]),
        layers=layers,
        reason=values.get("reason"),
        runtime=_runtime(values),
        plugin=_plugin(values.get("plugin"), missing["plugin"] if missing else None),
        plugin_name=values.get("plugin_name"),
        network=_last_network(whole),
        operation=_operation(values),
        pod=_pod(values),
        sandbox_id=values.get("sandbox_id"),
        requested_ip=asked["ip"].rstrip(".:") if asked else None,
        range_set=full["range_set"].rstrip(".:,-") if full else None,
    )


def _without_rest(text: str) -> str:
    """Cut off what closes the quotes and lists of outer layers."""
    for closing, opening in (('"', '"'), ("]", "["), ("'", "'")):
        count = text.count(closing) - (text.count(opening) if opening != closing else 0)
        if text.endswith(closing) and (count > 0 if opening != closing else count % 2):
            text = text[:-1].rstrip()
    return text


def _plugin(called: str | None, missing: str | None) -> str | None:
    """Return the plugin that failed: of Multus, the one that it should call."""
    if called is None or called.startswith("multus"):
        return missing or called
    return called


def _runtime(values: Mapping[str, str]) -> str | None:
    return next(
        (runtime for runtime in ("containerd", "crio", "docker") if runtime in values), None
    )


def _operation(values: Mapping[str, str]) -> str | None:
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
    found = list(_NETWORK.finditer(text))
    return next(filter(None, found[-1].groups()), None) if found else None
