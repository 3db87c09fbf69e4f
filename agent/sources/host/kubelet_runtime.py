"""Which container runtime a kubelet uses, by its command line and its configuration file. Read-only."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agent.model.runtime import DOCKER, endpoint_path
from agent.model.text import escape
from agent.sources.host.files import read_file
from agent.sources.source_error import SourceError

_DOCKERS_SOCKETS: Final = ("dockershim", "cri-docker")
"""How they begin: `cri-dockerd-mke.sock` is docker's, and the socket of docker's own containerd is not."""
_ENDPOINT: Final = re.compile(
    r"""(?:^[ \t]*|[{,][ \t\r\n]{0,64})["']?containerRuntimeEndpoint["']?[ \t]*:[ \t]*["']?([^"'\s,}#]+)""",
    re.MULTILINE,
)
"""The field in YAML or JSON. A parser would cost every command its import.

Anyone can name a process kubelet and choose its file: space that crosses lines without a bound would make the time for
blank lines quadratic.
"""


def flag(name: str, words: Sequence[str]) -> str | None:
    """Return the value of a flag, which follows as an argument or after `=`; the last value counts."""
    found = None
    for index, word in enumerate(words):
        given, equals, value = word.partition("=")
        if given == f"--{name}":
            found = value if equals else next(iter(words[index + 1 : index + 2]), "")
    return None if found is None else escape(found)


def named_runtime(words: Sequence[str], root: Path) -> str:
    """Return `docker`, or the endpoint of another runtime; empty: neither place names a runtime.

    `root`: the kubelet's root directory. Without a name it is not docker: a kubelet without any of these flags uses
    containerd (>= 1.24), or docker without a network. With `--container-runtime=docker`, dockershim listens at the
    endpoint.
    """
    runtime, endpoint = flag("container-runtime", words), flag("container-runtime-endpoint", words)
    # Only kubelets with dockershim (< 1.24) have `--network-plugin`, and their default is docker.
    has_default = runtime is None and flag("network-plugin", words) is not None
    if runtime == DOCKER or (has_default and not endpoint):
        return DOCKER
    endpoint = endpoint or _configured(flag("config", words), root)
    path = _without_link(endpoint_path(endpoint), root)
    return DOCKER if path.rpartition("/")[2].startswith(_DOCKERS_SOCKETS) else path


def _without_link(path: str, root: Path) -> str:
    """Return where a socket really is: the runtime does not listen at a symbolic link."""
    if not path.startswith("/"):
        return path
    try:
        target = (root / path.lstrip("/")).readlink()
    except OSError:  # it is no link, or cannot be read
        return path
    return escape(endpoint_path(str(Path(path).parent / target)))


def _configured(path: str | None, root: Path) -> str:
    """Return the endpoint in the configuration file (>= 1.27); empty where it has none, or cannot be read."""
    if not path:
        return ""
    try:
        content, _ = read_file(root / path.lstrip("/"), follow=True)
    except (OSError, SourceError):  # anyone can name a process kubelet, and a device or FIFO as its file
        return ""
    found = _ENDPOINT.search(content.decode(errors="replace"))
    return escape(found[1]) if found else ""
