"""Found by an interpreter that has this folder on PYTHONPATH: its wall clock is off by what a file says.

The nemesis writes seconds into the file named by CHAOS_SOAK_CLOCK while the process runs. Only the wall clock jumps:
no system lets the monotonic one do so.
"""

from __future__ import annotations

import os
import time

_path = os.environ.get("CHAOS_SOAK_CLOCK")
if _path:
    _descriptor = os.open(_path, os.O_RDONLY | os.O_CLOEXEC)
    _right_time = time.time

    def _time() -> float:
        return _right_time() + float(os.pread(_descriptor, 32, 0) or b"0")

    time.time = _time
