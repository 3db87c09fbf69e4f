"""Waits for a lock by polling: a blocking `flock` hangs behind a holder that never lets go."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tenacity


def polling(held: type[Exception], timeout: float) -> "tenacity.Retrying":
    """Return what calls a function until it does not raise `held`, for up to `timeout` seconds."""
    # Options of commands are known without it, as in the archive of kubectl nodeleak.
    import tenacity  # noqa: PLC0415

    return tenacity.Retrying(
        stop=tenacity.stop_after_delay(timeout),
        wait=tenacity.wait_random(0.001, 0.005),
        retry=tenacity.retry_if_exception_type(held),
        reraise=True,
    )
