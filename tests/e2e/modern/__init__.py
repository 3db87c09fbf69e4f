"""Tests on the nodes of today: the profiles of hack/cluster other than legacy (CLUSTER_PROFILE). Needs root."""

import pytest

pytest.register_assert_rewrite(f"{__name__}.node")  # its complaints show values too
