"""Many agents in one process: `python -m tests.scale.agents KUBECONFIG SPREAD NODE...`

Each has the reflectors of the deployed daemon (`agent.app.api_server.watched`) with their default settings, in threads
of their own. They start within SPREAD seconds. SIGUSR1 breaks all connections, as a load balancer does whose API server
goes away. It prints a line once every agent has its pods and its Node.
"""

import os
import random
import signal
import socket
import stat
import sys
import threading
import time
from contextlib import suppress

from agent.app import api_server
from agent.config import load

_STACK = 256 * 1024
_SWITCH = 0.1
"""Seconds. With the default of 5 ms, hundreds of threads that a restarted server answers at once take turns so often
that they get nothing else done."""


def main(kubeconfig: str, spread: float, nodes: list[str]) -> None:
    threading.stack_size(_STACK)
    sys.setswitchinterval(_SWITCH)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGUSR1, lambda *_: _break_connections())
    reflectors = []
    starts = sorted((random.uniform(0, spread), node) for node in nodes)
    began = time.monotonic()
    for start, node in starts:
        config = load("run", {"node": node, "kubeconfig": kubeconfig}, {})
        _, watches = api_server.watched(config)
        time.sleep(max(0.0, began + start - time.monotonic()))
        for watch in watches:
            threading.Thread(target=watch.run, args=(stop,), daemon=True).start()
        reflectors += watches
    while any(type(one.reading()).__name__ != "Known" for one in reflectors):
        time.sleep(0.2)
    print("ready", flush=True)
    stop.wait()
    os._exit(0)  # thousands of threads wait for the server


def _break_connections() -> None:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as connection:
                    connection.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
