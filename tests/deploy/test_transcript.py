"""Transcripts: what is compared, and what a recording replaces."""

from pathlib import Path

import pytest

from tests.e2e.transcript import Step, check, comparable, rewritten, steps_of

DOCUMENT = """\
# Title

## One

Text.

```
$ NODE=a
$ status $NODE
a  1s

b  10.0.0.1
```

```
no transcript
```

## Two

```
$ status $NODE
other
```
"""


def test_the_commands_of_a_section_with_their_output() -> None:
    assert steps_of(DOCUMENT, "One") == [Step("NODE=a", ""), Step("status $NODE", "a  1s\n\nb  10.0.0.1\n")]
    assert steps_of(DOCUMENT, "Two") == [Step("status $NODE", "other\n")]


def test_a_recording_replaces_only_the_outputs_of_its_section() -> None:
    again = rewritten(DOCUMENT, "One", {"NODE=a": [""], "status $NODE": ["a  2s\n"]})
    assert again == DOCUMENT.replace("a  1s\n\nb  10.0.0.1\n", "a  2s\n")


def test_only_what_differs_each_time_is_left_out_of_the_comparison() -> None:
    old = "kubenet    10.253.6.229  1m1s  kubelet_restart  beaa17b3d978  released  20261122T152124.189457Z-beaa17b3d978"
    new = "kubenet  10.253.6.9  56s  kubelet_restart  0eaa17b3d978  released  20261122T162124.189457Z-0eaa17b3d978"
    assert comparable(old) == comparable(new) == "kubenet  ADDRESS  AGE  kubelet_restart  ID  released  ENTRY"
    assert comparable("ID  default/e2e-7f-0    x") == comparable("ID  default/e2e-781d-0  x") == "ID  default/POD  x"
    named, unnamed = "a  beaa17b3d978  default/e2e-7f-0    x", "a  beaa17b3d978  -  x"
    assert comparable(named) == comparable(unnamed) == "a  ID  POD  x"
    assert comparable("3 released, 119/125 free") == "3 released, 119/125 free"


@pytest.mark.parametrize("record", [False, True])
def test_another_output_is_a_failure_or_a_recording(
    record: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.md"
    path.write_text(DOCUMENT)
    check(path, "Two", lambda _: ["other \n"])
    if record:
        monkeypatch.setenv("NODELEAK_E2E_RECORD", "1")
        check(path, "Two", lambda _: ["changed\n"])
    else:
        monkeypatch.delenv("NODELEAK_E2E_RECORD", raising=False)
        with pytest.raises(AssertionError, match="NODELEAK_E2E_RECORD=1 hack/e2e"):
            check(path, "Two", lambda _: ["changed\n"])
    assert path.read_text() == (DOCUMENT.replace("other", "changed") if record else DOCUMENT)
