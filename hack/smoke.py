"""Import all of the installed agent, and have both of its clients ask: a library left out of an image shows here.

Run by the Dockerfile, with `python3 -P`: beside this file lie the agent's sources, and they are not what is tried.
"""

import importlib
import pkgutil
import sys
import tempfile
from pathlib import Path

import agent
from agent.sources.error import SourceError
from agent.sources.kube.client import Api
from agent.sources.runtime.docker import Docker

NOBODY = "https://127.0.0.1:9"
KUBECONFIG = f"""
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: us}}}}]
clusters: [{{name: here, cluster: {{server: "{NOBODY}"}}}}]
users: [{{name: us, user: {{token: none}}}}]
"""

for module in pkgutil.walk_packages(agent.__path__, "agent."):
    if module.name != "agent.__main__":
        importlib.import_module(module.name)

with tempfile.TemporaryDirectory() as directory:
    kubeconfig = Path(directory, "kubeconfig")
    kubeconfig.write_text(KUBECONFIG)
    for ask in (lambda: Api(kubeconfig, 1).get("/"), Docker(f"unix://{directory}/docker.sock", 1).containers):
        try:
            ask()
        except SourceError as expected:
            print(f"smoke: {expected}")
        else:
            sys.exit("smoke: nobody is there, and somebody answered")
