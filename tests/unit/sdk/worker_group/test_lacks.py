"""What the system refuses a worker is told with what to do about it."""

from __future__ import annotations

import errno
import os
import threading

import pytest
import torch

from chaos.errors import TooFewThreads
from chaos.worker_group.exchange.lacks import begin, told
from chaos_protocols.worker_group.messages import ScriptFailed, encode, from_worker


def test_a_thread_that_is_refused_is_told_with_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(TooFewThreads, match=r"can't start new thread\): `ulimit -u`.*fewer workers \(--nproc\)"):
        begin(lambda: None, "some work")


def test_a_thread_that_is_there_does_its_work() -> None:
    done = threading.Event()
    begin(done.set, "some work").join()
    assert done.is_set()


def test_an_error_of_too_little_memory_is_told_with_what_needs_less() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert "a smaller micro_batch" in told(caught.value) and "allocate" in told(caught.value)
    assert told(MemoryError()).startswith("MemoryError; too little memory")
    assert told(torch.OutOfMemoryError("CUDA out of memory. Tried")).count("too little memory") == 1
    assert told(KeyError("x")) == "KeyError: 'x'" and told(SystemExit(3)) == "SystemExit: 3"


def test_an_error_whose_text_is_no_utf_8_is_told_to_the_others() -> None:
    """Saying it failed, so the others took the worker for lost, and met the same error one after the other."""
    name = os.fsdecode(b"m\xe9.jpg")
    said = told(ValueError(f"{name} is no picture"))
    assert from_worker(encode(ScriptFailed(text=said))[4:]) == ScriptFailed(text=said)
    assert said == "ValueError: m\\udce9.jpg is no picture"
    assert len(encode(ScriptFailed(text=told(ValueError(name * 2000))))) < 4200


def test_an_error_of_too_many_open_files_is_told_with_how_many_there_may_be() -> None:
    said = told(OSError(errno.EMFILE, "Too many open files", "log"))
    assert said.startswith("OSError: [Errno 24] Too many open files: 'log'; this process has as many files")
    assert "raise the limit (`ulimit -n`)" in said and "open as it may, " in said
    shared = RuntimeError("unable to open shared memory object </torch_1> in read-write mode: Too many open files (24)")
    assert "raise the limit" in told(shared) and "raise the limit" not in told(OSError(errno.ENOSPC, "no space"))
