"""The node on which the reading of namespaces is measured."""

import os
import shutil

from tests.bench.namespaces import Size, measure
from tests.wire import needs


def test_all_namespaces_are_read_and_all_addresses_released() -> None:
    needs(os.geteuid() == 0 and all(map(shutil.which, ("unshare", "setpriv", "ip"))), "root, unshare, setpriv and ip")
    measured = measure(Size(processes=3, threads=2, routes=5, pods=2, pod_threads=2, readings=1, releases=3))
    assert len(measured.cpu_ms) == 1
    assert (len(measured.release_ms), len(measured.age_ms)) == (3, 3)
    assert min(*measured.cpu_ms, *measured.release_ms, *measured.age_ms) > 0
