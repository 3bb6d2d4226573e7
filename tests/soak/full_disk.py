"""The full disk: a site whose journal cannot be written must end with a clear word, refuse to start, and come back."""

from __future__ import annotations

import subprocess
import time

from chaos_lab.children import end
from chaosd.api.client import NoDaemonError, RequestRefusedError
from tests.soak.sites import SPARE_LINKS, Site, Sites

WORDS = ("could not be written", "could not be synced", "cannot be opened")
REASONS = ("No space left on device", "disk is full", "File too large")
EXIT_FAILED, EXIT_CANNOT_START = 1, 2
START_LIMIT_S = 120.0
CHANGES_MAX = 20
CHANGE_PAUSE_S = 0.3


class FullDisk:
    """One fault, in a thread of its own: fills, makes the agreement write, looks at the end. `ended` and `refused`
    count what was seen; `failures` what must not be."""

    def __init__(self, sites: Sites, site: Site, busy: set[str]) -> None:
        self._sites, self._site, self._busy = sites, site, busy
        self.ended = self.refused = False
        self.failures: list[str] = []
        self.until_s = 0.0

    def run(self, lasts_s: float) -> None:
        """Until the fault's time is over; the disk has room again then."""
        site, begun_s = self._site, time.monotonic()
        daemon = site.daemon
        assert daemon is not None
        log_from = site.daemon_log.stat().st_size
        site.disk.fill(daemon.pid)
        try:
            self._make_it_write(begun_s + lasts_s)
            if daemon.poll() is None:
                return
            self.ended = True
            text = site.daemon_log.read_bytes()[log_from:].decode("utf-8", "replace")
            if daemon.returncode != EXIT_FAILED:
                self.failures.append(f"{site.name}: exit status {daemon.returncode} on a full disk, not {EXIT_FAILED}")
            if not (any(word in text for word in WORDS) and any(reason in text for reason in REASONS)):
                self.failures.append(f"{site.name}: ended on a full disk without naming it:\n{text[-2000:]}")
            if site.disk.mounted:
                self._start_anyway()
        finally:
            site.disk.free(daemon.pid if daemon.poll() is None else None)

    def _make_it_write(self, end_s: float) -> None:
        """A link of others, one that the overlay does not need, comes and goes, so that the agreement has something to
        write, until the daemon ends."""
        daemon = self._site.daemon
        assert daemon is not None
        others = [pair for pair in SPARE_LINKS if self._site.name not in pair]
        one, other = (self._sites.sites[name] for name in min(others, key=lambda pair: len(self._busy & set(pair))))
        changed = 0
        while daemon.poll() is None and time.monotonic() < end_s:
            if changed < CHANGES_MAX:
                self._change(one, other, add=changed % 2 == 0)
                changed += 1
            time.sleep(CHANGE_PAUSE_S)
        if changed % 2 == 1:
            self._change(one, other, add=False)

    @staticmethod
    def _change(one: Site, other: Site, *, add: bool) -> None:
        try:
            one.client.change_link(other.identity.site, add=add)
        except (NoDaemonError, RequestRefusedError, OSError):
            pass  # struck by another fault in this moment

    def _start_anyway(self) -> None:
        """What systemd would do at once: the daemon must say that it cannot start, and why; or, if a page of the
        journal has some bytes left, end like the one before it."""
        site = self._site
        log = site.folder / "full.log"
        process = self._sites.spawn(site, self._sites.daemon_command(site), log)
        try:
            code = process.wait(START_LIMIT_S)
        except subprocess.TimeoutExpired:
            end(process)
            code = None
        text = log.read_text(encoding="utf-8", errors="replace")
        clear = any(word in text for word in WORDS) and any(reason in text for reason in REASONS)
        if code not in (EXIT_CANNOT_START, EXIT_FAILED) or not clear or "Traceback" in text:
            self.failures.append(f"{site.name}: a start on a full disk ended with {code}:\n{text[-2000:]}")
        else:
            self.refused = True
