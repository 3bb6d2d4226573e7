"""The training state of this site's worker: where it gets it from, where it lies besides, and to whom it gives it.

`WorkerState` (`machine.py`) decides from the committed roster whether the state comes from other sites (`fetch.py`),
from this site's own memory or disk (`restore.py`), or from nobody; when copies are made (`local_checkpoint.py`), when
this site is a source (`snapshot_source.py`), and whose turn it is with the worker's memory (`worker_region.py`).
Driven by `Participation`. Which block a joiner asks of whom is the matter of `transfer/`.
"""
