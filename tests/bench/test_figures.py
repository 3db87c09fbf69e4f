"""How figures are found in what was measured."""

import os
import subprocess
import sys
from pathlib import Path

from tests.bench import containerd
from tests.bench.inside import imported_packages
from tests.bench.resident import values

_CRI = "/runtime.v1.RuntimeService"


def test_the_values_of_a_metric_are_those_with_the_label() -> None:
    metrics = 'found{network="a",state="in_use"} 2.0\nfound{network="a",state="leaked"} 1.0\nfound_total 7.0\n'
    assert values(metrics, "found{", 'state="in_use"') == [2.0]
    assert values(metrics, "found{") == [2.0, 1.0]
    assert values(metrics, "found_total ") == [7.0]
    assert values("", "found{") == []


def test_python_reports_every_import_also_a_late_one() -> None:
    late = "import sys; print('| wave |', file=sys.stderr); import xml.dom"
    done = subprocess.run(
        [sys.executable, "-c", late],
        env=os.environ | {"PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = imported_packages(done.stderr)
    assert {"xml", "encodings"} <= found
    assert not {"wave", "docker"} & found


def test_requests_to_containerds_own_stores_miss_the_target() -> None:
    healthy = {f"{_CRI}/ListPodSandbox": 5, f"{_CRI}/Status": 5}
    by_cri, own = containerd.requests(healthy, 5)
    assert (by_cri.measured, own.measured, own.met) == ("5 ListPodSandbox, 5 Status", "0", True)
    asked = {"/containerd.services.containers.v1.Containers/List": 1}
    (_, own) = containerd.requests(healthy | asked, 5)
    assert (own.measured, own.met) == ("1", False)


def test_a_proxy_that_was_not_used_proves_nothing() -> None:
    (_, own) = containerd.requests({}, 5)
    assert not own.met


def test_docker_is_not_imported_only_where_imports_were_recorded() -> None:
    found = [containerd.imports(packages) for packages in ({"h2"}, {"h2", "docker"}, set[str]())]
    assert [(one.measured, one.met) for one in found] == [("no", True), ("yes", False), ("no", False)]


def test_the_one_liner_removes_nothing(tmp_path: Path) -> None:
    for ip, owner in (("10.0.0.2", "a" * 64), ("10.0.0.3", "b" * 64)):
        (tmp_path / ip).write_text(f"{owner}\r\neth0")
    (tmp_path / "last_reserved_ip.0").write_text("10.0.0.3")
    (tmp_path / "lock").touch()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = subprocess.run(
        ["bash", "-c", containerd.one_liner()],  # noqa: S607 (found in PATH, as by everybody)
        env=os.environ | {"STRESS_STORE": str(tmp_path), "STRESS_PODS": f"echo {'a' * 64}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "10.0.0.3\n"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
