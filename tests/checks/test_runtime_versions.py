"""Which runtimes are known to record a sandbox before they request its address."""

from agent.checks.kubelet_runtime import record_before_address


def test_only_versions_with_the_order_are_known_to_keep_it() -> None:
    """The first containerd that records a sandbox before its address is 1.5.15, 1.6.9 or 1.7.0."""
    ordered = (
        "1.5.15",
        "1.5.18",
        "1.6.9",
        "1.6.20~ds1",
        "v1.6.39",
        "1.7.0",
        "v1.7.24-rc.1",
        "v1.7.11-k3s2",
        "1.10.0",
    )
    for version in (*ordered, "2.1.9+unknown", "2.0.0", "3.0"):
        assert record_before_address("containerd", version)
    early = ("0.2.9", "1.4.13", "1.5.0", "1.5.14", "1.5", "1.6.0", "1.6.8", "1.6.8-k3s1")
    for version in (
        *early,
        "",
        "unknown",
        "2",
        "2.x",
        "main-1.7.0",
        "1.700000.0",
        "\u0662.\u0661.\u0669",
    ):
        assert not record_before_address("containerd", version)
    for version, expected in (
        ("1.19.7", False),
        ("1.20.0", True),
        ("1.35.6", True),
        ("1.30.0-dev", True),
    ):
        assert record_before_address("cri-o", version) is expected
    for name, version in (("docker", "28.0.1"), ("Containerd", "1.7.24"), ("", "1.7.24")):
        assert not record_before_address(name, version)
