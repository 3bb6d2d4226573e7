"""This site waits outside the run: what keeps it from taking part."""

from __future__ import annotations

from chaos_protocols.cause_texts.kinds import Meaning, Place

NO_WORKER: Meaning = Meaning(
    "no-worker", Place.WAITS, "waiting for a worker to say hello",
    "the script of this site",
    "start the training script, with `worker_socket` as CHAOS_SOCKET; one that runs comes when it calls `register`",
)  # fmt: skip
ASKING: Meaning = Meaning(
    "asking", Place.WAITS, "asking to join",
    "an answer of the run",
    "nothing for some seconds; a better cause stands here as soon as one is known",
)  # fmt: skip
SCRIPT_ANSWERS: Meaning = Meaning(
    "script-answers", Place.WAITS, "asks to join when this site's script has answered what it was last given",
    "the script of this site",
    "nothing for as long as an update, or loading a state, takes; a script that hangs has to be started again",
)  # fmt: skip
NO_PEER: Meaning = Meaning(
    "no-peer", Place.WAITS,
    "asking to join: the configuration names no peer, and no site has dialled this one; name a site of the run in "
    "[[peers]]",
    "the operator of this site",
    "put a site of the run into `[[peers]]`, or wait until one dials; if this site is to found the run: "
    "`bootstrap = true`, at exactly one site",
)  # fmt: skip
NO_LINK: Meaning = Meaning(
    "no-link", Place.WAITS, "asking to join, without a link: {links}",
    "the sites that are named",
    "what the text says of each; more on every cause of a link under \"A link does not come about\"",
)  # fmt: skip
NO_FOUNDER: Meaning = Meaning(
    "no-founder", Place.WAITS,
    "asking to join: {sites} wait, too, and none of them is in a run: one site has to found it (bootstrap = true)"
    "{links}",
    "the site that founds the run",
    "start the founding site, and link one of these with it; exactly one site has `bootstrap = true`",
)  # fmt: skip
TWO_RUNS: Meaning = Meaning(
    "two-runs", Place.WAITS,
    "asking to join: the neighbours take part in two runs of the same name ({runs}); join neither before one of "
    "them is gone, or is no peer of this site",
    "the operators of the sites that are named",
    "end the run that is not wanted: its daemons are stopped, their `journal` is moved away, and they start "
    "without `bootstrap`; or take its sites out of `[[peers]]` here",
)  # fmt: skip
RUN_WITHOUT_SCHEDULER: Meaning = Meaning(
    "run-without-scheduler", Place.WAITS,
    "asking to join: linked with {sites}, and no scheduler of the run answers: it has none at the moment, or no "
    "way leads to it",
    "the voters of the run",
    "look at `chaosd status` of one of these sites: it says what the run waits for, and for whom",
)  # fmt: skip
UNKNOWN_MEMBERS: Meaning = Meaning(
    "unknown-members", Place.WAITS,
    "asking to join: linked with {sites}, which the journal of this site does not know in the run; it knows {known}, "
    "and asks nobody whom none of these names as the scheduler",
    "the operator of this site",
    "nothing, if one of those that it knows is in the run: it is asked once there is a link (`[[peers]]`). If all of "
    "them are gone: ask the other operators who schedules, stop the daemon, move `journal` out of the data "
    "directory, set `bootstrap = false`, start it again: it joins as a newcomer",
)  # fmt: skip
UNPROVEN: Meaning = Meaning(
    "scheduler-unproven", Place.WAITS,
    "{site} schedules the run, and cannot show this site who elected it: by this site's journal {voters} vote, and "
    "no chain of votes leads from there to it. So this site would follow nothing that it says; asked again later",
    "the operator of this site",
    "ask the other operators who schedules. If it is this one, and those who voted are gone: stop the daemon, move "
    "`journal` out of the data directory, set `bootstrap = false`, start it again: it joins as a newcomer",
)  # fmt: skip
ADMISSION: Meaning = Meaning(
    "admission", Place.WAITS,
    "asking to join: the run has said yes, and its sites make and measure their links to this one",
    "the neighbours",
    "nothing; if it stays, one of the neighbours cannot dial this site (`advertise`) or be dialled",
)  # fmt: skip
NOT_NOW: Meaning = Meaning(
    "not-now", Place.WAITS, "{reason}",
    "the run",
    "as the text says: the scheduler's release is older than this list",
)  # fmt: skip
FOUNDER_HAS_NO_WORKER: Meaning = Meaning(
    "founder-has-no-worker", Place.WAITS, "the site that founds the run has no worker yet",
    "the script of the founding site",
    "start the training script at the site with `bootstrap = true`",
)  # fmt: skip
RESOLVING: Meaning = Meaning(
    "resolving", Place.WAITS, "a failure is being resolved",
    "the sites of the run",
    "nothing; asked again by itself. `chaosd status` at a member names who does not answer; such a site is removed "
    "after ten failure timeouts",
)  # fmt: skip
NOBODY_TRAINS: Meaning = Meaning(
    "nobody-trains", Place.WAITS,
    "no member has the training state at the moment; waiting for one that has the newest",
    "a member whose worker has the state",
    "start the scripts of the members; see `state-lost`",
)  # fmt: skip
SCRIPTS_REST: Meaning = Meaning(
    "scripts-rest", Place.WAITS, "no member's script trains at the moment: they pause, or are late",
    "the scripts of the members",
    "nothing, or end the pause there",
)  # fmt: skip
FORMER_SELF: Meaning = Meaning(
    "former-self", Place.WAITS, "its former self is still in the roster, and is being removed",
    "the scheduler",
    "nothing; asked again by itself",
)  # fmt: skip
FORMER_LEAVE: Meaning = Meaning(
    "former-leave", Place.WAITS, "its former leave is still being finished",
    "the scheduler",
    "nothing; asked again by itself",
)  # fmt: skip
HAS_LEFT: Meaning = Meaning(
    "has-left", Place.WAITS, "this start of its daemon has left the run; this request was under way for long",
    "the operator of this site",
    "start the daemon again",
)  # fmt: skip
NEIGHBOURS_OUTSIDE: Meaning = Meaning(
    "neighbours-outside", Place.WAITS,
    "none of the named neighbours is in the run at the moment, or no way from there to this site is known",
    "the peers of this site",
    "they are joining themselves, or stopped: see their `chaosd status`; or name a member in `[[peers]]`",
)  # fmt: skip
LINKS_TOO_SLOW: Meaning = Meaning(
    "links-too-slow", Place.WAITS, "{reason}",
    "the links of this site",
    "as the text says: a faster link, fewer rounds (accumulate gradients), or a longer `join_hold_s` at all sites",
)  # fmt: skip
BANNED: Meaning = Meaning(
    "banned", Place.WAITS, "this site was banned from the run",
    "the members of the run",
    "speak with the members; final for this worker",
)  # fmt: skip
OTHER_MODEL: Meaning = Meaning(
    "other-model", Place.WAITS, "the model or optimizer differs from that of the run",
    "the script of this site",
    "give it the same model and optimizer as the others have; the refusal names the first array that differs. "
    "Final for this worker",
)  # fmt: skip
RUN_NEEDS_VERSION: Meaning = Meaning(
    "run-needs-version", Place.WAITS, "{reason}",
    "the operator who has the older release",
    "install the release that the text names; final for this worker",
)  # fmt: skip
