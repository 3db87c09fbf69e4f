"""The daemon while the disk of its state directory is full: a real tmpfs."""

import json
import os
import shutil
from pathlib import Path

from tests.cli.commands import SmallNode, engine, running, served, syncs
from tests.wire import FakeServer, needs, until

FULL = 'mount -t tmpfs -o size=64k state "$0" && { cat /dev/zero >"$0/filled" 2>&-; exec "$@"; }'


def unavailable(port: int) -> dict[str, str]:
    code, body = served(port, "/api/v1/status")
    return {one["source"]: one["why"] for one in json.loads(body)["unavailable"]} if code == 200 else {"status": body}


def test_a_full_disk_is_reported_and_everything_else_goes_on(tmp_path: Path) -> None:
    needs(os.geteuid() == 0 and shutil.which("unshare") is not None, "root and util-linux, to mount disks")
    state, why = tmp_path / "state", f"{tmp_path}/state: no space left on device"
    state.mkdir()
    (tmp_path / "device-plugins").mkdir()
    prefix = ("unshare", "--mount", "--propagation=private", "sh", "-c", FULL, str(state))
    quick = ("--api=off", "--listen=127.0.0.1:0", "--interval=200ms", "--confirm-after=100ms")
    with FakeServer(engine, at=tmp_path / "docker.sock") as docker:
        node = SmallNode(tmp_path, docker)
        with running(*node.options, *quick, prefix=prefix) as agent:
            port = agent.log_event("agent.started")["port"]
            until(lambda: unavailable(port).get("state") == why, f"the status says {why}, not {unavailable(port)}")
            assert why in [one["why"] for one in agent.events if one["event"] == "source.unavailable"]
            until(lambda: 'nodeleak_source_up{source="state"} 0.0' in served(port, "/metrics")[1], "the metrics say so")
            before = syncs(port)
            until(lambda: syncs(port) > before + 5, "syncs go on")
            assert served(port, "/healthz")[0] == 200
            assert "10.244.1.9" in served(port, "/")[1]
            assert 'nodeleak_reservations{network="kubenet",state="leaked"} 1.0' in served(port, "/metrics")[1]
            Path(f"/proc/{agent.process.pid}/root{state}/filled").unlink()
            until(lambda: "state" not in unavailable(port), "the source is available again")
            assert "state" in [one["source"] for one in agent.events if one["event"] == "source.recovered"]
