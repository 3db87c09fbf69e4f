"""Smoke test of an image: import every module of the installed agent and make both clients send a request.

The Dockerfile runs it with `python3 -P`, so that it imports the installed agent and not the sources beside this file.
"""

import importlib
import pkgutil
import sys
import tempfile
from pathlib import Path

import agent
from agent.app import loop
from agent.sources.kube.api import Api, ServerInfo
from agent.sources.kube.loader import loader
from agent.sources.runtime.docker import Docker
from agent.sources.source_error import SourceError

KUBECONFIG = """current-context: here
contexts: [{name: here, context: {cluster: here, user: us}}]
clusters: [{name: here, cluster: {server: "https://127.0.0.1:9"}}]
users: [{name: us, user: {token: none}}]
"""

for name in sorted(
    {module.name for module in pkgutil.walk_packages(agent.__path__, "agent.")} - {"agent.__main__"}
):
    importlib.import_module(name)

with tempfile.TemporaryDirectory() as directory:
    kubeconfig = Path(directory, "kubeconfig")
    kubeconfig.write_text(KUBECONFIG)
    api = Api(loader(kubeconfig, 1).load(), 1, ServerInfo(loop.now))
    for request in (lambda: api.get("/"), Docker(f"unix://{directory}/docker.sock", 1).containers):
        try:
            request()
        except SourceError as expected:
            print(f"smoke: {expected}")
        else:
            sys.exit("smoke: a request to a closed port succeeded")
