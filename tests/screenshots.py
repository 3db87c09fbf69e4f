"""`python -m tests.screenshots`: pictures of the web page for docs/, from a recorded node.

The reports come from a recording, so the pictures are the same on every machine; the server is the agent's own.
Needs Debian's chromium and the font Inter: `hack/cluster build` installs both.
"""

import argparse
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from playwright.sync_api import Browser, Error, sync_playwright

from agent.checks import engine
from agent.model.devices import DevicePlugins, PluginSocket, Registered
from agent.model.documents import loads
from agent.model.report import Report
from agent.model.snapshot import Known, Snapshot, Unavailable
from tests.builders import the_node
from tests.exporters.served import serving

ROOT: Final = Path(__file__).resolve().parents[1]
_CHROMIUM: Final = "/usr/bin/chromium"
_WIDTH, _HEIGHT = 1200, 820
_LARGEST: Final = 200_000  # Size limit of one picture in bytes: the README embeds them
_KUBELET_STARTED: Final = datetime(2021, 3, 26, 19, 16, 59, tzinfo=UTC)


def main() -> int:
    """Write the pictures and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.screenshots", description="Take pictures of the page."
    )
    parser.add_argument(
        "--to",
        type=Path,
        default=ROOT / "docs",
        metavar="DIR",
        help="where to write (default: docs/)",
    )
    options = parser.parse_args()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
            for name, report in screenshots().items():
                _take(browser, report, options.to / f"page-{name}.png", dark=False)
            _take(browser, screenshots()["leak"], options.to / "page-dark.png", dark=True)
    except Error as error:
        print(f"screenshots: {error.message}", file=sys.stderr)
        return 1
    return 0


def screenshots() -> dict[str, Report]:
    """Return reports of the recorded node: without leaks, with leaks, and with unavailable sources."""
    recording = loads((ROOT / "tests" / "nodes" / "incident.json").read_text())
    devices = Known(_devices())
    snapshots = tuple(replace(snapshot, device_plugins=devices) for snapshot in recording.snapshots)
    changed = {
        "healthy": tuple(map(_without_leaks, snapshots)),
        "leak": snapshots,
        "incomplete": tuple(map(_without_sources, snapshots)),
    }
    return {
        name: engine.replay(some, grace=recording.grace, confirm_after=recording.confirm_after)
        for name, some in changed.items()
    }  # fmt: skip


def _devices() -> DevicePlugins:
    """Return three plugins that registered again a few seconds after the kubelet started."""
    delays = {"kvm": 4.2, "tun": 4.4, "vhost-net": 9.5}
    return DevicePlugins(
        kubelet_socket=_KUBELET_STARTED + timedelta(seconds=1),
        sockets=tuple(
            PluginSocket(
                f"kubevirt-{name}.sock",
                _KUBELET_STARTED + timedelta(seconds=1 + after),
                connected=True,
            )
            for name, after in delays.items()
        ),
        checkpoint_written=_KUBELET_STARTED + timedelta(seconds=30),
        registered=tuple(
            Registered(f"devices.kubevirt.io/{name}", tuple(f"{name}{n}" for n in range(110)))
            for name in delays
        ),
        allocations=(),
    )


def _without_leaks(snapshot: Snapshot) -> Snapshot:
    """Return the node without leaks and with fewer pods."""
    containers = snapshot.containers.known()[:84]
    sandboxes, names = {one.id for one in containers}, {one.pod for one in containers}

    def of_them(reading: Any) -> Any:
        return Known(tuple(one for one in reading.known() if one.container_id in sandboxes))

    return replace(
        snapshot,
        reservations=tuple(
            replace(store, reading=of_them(store.reading)) for store in snapshot.reservations
        ),
        containers=Known(containers),
        checkpoints=of_them(snapshot.checkpoints),
        pods=Known(tuple(one for one in snapshot.pods.known() if one.name in names)),
        node=Known(replace(the_node(snapshot), max_pods=110)),
    )


def _without_sources(snapshot: Snapshot) -> Snapshot:
    snapshot = _without_leaks(snapshot)
    unavailable = Unavailable(
        "containers", "docker: no answer within 5 s (unix:///run/docker.sock)"
    )
    stale = Unavailable("pods", "no data from the API server for 3 min (--stale-after is 2 min)")
    return replace(snapshot, containers=unavailable, pods=stale)


def _take(browser: Browser, report: Report, to: Path, *, dark: bool) -> None:
    view = browser.new_page(
        viewport={"width": _WIDTH, "height": _HEIGHT},
        color_scheme="dark" if dark else "light",
        java_script_enabled=False,
    )
    with TemporaryDirectory() as state, serving(Path(state)) as server:
        server.export(report, 0.1)
        view.goto(f"http://127.0.0.1:{server.port}/?refresh=off")
        view.screenshot(path=to)
    view.close()
    size = to.stat().st_size
    print(f"{to}: {size // 1000} kB")
    if size > _LARGEST:
        raise Error(f"{to} is larger than {_LARGEST // 1000} kB")


if __name__ == "__main__":
    sys.exit(main())
