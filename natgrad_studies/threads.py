"""Threads that run parts of a study side by side, and that a study which is stopped leaves."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def threads(workers: int) -> Iterator[ThreadPoolExecutor]:
    """A pool; on the way out by an exception what still waits in it is cancelled.

    Ctrl-C does not wait for what runs either: a compiled program cannot be interrupted.
    """
    pool = ThreadPoolExecutor(workers)
    try:
        yield pool
    except BaseException as error:
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()
