"""Many agents in one process: `python -m tests.bench.agents KUBECONFIG SPREAD NODE...`

Each has the reflectors of the deployed daemon (`agent.app.api_server.watched`) with their default settings, in threads
of their own. They start within SPREAD seconds. It prints a line once every agent has its pods and its Node.
"""

import os
import signal
import sys
import threading
import time

from agent.app import api_server
from agent.config import load
from agent.model.snapshot import Known

_STACK = 256 * 1024
_SWITCH = 0.1
"""Seconds. With the default of 5 ms, hundreds of threads that a restarted server answers at once take turns so often
that they get nothing else done."""


def main(kubeconfig: str, spread: float, nodes: list[str]) -> None:
    threading.stack_size(_STACK)
    sys.setswitchinterval(_SWITCH)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    reflectors = []
    for node in nodes:
        _, watches = api_server.watched(load("run", {"node": node, "kubeconfig": kubeconfig}, {}))
        for watch in watches:
            threading.Thread(target=watch.run, args=(stop,), daemon=True).start()
        reflectors += watches
        time.sleep(spread / len(nodes))
    for reflector in reflectors:
        while not isinstance(reading := reflector.reading(), Known):
            print(reading, file=sys.stderr, flush=True)
            time.sleep(1)
    print("ready", flush=True)
    stop.wait()
    os._exit(0)  # hundreds of threads wait for the server


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
