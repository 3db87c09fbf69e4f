"""The admission policy, by a real CEL evaluator: it admits what the agent writes, and nothing about other nodes."""

import importlib
import importlib.util
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from agent.kube_events.condition import Condition
from agent.kube_events.messages import About, EventSpec
from tests.deploy.manifests import Object, of_kind
from tests.wire import needs

Evaluate = Callable[[str, Object], Any]

OVERLAY = "overlays/admission-policy"
AGENT = "system:serviceaccount:kube-system:nodeleak"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NODE = {
    "metadata": {"name": "worker-1"},
    "status": Condition("False", "CNIAddressesAvailable", "").patch(NOW, changed=True)["status"],
}


def policy() -> Object:
    (only,) = of_kind(OVERLAY, "ValidatingAdmissionPolicy")
    spec: Object = only["spec"]
    return spec


def event(about: About, node: str = "worker-1", **changes: object) -> Object:
    """Return an Event as the API server has it after the agent wrote it."""
    spec = EventSpec(node=node, about=about, reason="LeakedReservation", message="1 leak")
    return spec.event(NOW) | changes


def of_node(name: str) -> About:
    return About("Node", "", name, name)


OWN = event(of_node("worker-1"))
OF_A_POD = event(About("Pod", "default", "web-0", "4e1b"))


def request(what: str, operation: str = "CREATE", node: str | None = "worker-1") -> Object:
    extra = {} if node is None else {"extra": {"authentication.kubernetes.io/node-name": [node]}}
    return {
        "operation": operation,
        "resource": {"group": "", "version": "v1", "resource": what},
        "userInfo": {"username": AGENT, **extra},
    }


@pytest.fixture(scope="module")
def evaluate() -> Evaluate:
    """Return what evaluates an expression of CEL."""
    needs(importlib.util.find_spec("celpy") is not None, "cel-python, to evaluate the policy")
    celpy = importlib.import_module("celpy")
    environment = celpy.Environment()

    def evaluated(expression: str, values: Object) -> Any:
        activation = {name: celpy.json_to_cel(value) for name, value in values.items()}
        try:
            return environment.program(environment.compile(expression)).evaluate(activation)
        except celpy.CELEvalError:
            return False  # with failurePolicy: Fail, an error denies the write

    return evaluated


def denials(evaluate: Evaluate, asked: Object, after: Object, before: Object | None = None) -> str:
    """Return the messages of the validations that deny a write; empty if it is admitted."""
    values: Object = {"request": asked, "object": after, "oldObject": before}
    values["variables"] = {
        one["name"]: str(evaluate(one["expression"], values)) for one in policy()["variables"]
    }
    return "\n".join(
        one["message"] for one in policy()["validations"] if not evaluate(one["expression"], values)
    )


def test_it_applies_to_the_agent_alone_is_bound_and_denies_if_an_expression_fails(
    evaluate: Evaluate,
) -> None:
    (condition,) = policy()["matchConditions"]
    account = "system:serviceaccount"
    users = {
        AGENT: True,
        f"{account}:monitoring:nodeleak": True,
        f"{account}:nodeleak:default": False,
    }
    for username, applies in {**users, "system:node:worker-1": False, "nodeleak": False}.items():
        assert (
            bool(
                evaluate(condition["expression"], {"request": {"userInfo": {"username": username}}})
            )
            is applies
        )
    assert policy()["failurePolicy"] == "Fail"
    (binding,) = of_kind(OVERLAY, "ValidatingAdmissionPolicyBinding")
    (defined,) = of_kind(OVERLAY, "ValidatingAdmissionPolicy")
    assert binding["spec"] == {
        "policyName": defined["metadata"]["name"],
        "validationActions": ["Deny"],
    }


OTHER = event(of_node("worker-2"), "worker-2")
OF_THE_KUBELET = OWN | {"source": {"component": "kubelet", "host": "worker-1"}}


def test_only_the_agents_own_events_and_the_condition_of_its_node_are_admitted(
    evaluate: Evaluate,
) -> None:
    other_node = NODE | {"metadata": {"name": "worker-2"}}
    without_source = {key: OWN[key] for key in OWN if key != "source"}
    for asked, after, before, message in (
        (request("nodes", "UPDATE"), other_node, NODE, "the status of its own Node"),
        (request("events"), OTHER, None, "the node of the agent as its source"),
        (request("events"), event(of_node("worker-2")), None, "may report only its own Node"),
        (request("events"), OF_THE_KUBELET, None, "must name nodeleak"),
        (request("events"), OWN | {"reportingComponent": "kubelet"}, None, "must name nodeleak"),
        (request("events"), without_source, None, "must name nodeleak"),
        (request("events", "UPDATE"), OWN, OF_THE_KUBELET, "only its own Events"),
        (request("events", "UPDATE"), OWN, OTHER, "only its own Events"),
        (request("events", node=None), OWN, None, "the token of the agent names no node"),
    ):
        assert message in denials(evaluate, asked, after, before)
    assert denials(evaluate, request("nodes", "UPDATE"), NODE, NODE) == ""
    for written in (OWN, OF_A_POD):
        assert denials(evaluate, request("events"), written) == ""
        assert denials(evaluate, request("events", "UPDATE"), written | {"count": 2}, written) == ""
