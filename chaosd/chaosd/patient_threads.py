"""Work that may wait for as long as somebody else likes, and cannot be called off: a resolver that does not answer.

The loop's own threads are few, share what is to be done, and are joined when the loop ends: such work would keep all
other work waiting, and a daemon that has left from ending. Here it has a thread of its own that nothing waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def begin(work: Callable[[], Answer], name: str) -> asyncio.Future[Answer]:
    """Of the running loop: what `work` gives or raises. Who gives up leaves the thread to itself. Raises OSError where
    the system gives no thread."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Answer] = loop.create_future()

    def tell(result: list[Answer], failure: Exception | None) -> None:
        if answer.done():
            return
        if failure is None:
            answer.set_result(*result)
        else:
            answer.set_exception(failure)

    def run() -> None:
        result, failure = list[Answer](), None
        try:
            result.append(work())
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody wants it any more
            loop.call_soon_threadsafe(tell, result, failure)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from None
    return answer


def within(work: Callable[[], object], timeout_s: float, name: str) -> None:
    """Wait for `work` from a thread that blocks; what it gives is dropped. Raises TimeoutError where it takes longer,
    and what `work` raises."""
    ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            work()
        except Exception as error:
            ended.put(error)
        else:
            ended.put(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        error = ended.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
