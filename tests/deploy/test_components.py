"""Components: each is its overlay without the base, they combine, and no field of them is deprecated."""

import itertools
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import ALL, COMPONENTS, Object, kubectl_has_components, kustomization, render, rendered
from tests.wire import needs

ADD_ONS = [one for one in ALL if one not in {"base", *COMPONENTS}]


@pytest.fixture(autouse=True)
def _components() -> None:
    needs(kubectl_has_components(), "kubectl 1.21 or newer, to render components")


def fields(components: Iterable[str], add_ons: Iterable[str] = ()) -> dict[str, Any]:
    return {
        "resources": [f"../deploy/{one}" for one in ("base", *add_ons)],
        "components": [f"../deploy/{one}/component" for one in components],
    }


def by_name(objects: Iterable[Object]) -> dict[tuple[str, str], Object]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


@pytest.mark.parametrize("name", COMPONENTS)
def test_the_base_with_a_component_is_the_overlay(name: str, tmp_path: Path) -> None:
    assert by_name(render(kustomization(tmp_path, **fields([name])))) == by_name(rendered(name))


@pytest.mark.parametrize("pair", [*itertools.combinations(COMPONENTS, 2)], ids="+".join)
def test_two_components_add_what_each_adds(pair: tuple[str, str], tmp_path: Path) -> None:
    both = by_name(render(kustomization(tmp_path, **fields(pair))))
    base = by_name(rendered("base"))
    for name in pair:
        alone = by_name(rendered(name))
        assert both.keys() >= alone.keys()
        added = _leaves(alone["DaemonSet", "nodeleak"]) - _leaves(base["DaemonSet", "nodeleak"])
        assert added <= _leaves(both["DaemonSet", "nodeleak"])


def test_everything_combines_without_a_warning(tmp_path: Path) -> None:
    directory = kustomization(tmp_path, **fields(COMPONENTS, ADD_ONS))
    command = [str(shutil.which("kubectl")), "kustomize", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 (ours)
    assert done.stderr == ""
    expected = set().union(*(by_name(rendered(one)).keys() for one in ALL))
    assert by_name(render(directory)).keys() == expected


def _leaves(tree: Any, path: str = "") -> set[tuple[str, object]]:
    """Return the values of an object with their paths; entries of a list are known by their name or path."""
    if isinstance(tree, dict):
        return set().union(*(_leaves(value, f"{path}/{key}") for key, value in tree.items()))
    if isinstance(tree, list):
        keys = [one.get("mountPath", one.get("name", "")) if isinstance(one, dict) else str(one) for one in tree]
        return set().union(*(_leaves(one, f"{path}[{key}]") for key, one in zip(keys, tree, strict=True)))
    return {(path, tree)}
