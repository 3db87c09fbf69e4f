"""The Grafana dashboard: its queries use metrics that exist, and Grafana's own types accept it."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, Final

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.deploy.monitoring import DASHBOARD, complaints, known_metrics

BOARD: Final[dict[str, Any]] = json.loads(DASHBOARD.read_text())
PANELS: Final[list[dict[str, Any]]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EACH = [pytest.param(panel, id=panel["title"]) for panel in PANELS]
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
UNITS: Final = {value for name, value in vars(units).items() if isinstance(value, str) and not name.startswith("_")}
WIDTH: Final = 24


def expressions(panel: Mapping[str, Any]) -> list[str]:
    """Return the queries of a panel as Grafana sends them."""
    asked = [target["expr"] for target in panel["targets"]]
    for variable, value in {"$__rate_interval": "5m", "$cluster": ".*", "$job": ".*", "$node": "worker-1"}.items():
        asked = [expr.replace(variable, value) for expr in asked]
    return asked


# Queries


@pytest.mark.parametrize("panel", EACH)
def test_a_panel_uses_only_metrics_and_labels_that_exist(panel: dict[str, Any]) -> None:
    assert expressions(panel)
    assert [complaint for expr in expressions(panel) for complaint in complaints(expr, known_metrics())] == []
    assert not any("$" in expr for expr in expressions(panel)), "an undefined variable"


def test_the_variables_are_the_source_cluster_job_and_node() -> None:
    source, cluster, job, node = BOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    for label, variable in (("cluster", cluster), ("job", job)):
        assert (variable["name"], variable["datasource"]) == (label, SOURCE)
        assert variable["query"]["query"] == f"label_values(cluster:nodeleak_agents:count, {label})"
        assert variable["allValue"] == ".*", "targets without the label count too"
    assert "cluster:nodeleak_agents:count" in known_metrics()
    assert (node["name"], node["type"]) == ("node", "textbox"), "a list of 15,000 nodes is of no use"


@pytest.mark.parametrize("panel", EACH)
def test_a_panel_shows_the_selected_clusters_and_jobs(panel: dict[str, Any]) -> None:
    for expr in (target["expr"] for target in panel["targets"]):
        selectors = re.findall(r"nodeleak_[a-z_:]+(\{.*?\})?", expr)
        assert [one for one in selectors if not one.startswith('{cluster=~"$cluster", job=~"$job"')] == []


@pytest.mark.parametrize("panel", [panel for panel in PANELS if panel["type"] == "table"], ids=lambda one: one["title"])
def test_a_table_of_the_fleet_has_at_most_20_rows(panel: dict[str, Any]) -> None:
    assert [
        target["expr"] for target in panel["targets"] if not re.search(r"\b(top|bottom)k\(20, ", target["expr"])
    ] == []


def test_the_first_row_is_the_fleet_and_the_second_one_node() -> None:
    fleet, node = [row for row in BOARD["panels"] if row["type"] == "row"]
    for panel in PANELS:
        of_one = panel["gridPos"]["y"] > node["gridPos"]["y"]
        assert all(("$node" in target["expr"]) is of_one for target in panel["targets"]), panel["title"]
    assert fleet["gridPos"]["y"] == 0
    assert "$node" in node["title"]


@pytest.mark.parametrize("panel", EACH)
def test_a_panel_has_a_data_source_a_unit_and_a_description(panel: dict[str, Any]) -> None:
    assert panel["datasource"] == SOURCE
    assert all(target["datasource"] == SOURCE for target in panel["targets"])
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["description"].endswith(".")
    seconds = any("seconds" in expr for expr in expressions(panel))
    assert (panel["fieldConfig"]["defaults"]["unit"] == "s") == seconds


@pytest.mark.parametrize("panel", EACH)
def test_a_legend_uses_labels_of_its_query(panel: dict[str, Any]) -> None:
    for target in panel["targets"] if panel["type"] not in {"stat", "table"} else ():
        grouped = re.search(r"by \(([a-z_, ]+)\)", target["expr"])
        kept = set(grouped[1].split(", ")) if grouped else set()
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) == kept - {"le"}


# Form


def test_the_dashboard_has_a_fixed_uid() -> None:
    assert (BOARD["uid"], BOARD["title"]) == ("nodeleak", "nodeleak")
    assert "id" not in BOARD, "Grafana assigns the id"


def test_panels_and_queries_have_unique_names() -> None:
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(numbers) == len(set(numbers))
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        letters = [target["refId"] for target in panel["targets"]]
        assert len(letters) == len(set(letters)), panel["title"]


def test_panels_do_not_overlap() -> None:
    places = {panel["title"]: panel["gridPos"] for panel in BOARD["panels"]}
    for title, at in places.items():
        assert 0 <= at["x"] < at["x"] + at["w"] <= WIDTH, title
    for (one, a), (other, b) in combinations(places.items(), 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, (one, other)


def test_grafanas_types_accept_every_key() -> None:
    plugins.register_default_plugins()
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(BOARD)))
    assert list(lost(BOARD, read)) == []


def test_an_unknown_key_is_detected() -> None:
    slip = json.loads(DASHBOARD.read_text())
    slip["panels"][1]["discription"] = "a mistake"
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(slip)))
    assert list(lost(slip, read)) == ["panels.1.discription"]


def lost(wrote: Any, read: Any, at: str = "") -> Iterator[str]:
    """Return the paths that are missing in another tree, or have another value there."""
    if isinstance(wrote, dict) and isinstance(read, dict):
        for key, value in wrote.items():
            yield from lost(value, read.get(key), f"{at}.{key}".lstrip("."))
    elif isinstance(wrote, list) and isinstance(read, list) and len(wrote) == len(read):
        for number, pair in enumerate(zip(wrote, read, strict=True)):
            yield from lost(*pair, f"{at}.{number}")
    elif wrote != read:
        yield at
