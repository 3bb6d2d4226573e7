"""This site waits in the run: what keeps training, or its part in it, waiting."""

from __future__ import annotations

from chaos_protocols.cause_texts.kinds import Meaning, Place

NO_QUORUM: Meaning = Meaning(
    "no-quorum", Place.WAITS,
    "no scheduler: {missing}; training waits for a majority of the voters{recovered}",
    "the voters that are named",
    "bring their daemons back on their data directories, or the links to them; no worker is needed. If they are "
    "gone for good, or their journals: `chaosd recover` shows what an operator can decide, and what that costs",
)  # fmt: skip
ELECTION: Meaning = Meaning(
    "election", Place.WAITS,
    "no scheduler: an election is under way; training waits for a majority of the voters",
    "the voters",
    "nothing; it takes a few seconds",
)  # fmt: skip
FOUNDERS_WORKER: Meaning = Meaning(
    "founders-worker", Place.WAITS, "waiting for the founder's worker",
    "the script of the founding site",
    "start the training script at the site with `bootstrap = true`",
)  # fmt: skip
MIN_SITES: Meaning = Meaning(
    "min-sites", Place.WAITS, "waiting for {wanted} sites; here: {here}",
    "sites that are still to join",
    "nothing, or start them; `start_sites` of the founder asks for so many",
)  # fmt: skip
FLOOR: Meaning = Meaning(
    "too-few-sites", Place.WAITS, "rounds wait for {wanted} sites; here: {here}",
    "sites that have left or failed, or are still to join",
    "bring them back, or another one in; `min_sites` of the founder asks for so many, for good",
)  # fmt: skip
STATE_COMES: Meaning = Meaning(
    "state-comes", Place.WAITS,
    "waiting for the state of round {round}: it is fetched again from a site that trains",
    "a neighbour that trains",
    "nothing; the transfer shows in `chaosd status`",
)  # fmt: skip
STATE_PROMISED: Meaning = Meaning(
    "state-promised", Place.WAITS,
    "waiting for the state of round {round}: {sites} will send it when that round is done there",
    "the scripts of the sites that are named, which compute that round, and the links to them",
    "nothing; it takes as long as their round takes. `chaosd status` shows who computes",
)  # fmt: skip
TRANSFER_STANDS: Meaning = Meaning(
    "transfer-stands", Place.WAITS,
    "the transfer of the state of round {round} stands at {done} of {size} bytes ({percent} %): {sources}; what "
    "they owe is asked of other sources, and without one the state is asked for anew",
    "the sources that are named, and the links to them",
    "nothing at first: it goes on by itself when a link is back, or from another source. If it stays: `chaosd "
    "doctor` here names what is wrong with the links; another peer in `[[peers]]` is another source",
)  # fmt: skip
STATE_LOST: Meaning = Meaning(
    "state-lost", Place.WAITS,
    "no member that trains has the state of round {round}; waiting for a worker that has it",
    "a worker with the newest state, at any site",
    "start the scripts of all members: one of them, or a checkpoint, may have it. If none has: `chaosd recover` "
    "shows what there is, and what each way costs",
)  # fmt: skip
STATE_AWAITED: Meaning = Meaning(
    "state-awaited", Place.WAITS, "{reason}",
    "the sites that are named: their daemons, scripts or checkpoints",
    "bring them back, or the newest checkpoint of one (`chaosd checkpoint import FILE` at another site). If that "
    "cannot be: `chaosd recover` shows what there is, and goes on from it at an operator's word",
)  # fmt: skip
ROUND_WAITS: Meaning = Meaning(
    "round-waits", Place.WAITS, "{reason}",
    "the scripts of the sites that are named; where the text says so, their daemons or links",
    "look at the script there: what it does on purpose belongs into `with coordinator.evaluating():`; one that "
    "hangs has to be started again. A daemon that does not follow: its processor and its links. Bytes that do not "
    "arrive: `chaosd doctor` at the site that is named",
)  # fmt: skip
NOTHING_GIVEN: Meaning = Meaning(
    "nothing-given", Place.WAITS,
    "training waits until a site has something to give",
    "a worker with the newest state, at any site",
    "start the scripts of the members; where they run, what they give is not finite, and the events name the site",
)  # fmt: skip
JOIN_HOLD: Meaning = Meaning(
    "join-hold", Place.WAITS,
    "rounds wait until {site} has the state, {seconds} s at most: it cannot follow them meanwhile",
    "the site that is named, and its links",
    "nothing: they go on after `join_hold_s` at the latest; the event `scale-out` has the figures",
)  # fmt: skip
