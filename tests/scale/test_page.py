"""docs/scale.md is what the committed measurement says."""

import json
from pathlib import Path

from tests.scale import page, session


def test_the_document_is_written_from_the_record() -> None:
    assert page.DOCUMENT.read_text() == page.document(page.read()), "run python -m tests.scale --write"


def test_arrivals_are_those_of_agents(tmp_path: Path) -> None:
    def line(user: str, verb: str, second: int) -> str:
        return json.dumps(
            {
                "user": {"username": user},
                "verb": verb,
                "requestURI": "/api/v1/pods?fieldSelector=spec.nodeName%3Dworker-1&limit=500",
                "objectRef": {"resource": "pods"},
                "requestReceivedTimestamp": f"2026-01-01T00:00:{second:02}.500000Z",
            }
        )

    log = tmp_path / "audit.log"
    agent = "system:serviceaccount:kube-system:nodeleak"
    log.write_text("\n".join([line(agent, "list", 3), line("system:apiserver", "list", 0), line(agent, "watch", 1)]))
    found = session.arrivals(log)
    assert [(node, kind) for _, node, kind in found] == [("worker-1", "watch pods"), ("worker-1", "list pods")]
    began = found[0][0] - 1
    since = session.since(found, began, began, 10)
    assert (since["first"], since["lists"], since["each_second"][:4]) == ([1.0], [3.0], [0, 1, 0, 1])
    assert session.since(found, began, began, 2)["requests"] == {"watch pods": 1}
