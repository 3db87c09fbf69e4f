"""Add what a base image has to the SBOM of the agent (CycloneDX on stdin): hack/release runs it in that image."""

import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import quote

DPKG = (
    "dpkg-query",
    "--show",
    "--showformat=${Package} ${Version} ${Architecture} ${source:Package}\n",
)


def component(
    kind: str, name: str, version: str, place: str = "", qualifiers: str = ""
) -> dict[str, str]:
    purl = f"pkg:{kind}/{place}{quote(name, safe='')}@{quote(version, safe=':~')}{qualifiers}"
    return {
        "bom-ref": f"base {purl}",
        "name": name,
        "purl": purl,
        "type": "library",
        "version": version,
    }


def base() -> Iterator[dict[str, str]]:
    system = platform.freedesktop_os_release()
    named = {"name": system["ID"], "version": system.get("VERSION_ID", "unstable")}
    yield {"bom-ref": "base system", "type": "operating-system", **named}
    yield component("generic", "python", platform.python_version())
    for package in importlib.metadata.distributions():
        yield component("pypi", package.name, package.version)
    for line in subprocess.run(
        DPKG, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        name, version, architecture, source = line.split()
        qualifiers = (
            f"?arch={architecture}&distro={'-'.join(named.values())}&upstream={quote(source)}"
        )
        yield component("deb", name, version, f"{system['ID']}/", qualifiers)


document = json.load(sys.stdin)
document["components"] += {one["bom-ref"]: one for one in base()}.values()
print(json.dumps(document, indent=2))
