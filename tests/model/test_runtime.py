"""Which runtimes are known to record a sandbox before they request its address."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.runtime import endpoint_path, record_before_address, version_numbers


@pytest.mark.parametrize(
    "text",
    [
        "/run/crio/crio.sock", "/var/run/crio/crio.sock", "unix:/run/crio/crio.sock", "unix:///run/crio/crio.sock",
        "unix:///var/run/crio/crio.sock", "unix:////run/crio/crio.sock", "unix:///run//crio/crio.sock",
        "unix:///var//run/./crio/crio.sock", "//run/crio/../crio/crio.sock",
    ],
)  # fmt: skip
def test_every_spelling_of_an_endpoint_is_one_path(text: str) -> None:
    assert endpoint_path(text) == "/run/crio/crio.sock"


@pytest.mark.parametrize("text", ["", "x", "unix:x", "unix://x", "tcp://127.0.0.1:1", "npipe:////./pipe/x"])
def test_an_endpoint_that_is_no_path_stays_as_it_is(text: str) -> None:
    assert endpoint_path(text) == text


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("containerd", "1.4.13", False),
        ("containerd", "1.5.0", False),
        ("containerd", "1.5.14", False),
        ("containerd", "1.5.15", True),
        ("containerd", "1.5.18", True),
        ("containerd", "1.5", False),
        ("containerd", "1.6.0", False),
        ("containerd", "1.6.8", False),
        ("containerd", "1.6.9", True),
        ("containerd", "1.6.20~ds1", True),
        ("containerd", "1.6.8-k3s1", False),
        ("containerd", "v1.6.39", True),
        ("containerd", "1.7.0", True),
        ("containerd", "v1.7.24-rc.1", True),
        ("containerd", "v1.7.11-k3s2", True),
        ("containerd", "2.1.9+unknown", True),
        ("containerd", "2.0.0", True),
        ("containerd", "1.10.0", True),
        ("containerd", "3.0", True),
        ("containerd", "0.2.9", False),
        ("containerd", "", False),
        ("containerd", "unknown", False),
        ("containerd", "2", False),
        ("containerd", "2.x", False),
        ("containerd", "main-1.7.0", False),
        ("containerd", "1.700000.0", False),
        ("containerd", "\u0662.\u0661.\u0669", False),
        ("cri-o", "1.19.7", False),
        ("cri-o", "1.20.0", True),
        ("cri-o", "1.35.6", True),
        ("cri-o", "1.30.0-dev", True),
        ("cri-o", "2.0.0", True),
        ("docker", "28.0.1", False),
        ("Containerd", "1.7.24", False),
        ("", "1.7.24", False),
    ],
)
def test_only_versions_with_the_order_are_known_to_keep_it(name: str, version: str, expected: bool) -> None:
    assert record_before_address(name, version) is expected


@given(st.text())
def test_any_version_is_parsed_or_unknown(version: str) -> None:
    parsed = version_numbers(version)
    assert parsed is None or len(parsed) == 3
    assert parsed or not record_before_address("containerd", version)


@given(
    st.integers(0, 99_999), st.integers(0, 99_999), st.integers(0, 99_999), st.sampled_from(["", "-rc.1", "+x", "~ds1"])
)
def test_the_numbers_of_a_version_are_parsed(major: int, minor: int, patch: int, rest: str) -> None:
    assert version_numbers(f"{major}.{minor}.{patch}{rest}") == (major, minor, patch)
