"""Tests on a real node: kubelet with kubenet, docker, host-local, API server (hack/cluster). Needs root."""

import pytest

pytest.register_assert_rewrite(
    f"{__name__}.node", f"{__name__}.nodeleak"
)  # their complaints show values too
