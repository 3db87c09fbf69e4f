"""Transcripts in a document: their commands are run again, and must print what the document shows.

With NODELEAK_E2E_RECORD=1, what they print is written into the document.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Final

SECONDS: Final = 240
"""For one shell. A command that waits for a pod would do so forever."""
_DONE: Final = "the command has ended"
_SECTION: Final = re.compile(r"^## (.+)\n", re.MULTILINE)
_BLOCK: Final = re.compile(r"^```\n(?=\$ )(.*?)^```$", re.MULTILINE | re.DOTALL)
_STARTING: Final = re.compile(r"^Error from server \(BadRequest\): .* is waiting to start: .*\n", re.MULTILINE)
"""kubectl prints it until the pod of a Job has started: never, or several times."""
_PLACEHOLDERS: Final = (
    (r"\b\d{8}T\d{6}\.\d+Z-[0-9a-f]{12}\b", "ENTRY"),
    (r"\b[0-9a-f]{12,64}\b", "ID"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?Z| UTC)", "TIME"),
    (r"\b\d+\.\d+\.\d+\.\d+\b", "ADDRESS"),
    (r"\b\d+\.\d+\.\d+\b", "VERSION"),
    (r"\be2e-[0-9a-z-]+\b", "POD"),  # before the ages: a name may have one in it
    (r"\b(\d+(ms|[smhd]))+\b", "AGE"),
    (r"\bnodeleak-clean-[0-9a-z]{5}\b", "JOB"),
    (r" {2,}", "  "),
    (r"(?<=  ID  )(default/POD|-)(?=  )", "POD"),  # kubenet: known unless the agent restarted, as on a slow machine
)


@dataclass(frozen=True)
class Step:
    command: str
    output: str


def steps_of(document: str, section: str) -> list[Step]:
    """Return the commands of a section, with what they print."""
    return [
        Step(command, output)
        for block in _BLOCK.findall(_sections(document)[section])
        for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    ]


def rewritten(document: str, section: str, outputs: Mapping[str, list[str]]) -> str:
    """Return the document with other outputs in a section: of each command one for each time that it occurs."""
    left = {command: iter(printed) for command, printed in outputs.items()}

    def block(found: re.Match[str]) -> str:
        commands = re.findall(r"^\$ (.*)\n", found[1], re.MULTILINE)
        return "```\n" + "".join(f"$ {one}\n{next(left[one])}" for one in commands) + "```"

    old = _sections(document)[section]
    return document.replace(old, _BLOCK.sub(block, old))


def _sections(document: str) -> dict[str, str]:
    _, *parts = _SECTION.split(document)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def comparable(output: str) -> str:
    """Replace what is different each time."""
    for pattern, placeholder in _PLACEHOLDERS:
        output = re.sub(pattern, placeholder, output, flags=re.MULTILINE)
    return output


def check(path: Path, section: str, play: Callable[[list[str]], list[str]]) -> None:
    """Play the commands of a section; compare what they print with the document, or write it there if asked to."""
    document = path.read_text()
    steps = steps_of(document, section)
    printed = [_plain(one) for one in play([one.command for one in steps])]
    if "NODELEAK_E2E_RECORD" in os.environ:
        outputs: dict[str, list[str]] = {}
        for step, output in zip(steps, printed, strict=True):
            outputs.setdefault(step.command, []).append(output)
        path.write_text(rewritten(document, section, outputs))
        steps = steps_of(path.read_text(), section)
    shown = _lines(steps)
    now = _lines([Step(step.command, output) for step, output in zip(steps, printed, strict=True)])
    difference = "\n".join(unified_diff(shown, now, path.name, "printed now", lineterm=""))
    assert not difference, (
        f"if this is right: NODELEAK_E2E_RECORD=1 hack/e2e --profile=legacy -k alert_to_the_fix\n{difference}"
    )


def _lines(steps: list[Step]) -> list[str]:
    return [line for one in steps for line in (f"$ {one.command}", *comparable(one.output).splitlines())]


def _plain(output: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in _STARTING.sub("", output).splitlines())


@contextmanager
def shell(environment: Mapping[str, str], directory: Path) -> Iterator[Callable[[str], str]]:
    """Run a shell during the block; give a function that runs a command in it, and returns what it prints."""
    with subprocess.Popen(  # noqa: S603 (spelled out in a document)
        ["timeout", str(SECONDS), "bash"],  # noqa: S607 (any)
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(environment),
        cwd=directory,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        commands, lines = child.stdin, child.stdout

        def run(command: str) -> str:
            commands.write(f"{{ {command}\n}} </dev/null\necho; echo {_DONE}\n")
            commands.flush()
            output = ""
            for line in lines:
                if line == f"{_DONE}\n":
                    return output.removesuffix("\n")
                output += line
            raise AssertionError(f"{command}: has not ended after {SECONDS} s\n{output}")

        yield run
        commands.close()
