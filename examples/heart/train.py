"""Train the heart model at one hospital, together with the hospitals that the daemon beside this script finds.

python train.py --hospital Cleveland                 # with a running chaosd
python train.py --hospital Cleveland --standalone    # alone
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several hospitals on one machine would fight for its cores

import torch
from heart_data import HOSPITALS, Patients, load
from heart_model import area_under_roc, batch_of, loss_of, new_model, new_optimizer, parameters_digest, scores_of

from chaos import ChaosError, Coordinator


def main() -> int:
    options = arguments()
    torch.set_num_threads(1)
    training, test = load(options.hospital)
    try:
        report = train(options, training, test)
    except ChaosError as error:
        print(f"{options.hospital}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{options.hospital}: stopped at once", file=sys.stderr)
        return 130
    text = json.dumps(report, indent=2)
    if options.report is None:
        print(text)
    else:
        temporary = options.report.with_name(options.report.name + ".part")
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(options.report)
    return 0


def train(options: argparse.Namespace, training: Patients, test: Patients) -> dict[str, Any]:
    """Rounds until `--rounds`, or until this hospital leaves; then the report."""
    model = new_model(options.seed)
    optimizer = new_optimizer(model)
    digests: dict[int, str] = {}
    with Coordinator(socket=options.socket, standalone=options.standalone) as coordinator:
        coordinator.register(model=model, optimizer=optimizer)
        while coordinator.round < last_round(options):
            began_s = time.monotonic()
            features, sick = batch_of(
                training, hospital=options.hospital, seed=options.seed, round=coordinator.round + 1
            )
            loss_of(model, features, sick).backward()
            if not coordinator.step(samples=len(sick)):
                break
            coordinator.check_state_replication()
            if options.digests:
                digests[coordinator.round] = coordinator.state_digest()
            if coordinator.capture_exit_event():
                break
            time.sleep(max(0.0, options.pace - (time.monotonic() - began_s)))
        coordinator.request_node_exit("the hospital is done" if coordinator.round >= last_round(options) else "")
        status = coordinator.status()
        state_digest = coordinator.state_digest()
    alone = train_alone(options, training, status.round)
    return {
        "hospital": options.hospital,
        "site": status.site,
        "rounds": status.round,
        "left": status.left_reason,
        "patients_training": len(training.sick),
        "patients_test": len(test.sick),
        "auc_common": area_under_roc(scores_of(model, test), test.sick),
        "auc_alone": area_under_roc(scores_of(alone, test), test.sick),
        "parameters_digest": parameters_digest(model),
        "parameters": {name: value.tolist() for name, value in model.state_dict().items()},
        "state_digest": state_digest,
        "state_digests": digests,
    }


def last_round(options: argparse.Namespace) -> int:
    """`--rounds`, or what the file of `--until` says as soon as it exists: so can several hospitals end in one
    round."""
    if options.until is not None and options.until.exists():
        return min(options.rounds, int(options.until.read_text(encoding="utf-8")))
    return int(options.rounds)


def train_alone(options: argparse.Namespace, training: Patients, rounds: int) -> torch.nn.Module:
    """What this hospital would have got by itself: the same beginning, the same patients, the same number of steps."""
    model = new_model(options.seed)
    optimizer = new_optimizer(model)
    for round in range(1, rounds + 1):
        optimizer.zero_grad()
        loss_of(model, *batch_of(training, hospital=options.hospital, seed=options.seed, round=round)).backward()
        optimizer.step()
    return model


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hospital", required=True, choices=HOSPITALS, help="whose patients this script may read")
    parser.add_argument(
        "--rounds", type=int, default=400, help="stop after this round of the run (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="first model and order of patients (default %(default)s)")
    parser.add_argument("--socket", help="the daemon's socket (default: CHAOS_SOCKET, else chaosd's own)")
    parser.add_argument("--standalone", action="store_true", help="train alone, without a daemon")
    parser.add_argument(
        "--pace", type=float, default=0.0, metavar="SECONDS", help="least length of a round, to watch it"
    )
    parser.add_argument(
        "--until", type=Path, metavar="FILE", help="stop after the round that this file names, once it is there"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the JSON report here (default: stdout)")
    parser.add_argument("--digests", action="store_true", help="record the digest of the whole state of every round")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
