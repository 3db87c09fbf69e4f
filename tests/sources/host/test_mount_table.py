"""What the mount table of this process says about a path that is missing here."""

from pathlib import Path

from agent.sources.source_error import SourceError
from tests.sources.host.own_mounts import own_mounts
from tests.wired import read


def test_a_cache_that_is_missing_on_the_node_is_empty_and_any_other_is_a_gap(
    tmp_path: Path,
) -> None:
    """Without CAP_SYS_PTRACE, which the DaemonSet may lack, nobody knows whose the mounts of this process are."""
    lib, node = tmp_path / "var/lib", tmp_path / "1/ns/mnt"
    cni, old, new = lib / "cni", lib / "cni/results", lib / "cni/cache/results"

    def is_missing() -> bool:
        try:
            return bool(read("cni_results", cni_cache_dir=f"{old},{new}", proc=tmp_path) == ())
        except SourceError as error:
            assert f"none of these exists: {old}, {new}" in str(error)  # noqa: PT017 (one of both is expected)
            return False

    for mounted, missing in (
        (("/", cni), True),
        (("/", cni / "networks"), False),
        (("/", lib / "nodeleak"), False),
        (("/", lib / "cn"), False),
        (("/", cni / "cache"), False),
        (
            ("/", lib, (cni, f"{cni}//deleted")),
            False,
        ),  # a mount of what the node has removed shows nothing of it
    ):
        with own_mounts(*mounted):
            assert is_missing() is missing, mounted
    with own_mounts("/", cni):
        Path("/proc/self/mountinfo").unlink()
        assert not is_missing()
    node.parent.mkdir(parents=True)
    node.touch()
    with own_mounts("/", namespace=node):
        assert is_missing(), "it has the mounts of the node"
    with own_mounts("/", namespace=tmp_path):
        assert not is_missing()
