"""Run nodeleak as in a pod: `python -P tests/fakes/in_pod.py DIRECTORY ARGUMENT…`.

DIRECTORY: where the pod's service account is mounted. The file needs nothing else of the tests, so that any
installation of the agent can run it.
"""

import sys
from pathlib import Path

from agent.cli import main
from agent.sources.kube import service_account

service_account.DIRECTORY = Path(sys.argv[1])
sys.exit(main(sys.argv[2:]))
