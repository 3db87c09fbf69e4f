"""status of a real daemon on a small node: output and exit codes."""

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cli.commands import (
    AGENT,
    DONE,
    FOUND,
    NO_DAEMON,
    UNAVAILABLE,
    USAGE,
    Daemon,
    SmallNode,
    environment,
    nodeleak,
    running,
    served,
)
from tests.exporters.test_status import GOOD
from tests.wire import FakeServer, http, refusing_port, until


@contextmanager
def daemon(
    node: SmallNode, *options: str, prefix: tuple[str, ...] = ()
) -> Iterator[tuple[Daemon, str]]:
    """Run the daemon until it has confirmed the leak; yield it, and the option that says where it listens."""
    quick = ("--api=off", "--listen=127.0.0.1:0", "--interval=100ms")
    with running(*quick, *node.options, *options, prefix=prefix) as agent:
        port = agent.log_event("agent.started")["port"]
        agent.log_event("finding.opened")
        until(
            lambda: '"detector"' in served(port, "/api/v1/status")[1],
            "the report of the log is served, too",
        )
        yield agent, f"--listen=127.0.0.1:{port}"
        assert agent.end() == 0


def document(*arguments: str, code: int = DONE) -> Any:
    done = nodeleak("status", "-o", "json", *arguments)
    assert (done.code, done.err) == (code, ""), done
    return json.loads(done.out)


def test_it_prints_what_the_daemon_found(node: SmallNode) -> None:
    with daemon(node, "--cleanup=dry-run", "--cleanup-network=auto") as (_, listen):
        done, tree = nodeleak("status", listen), document(listen)
        assert nodeleak("status", listen, "--exit-code").code == FOUND
        scanned = json.loads(nodeleak("scan", "-o", "json", "--api=off", *node.options).out)
    assert (done.code, done.err) == (DONE, "")
    first, headline, *_ = done.out.splitlines()
    assert first.startswith(f"Node {tree['node']}, checked 0.")
    assert headline == tree["headline"] == f"Warning: 1 leaked pod address on {tree['node']}"
    assert "\nkubenet  253     251   1       0\n" in done.out
    assert "\nleaked_reservation  warning   1  " in done.out
    (found,) = tree["findings"]
    assert [(one["detector"], one["severity"], one["since"]) for one in scanned["findings"]] == [
        (found["detector"], found["severity"], found["oldest"])
    ]
    assert tree["report"]["interval_seconds"] == 0.1
    assert tree["cleanup"] == {
        "mode": "dry-run",
        "networks": ["kubenet"],
        "release_possible": True,
        "why_not": [],
        "brake": None,
        "halted": "",
    }


def test_a_read_only_mount_or_a_journal_that_cannot_be_written_makes_releases_impossible(
    node: SmallNode, read_only: tuple[str, ...]
) -> None:
    with daemon(node, "--cleanup-network=auto", prefix=read_only) as (_, listen):
        done, cleanup = nodeleak("status", listen), document(listen)["cleanup"]
    assert cleanup["release_possible"] is False
    directory, journal = cleanup["why_not"]
    store = node.home / "networks/kubenet"
    assert directory.startswith(
        f"cannot change {store}: read-only mount: to release, create a Job "
    )
    assert " is mounted read-only: nothing is released without a journal" in journal
    assert f" No release is possible here now: {directory} {journal} " in " ".join(done.out.split())
    (node.home / "state").write_text("a file, not a directory")
    with daemon(node, "--cleanup-network=auto") as (_, listen):
        cleanup = document(listen)["cleanup"]
    assert cleanup["release_possible"] is False
    (why,) = cleanup["why_not"]
    assert why.startswith(f"cannot use the journal: {node.home}/state is not a directory: ")


def test_what_is_unavailable_is_incomplete_and_blocks_releases(node: SmallNode) -> None:
    with daemon(node, "--cleanup-network=auto") as (agent, listen):
        node.docker.answers = lambda _: []
        agent.log_event("source.unavailable")
        until(lambda: "\nIncomplete: " in nodeleak("status", listen).out, "the next sync")
        tree = document(listen, code=UNAVAILABLE)
        assert nodeleak("status", listen, "--exit-code").code == UNAVAILABLE
    assert tree["headline"].startswith("Incomplete: ")
    assert "containers" in [one["source"] for one in tree["unavailable"]]
    assert [(one["name"], one["leaked"]) for one in tree["networks"] if one["leaked"]] == []
    assert tree["cleanup"]["release_possible"] is False
    (why,) = tree["cleanup"]["why_not"]
    assert why.startswith("unavailable sources: ")
    assert "containers" in why


def test_a_daemon_that_hangs_is_stalled_and_unhealthy(node: SmallNode) -> None:
    # Three intervals, four times docker's timeout and twice that of a lock are the longest sync.
    with daemon(node, "--docker-timeout=100ms", "--lock-timeout=100ms") as (_, listen):
        os.mkfifo(node.home / "nobody-writes")
        (node.home / "nobody-writes").rename(node.proc / "stat")  # reading it takes forever
        until(lambda: "\nStalled: " in nodeleak("status", listen).out, "it is noticed")
        tree, port = document(listen, code=UNAVAILABLE), int(listen.rpartition(":")[2])
        until(
            lambda: served(port, "/healthz") == (503, "no sync for too long\n"),
            "the heart has stopped",
        )
        assert served(port, "/metrics")[0] == 200
        assert (
            "\n\nReleases: off here (read-only). 'nodeleak clean' says how "
            in nodeleak("status", listen).out
        )
    assert (tree["state"], tree["findings"][0]["detector"]) == ("stalled", "leaked_reservation")
    assert tree["report"]["age_seconds"] > 0.5


