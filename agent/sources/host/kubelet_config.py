"""Which container runtime a kubelet uses, by its command line and its configuration files.

The files are `--config`, and `--config-dir` over it.

The directory (KEP-3983) is walked as in Kubernetes' `cmd/kubelet/app/server.go`: every `*.conf` in
it and below, in lexical order, each merged over what came before. Other files and links to
directories are left out. Flags win over all files. Anyone can name a process kubelet and choose its
files, so there is a bound on everything.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from agent.model.runtime import DOCKER
from agent.model.settings import endpoint_path
from agent.model.text import escape
from agent.sources.host.files import names_in, open_directory, read_file
from agent.sources.source_error import SourceError

_ENDPOINT: Final = re.compile(
    r"""(?:^[ \t]*|[{,][ \t\r\n]{0,64})["']?containerRuntimeEndpoint["']?"""
    r"""[ \t]*:[ \t]*["']?([^"'\s,}#]*)""",
    re.MULTILINE,
)
"""The field in YAML or JSON. A parser would cost every command its import.

Space that crosses lines without a bound would make the time for blank lines quadratic.
"""
_NULLS: Final = frozenset({"null", "Null", "NULL", "~"})

_SUFFIX: Final = ".conf"
_MAX_DROP_INS: Final = 64  # files that are read; some tools write one for each setting
_MAX_LEVELS: Final = 4  # of directories
_DOCKERS_SOCKETS: Final = ("dockershim", "cri-docker")
"""How their names begin: `cri-dockerd-mke.sock` is docker's, and the socket of docker's own
containerd is not."""


def flag(name: str, words: Sequence[str]) -> str | None:
    """Return the value of a flag, which follows as an argument or after `=`; the last value counts.

    The kubelet takes underscores for dashes, as in `--container_runtime_endpoint`.
    """
    value = None
    for index, word in enumerate(words):
        option, equals, attached = word.partition("=")
        if option.replace("_", "-") == f"--{name}":
            value = attached if equals else next(iter(words[index + 1 : index + 2]), "")
    return None if value is None else escape(value)


def named_runtime(words: Sequence[str], process: Path) -> str:
    """Return `docker`, or the endpoint of another runtime; empty: neither flags nor files name one.

    `words`: the kubelet's command line. `process`: its directory in the process table.
    """
    # Without a name it is not docker: a kubelet without any of these flags uses containerd (>=
    # 1.24), or docker without a network. With `--container-runtime=docker`, dockershim listens at
    # the endpoint.
    runtime = flag("container-runtime", words)
    endpoint = flag("container-runtime-endpoint", words)

    # Only kubelets with dockershim (< 1.24) have `--network-plugin`, and their default is docker.
    has_default = runtime is None and flag("network-plugin", words) is not None
    if runtime == DOCKER or (has_default and not endpoint):
        return DOCKER

    if not endpoint:
        endpoint = _configured_endpoint(flag("config", words), flag("config-dir", words), process)
    path = _without_link(endpoint_path(endpoint), process / "root")
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


def _configured_endpoint(config: str | None, config_dir: str | None, process: Path) -> str:
    """Return the endpoint that the files name; empty: none, or what they name cannot be read.

    `config` and `config_dir`: the values of these flags. `process`: of the kubelet, in the process
    table.
    """
    # A drop-in that cannot be read may name another endpoint than the files before it.
    try:
        endpoint = ""
        for path in _files(config, config_dir, process):
            content, _ = read_file(path, follow=True)
            if field := _ENDPOINT.search(content.decode(errors="replace")):
                endpoint = "" if field[1] in _NULLS else field[1]
    except (OSError, SourceError):
        return ""
    return escape(endpoint)


def _files(config: str | None, config_dir: str | None, process: Path) -> Iterator[str]:
    """Yield the files in the order in which they apply; raises OSError and SourceError."""
    if config:
        yield _path_of_process(config, process)
    if config_dir:
        root = _path_of_process(config_dir, process)
        if stat.S_ISDIR(os.lstat(root).st_mode):  # Go does not walk a link
            for count, path in enumerate(_drop_ins(root, _MAX_LEVELS), start=1):
                if count > _MAX_DROP_INS:
                    raise SourceError(f"{root} has more than {_MAX_DROP_INS} drop-ins")
                yield path


def _drop_ins(directory: str, levels: int) -> Iterator[str]:
    """Yield the drop-ins of a directory in the order of Go's `WalkDir`; raises SourceError."""
    if not levels:
        raise SourceError(f"{directory} is too deep")
    with open_directory(Path(directory)) as handle:
        names = sorted(names_in(handle, directory), key=os.fsencode)
        is_directory = {name: stat.S_ISDIR(os.lstat(name, dir_fd=handle).st_mode) for name in names}

    for name, is_below in is_directory.items():
        if is_below:
            yield from _drop_ins(f"{directory}/{name}", levels - 1)
        elif name.endswith(_SUFFIX):
            yield f"{directory}/{name}"


def _path_of_process(path: str, process: Path) -> str:
    """Return where a path of a process is; a relative one starts at its working directory."""
    return f"{process}/root{path}" if path.startswith("/") else f"{process}/cwd/{path}"
