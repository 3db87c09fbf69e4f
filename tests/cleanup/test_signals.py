"""Signals that are held back while addresses are released."""

import signal
import threading

import pytest

from agent.cleanup.signals import TERMINATING, deferred, forget, interrupted


@pytest.fixture
def received() -> list[int]:
    return []


@pytest.fixture(autouse=True)
def _handlers(received: list[int]) -> object:
    before = {number: signal.getsignal(number) for number in TERMINATING}
    for number in TERMINATING:
        signal.signal(number, lambda number, _frame: received.append(number))
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", TERMINATING)
def test_a_signal_is_deferred_and_delivered_afterwards(received: list[int], number: signal.Signals) -> None:
    with deferred():
        assert not interrupted()
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        assert (interrupted(), received) == (True, [])
    assert (interrupted(), received) == (False, [number])
    signal.raise_signal(number)
    assert received == [number, number]


def test_a_discarded_signal_is_not_delivered(received: list[int]) -> None:
    with deferred():
        signal.raise_signal(signal.SIGTERM)
        forget()
    assert received == []


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with deferred():
        signal.raise_signal(signal.SIGHUP)
        assert not interrupted()


def test_outside_the_main_thread_nothing_is_deferred() -> None:
    def run() -> None:
        with deferred():
            ran.append(signal.getsignal(signal.SIGTERM) is handler)

    handler, ran = signal.getsignal(signal.SIGTERM), list[bool]()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ran == [True]