def test_no_daemon_is_one_sentence_and_an_exit_code_of_its_own() -> None:
    with refusing_port() as port:
        where = f"127.0.0.1:{port}"
        done = nodeleak("status", "--listen", where)
        as_json = document("--listen", where, code=NO_DAEMON)
        assert nodeleak("status", NODELEAK_LISTEN=where).out == done.out
    assert nodeleak("status", "--listen=nowhere").code == USAGE
    assert (done.code, done.err) == (NO_DAEMON, "")
    why = f"no daemon answers on {where} (connection refused)"
    assert done.said == f"No status: {why}; 'nodeleak scan' checks this node without a daemon"
    assert as_json == {"schema": "nodeleak.status/v1", "state": "no_report", "why": why}


@contextmanager
def another_process(tree: Any) -> Iterator[str]:
    """Let any process hold the port, and answer this."""
    with FakeServer(
        lambda _: [http(tree if isinstance(tree, str) else json.dumps(tree))]
    ) as server:
        yield f"--listen={server.url.removeprefix('http://')}"


def test_what_is_answered_decides_the_exit_code_is_no_report_if_it_is_odd_and_harms_no_terminal() -> (
    None
):
    for answer in (
        "<html>",
        "{}",
        "null",
        {**GOOD, "headline": None},
        {**GOOD, "state": "\x1b[2J"},
    ):
        with another_process(answer) as listen:
            assert document(listen, code=NO_DAEMON)["why"].endswith(
                " is not the daemon of this version of nodeleak"
            )
    hostile = {
        **GOOD,
        "headline": "\x1b[2Jok",
        "node": "\x9b1m",
        "unavailable": [{"source": "\r", "why": "\u202e"}],
    }
    with another_process(hostile) as listen:
        done, tree = nodeleak("status", listen), document(listen, code=UNAVAILABLE)
    assert done.code == UNAVAILABLE
    assert all(line.isprintable() for line in done.out.splitlines())
    assert tree["headline"] == r"\x1b[2Jok"
    for changed, arguments, code in (
        ({"state": "ok", "unavailable": []}, ["--exit-code"], DONE),
        ({"unavailable": []}, [], DONE),
        ({"unavailable": []}, ["--exit-code"], FOUND),
        ({}, ["--exit-code"], UNAVAILABLE),
        ({"state": "incomplete", "unavailable": []}, [], UNAVAILABLE),
        ({"state": "stalled", "unavailable": []}, [], UNAVAILABLE),
    ):
        with another_process({**GOOD, **changed}) as listen:
            assert nodeleak("status", listen, *arguments).code == code


# --watch


def watch(listen: str, *arguments: str, stdout: int = subprocess.PIPE) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # noqa: S603 (ours)
        [*AGENT, "status", "--watch", listen, *arguments],
        env=environment({"TERM": "xterm"}), stdout=stdout, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def interrupt(watching: "subprocess.Popen[str]") -> None:
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=20)
    assert (watching.returncode, err) == (130, "")


def test_in_a_pipe_there_is_a_line_for_each_change() -> None:
    healthy = {
        **GOOD,
        "state": "ok",
        "headline": "OK: no findings",
        "findings": [],
        "unavailable": [],
    }
    older = {**healthy, "report": {**GOOD["report"], "age_seconds": 14.3}}
    answers = [healthy, older, GOOD]
    with FakeServer(lambda _: [http(json.dumps(answers.pop(0) if answers else GOOD))]) as server:
        watching = watch(f"--listen={server.url.removeprefix('http://')}")
        assert watching.stdout is not None
        lines = [watching.stdout.readline() for _ in range(2)]
        interrupt(watching)
    assert lines[0] == "2026-03-26T20:00:00Z worker-1 ok: OK: no findings\n"
    assert lines[1].startswith("2026-03-26T20:00:00Z worker-1 findings: ")
    assert len(server.requests) >= 3, "the second answer was no change"


def test_on_a_terminal_the_table_is_drawn_again() -> None:
    ours, theirs = pty.openpty()
    with another_process(GOOD) as listen:
        watching = watch(listen, stdout=theirs)
        os.close(theirs)
        shown = b""
        while shown.count(b"\x1b[H\x1b[J") < 2 or not shown.endswith(b"Ctrl-C ends.\r\n"):
            shown += os.read(ours, 65536)
        interrupt(watching)
    os.close(ours)
    assert shown.count(b"Warning: 7 leaked pod addresses on worker-1") >= 2


def test_as_json_a_change_is_one_line_too_and_a_closed_pipe_ends_it() -> None:
    with refusing_port() as port:
        watching = watch(f"--listen=127.0.0.1:{port}", "-o", "json")
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["state"] == "no_report"
        interrupt(watching)
    changes = iter(range(10**6))
    with FakeServer(
        lambda _: [http(json.dumps({**GOOD, "version": str(next(changes))}))]
    ) as server:
        watching = watch(f"--listen={server.url.removeprefix('http://')}", "-o", "json")
        assert watching.stdout is not None
        watching.stdout.readline()
        watching.stdout.close()
        assert watching.wait(20) == 0
        assert watching.stderr is not None
        assert watching.stderr.read() == ""
        watching.stderr.close()
