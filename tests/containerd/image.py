"""The image of a sandbox: one static binary that waits, in the format of `docker save`."""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from tests.containerd.packages import CannotRun

NAME: Final = "docker.io/nodeleak/pause:1"
_SOURCE: Final = Path(__file__).parents[2] / "hack/cluster.d/pause.c"


def build(binary: Path, image: Path) -> None:
    """Compile the binary and write the image; raises CannotRun."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        raise CannotRun("gcc, to build the image of a sandbox (Debian: apt-get install gcc libc6-dev)")
    done = subprocess.run(
        [compiler, "-static", "-Os", "-o", str(binary), str(_SOURCE)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CannotRun(f"a compiler that builds {_SOURCE.name}: {done.stderr[-300:]}")
    layer = _tar({"pause": binary.read_bytes()}, mode=0o755)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": ["/pause"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        }
    ).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]).encode()
    image.write_bytes(_tar({"manifest.json": manifest, "config.json": config, "layer.tar": layer}))


def _tar(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return written.getvalue()
