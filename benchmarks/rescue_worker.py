"""A worker of `site_rescue`: the training of `tests.integration.site_training`, wider, noting when a round is done."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from tests.integration import site_training


def main() -> None:
    """A worker. TRAINING: arguments of `site_training.train`, the width, and `told`, a file for the rounds."""
    for fault in site_training.faults():
        site_training._plant(fault)
    given = json.loads(os.environ["TRAINING"])
    site_training.WIDTH, told = given.pop("width"), given.pop("told")

    def after(model: Any, report: Any) -> None:
        if told:
            digests = [digest for _, digest in sorted(model.digests().items())]
            with open(told, "a", encoding="utf-8") as out:
                out.write(json.dumps([report.step, time.monotonic(), digests]) + "\n")

    site_training.train(after, standalone=False, **given)


if __name__ == "__main__":
    main()
