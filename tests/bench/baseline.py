"""A straightforward implementation, as a baseline for the agent: typed models, one request per container, plain gauges.

`python baseline.py KUBECONFIG DOCKER_HOST STORE NODE INTERVAL`. It prints its port. It uses each library as
on the first page of its documentation, reads what the agent reads, and classifies nothing.
"""

import sys
import time
from pathlib import Path
from typing import Any

import docker
import structlog
from kubernetes import client, config
from prometheus_client import Gauge, start_http_server
from tenacity import retry, stop_after_attempt

kubeconfig, docker_host, store, node, interval = sys.argv[1:]
config.load_kube_config(kubeconfig)
api = client.CoreV1Api()
engine = docker.DockerClient(base_url=docker_host)
log = structlog.get_logger()
leaked = Gauge("leaked", "Reservations without a container.")
pods_seen = Gauge("pods", "Pods on this node.")
done = Gauge("syncs", "Completed syncs.")


@retry(stop=stop_after_attempt(3))
def read() -> None:
    reserved = {
        path.name: path.read_text().split("\r\n")[0]
        for path in Path(store).iterdir()
        if path.name != "lock" and not path.name.startswith("last_reserved_ip")
    }
    containers = {container.id for container in engine.containers.list(all=True)}
    pods: Any = api.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={node}").items
    ips = {pod.status.pod_ip for pod in pods}
    pods_seen.set(len(pods))
    leaked.set(
        sum(1 for ip, owner in reserved.items() if owner not in containers and ip not in ips)
    )


server, _ = start_http_server(0, addr="127.0.0.1")
log.info("started", port=server.server_port)
while True:
    read()
    done.inc()
    time.sleep(float(interval))
