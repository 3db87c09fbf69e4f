"""`python -m tests.containerd.pods SOCKET`: what `crictl pods -q` prints, which Debian does not have."""

import sys
from pathlib import Path

from tests.containerd.client import Kubelet

if __name__ == "__main__":
    print("\n".join(Kubelet(Path(sys.argv[1]), "", "").sandboxes()))
