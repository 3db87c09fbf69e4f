"""One answer over HTTP, within a time limit for the whole: the library limits each single read."""

from collections.abc import Callable
from http.client import HTTPException, HTTPResponse, IncompleteRead
from queue import Empty, SimpleQueue
from threading import Thread
from urllib.error import HTTPError
from urllib.request import urlopen

from agent.model.text import truncate


class FetchError(Exception):
    """There is no answer, or not all of it in time."""


def fetch(url: str, seconds: float, most: int) -> bytes:
    """Return the body of an answer, also of an error, which says what is wrong. At most `most` bytes of it are read.

    Raises FetchError, and ValueError for what is no URL.
    """
    answers: SimpleQueue[Callable[[], bytes]] = SimpleQueue()
    # Nothing ends the lookup of a name, so a late question is left behind: this program ends soon after.
    Thread(target=lambda: answers.put(_outcome(url, most)), name="fetch", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except Empty:
        raise FetchError(f"no complete answer within {seconds:g} s") from None
    return answer()


def _outcome(url: str, most: int) -> Callable[[], bytes]:
    """Ask, and return what returns the answer or raises the error in the thread that waits for it."""
    try:
        body = _ask(url, most)
    except Exception as error:  # noqa: BLE001 (it is raised in the asking thread)
        return _raising(error)
    return lambda: body


def _raising(error: Exception) -> Callable[[], bytes]:
    def answer() -> bytes:
        raise error

    return answer


def _ask(url: str, most: int) -> bytes:
    try:
        answer = _open(url)
    except (OSError, HTTPException) as error:
        raise FetchError(_why(getattr(error, "reason", None) or error)) from error
    with answer:
        try:
            return _body(answer, most)
        except (OSError, HTTPException) as error:
            raise FetchError(f"status {answer.status}, and then {_why(error)}") from error


def _open(url: str) -> HTTPResponse | HTTPError:
    try:
        answer: HTTPResponse = urlopen(url)  # noqa: S310 (the options allow only http and https)
    except HTTPError as error:
        return error
    return answer


def _body(answer: HTTPResponse | HTTPError, most: int) -> bytes:
    body = answer.read(most)
    # A read of so many bytes does not say that the connection ended before its Content-Length.
    if len(body) < most and (missing := getattr(answer, "length", None)):
        raise IncompleteRead(body, missing)
    return body


def _why(error: object) -> str:
    if isinstance(error, IncompleteRead):
        return "the connection ended within the answer"
    return truncate(str(error) or repr(error))
