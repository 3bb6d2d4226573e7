"""The lab's end of the delay line: starts the process, orders and awaits answers. It ends when its input is closed,
and so with the lab."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

from chaos_lab.errors import LabError

END_TIMEOUT_S = 5.0


class DelayClient:
    """One running delay line."""

    def __init__(self) -> None:
        self._open: set[tuple[str, int]] = set()
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos_lab.delay_line"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            start_new_session=True,  # Ctrl+C is for the lab, which ends it
        )

    def hold(self, namespace: str, queue: int, delay_s: float) -> None:
        """Hold back for so long, from now on, what the namespace's rule puts into the queue. Raises LabError."""
        do = "delay" if (namespace, queue) in self._open else "open"
        self._order(do=do, namespace=namespace, queue=queue, delay_s=delay_s)
        self._open.add((namespace, queue))

    def end_queue(self, namespace: str, queue: int) -> None:
        """No more packets come into this queue."""
        self._open.discard((namespace, queue))
        self._order(do="close", namespace=namespace, queue=queue)

    def check(self) -> None:
        """Raises LabError when the process has ended."""
        if self._process.poll() is not None:
            self._complaints.seek(0)
            said = self._complaints.read().decode(errors="replace").strip()
            raise LabError(f"the delay line ended with status {self._process.returncode}: {said}")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._complaints.close()

    def _order(self, **order: Any) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self.check()
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline() or b'{"error": "it ended"}')
        except (OSError, ValueError) as error:
            answer = {"error": str(error)}
        if answer:
            raise LabError(f"the delay line cannot {order['do']} queue {order['queue']}: {answer['error']}")
