"""Debian's packages of several containerd versions, unpacked side by side: nothing of the machine is installed."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CACHE: Final = Path(
    os.environ.get("NODELEAK_CONTAINERD_CACHE", "/var/cache/nodeleak-cluster/containerd")
)
_PACKAGED: Final = {
    "1.6": ("bookworm", "1.6.20"),
    "1.7": ("trixie", "1.7.24"),
    "2": ("sid", "2.1.9"),
}
"""The suite of each version, and the release that the tests were tried with: sid's changes."""
VERSIONS: Final = tuple(_PACKAGED)
_PROGRAMS: Final = ("containerd", "ctr", "containerd-shim-runc-v2")
_KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
_TIMEOUT: Final = 300.0  # Seconds for one call of apt


class CannotRun(Exception):
    """The text names what is needed, and what this machine does not have."""


@dataclass(frozen=True, slots=True)
class Packages:
    """One version."""

    family: str  # As given: 1.6, 1.7 or 2
    directory: Path

    @property
    def binaries(self) -> Path:
        return self.directory / "usr/bin"


def unpacked(family: str) -> Packages:
    """Return the packages of a version, downloaded if they are not in the cache; raises CannotRun."""
    suite, release = _PACKAGED[family]
    packages = Packages(family, CACHE / f"{suite}-{release}")
    if not all((packages.binaries / name).exists() for name in _PROGRAMS):
        _fetch(suite, release, packages)
    return packages


def _fetch(suite: str, release: str, packages: Packages) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise CannotRun("apt-get and dpkg-deb, to unpack containerd of Debian")
    private = CACHE / f"apt-{suite}"
    (private / "lists/partial").mkdir(parents=True, exist_ok=True)
    (private / "archives/partial").mkdir(parents=True, exist_ok=True)
    (private / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {_mirror()} {suite} main\n")
    # apt uses its own list of sources and its own directories: the machine's configuration is not changed.
    settings = {
        "Dir::Etc::sourcelist": private / "sources.list", "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": private / "lists", "Dir::Cache": private, "APT::Sandbox::User": "root",
    }  # fmt: skip
    apt = [
        "apt-get",
        "-qq",
        *(word for key, value in settings.items() for word in ("-o", f"{key}={value}")),
    ]
    _run(*apt, "update")
    _run(*apt, "download", "containerd", at=private)
    (package,) = private.glob("containerd_*.deb")
    _check_release(suite, release, _run("dpkg-deb", "--field", str(package), "Version").strip())
    unpacking = packages.directory.with_suffix(".new")
    shutil.rmtree(unpacking, ignore_errors=True)
    _run("dpkg-deb", "-x", str(package), str(unpacking))
    shutil.rmtree(packages.directory, ignore_errors=True)
    unpacking.rename(packages.directory)
    shutil.rmtree(private)


def _check_release(suite: str, release: str, version: str) -> None:
    """Accept every package of this release: of a stable suite, it gets security fixes. Raises CannotRun."""
    if not re.match(rf"{re.escape(release)}(?![.\d])", version):
        raise CannotRun(
            f"containerd {release}, and {suite} has {version} now: try it, and write it into {__name__}"
        )


def _mirror() -> str:
    """Return the address of Debian's packages in apt's own configuration; raises CannotRun."""
    configuration = Path("/etc/apt")
    for file in [
        *sorted((configuration / "sources.list.d").glob("*")),
        configuration / "sources.list",
    ]:
        text = (
            file.read_text(errors="replace")
            if file.suffix in {".sources", ".list"} and file.is_file()
            else ""
        )
        for address in re.findall(
            r"(?m)^(?:URIs:\s*|deb (?:\[.*\] )?)(\S+/debian)/?(?:\s|$)", text
        ):
            return str(address)
    raise CannotRun(f"a mirror of Debian in apt's configuration ({configuration})")


def _run(*command: str, at: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=at, capture_output=True, text=True, check=False, timeout=_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(f"a working {command[0]}: {error}") from error
    if done.returncode:
        raise CannotRun(f"a working `{' '.join(command)}`: {done.stderr.strip()[-400:]}")
    return done.stdout
