"""The training of `site_training`, begun late or followed by a failure: what `test_logged_workers` runs.

AFTER: `late`, and a worker that is started anew comes after an hour; `fails`, and worker 1 fails after the last step;
`goes on`, and all do what nothing but SIGKILL ends.
"""

from __future__ import annotations

import os
import signal
import time

from tests.integration import site_training

worker, what = int(os.environ["CHAOS_WORKER"]), os.environ["AFTER"]
if what == "late" and worker > 1:
    time.sleep(3600)
site_training.main()
if what == "fails" and worker == 1:
    raise SystemExit("there is no room for the model")
if what == "goes on":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)
