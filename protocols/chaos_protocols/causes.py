"""Why something stands, or is refused, or ends: every cause by name, with its text, whom it waits for and what to do.

The only place where these texts stand. A part that finds a cause says `Cause.NAME.told(...)`; what it gets, a `Why`,
ends in the status, at the script and in the event history. docs/when-something-stands.md is made from this list, and a
test holds it there.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from enum import Enum

from chaos_protocols.cause_kinds import Meaning as Meaning
from chaos_protocols.cause_kinds import Place as Place


@dataclass(frozen=True, slots=True)
class Why:
    """A cause as it was found, and the sentence for people."""

    cause: Cause
    text: str


class Cause(Enum):
    """See the module. The code is for programs, and stays."""

    # -- this site waits: outside the run

    NO_WORKER = Meaning(
        "no-worker", Place.WAITS, "waiting for a worker to say hello",
        "the script of this site",
        "start the training script, with `worker_socket` as CHAOS_SOCKET; one that runs comes when it calls `register`",
    )  # fmt: skip
    ASKING = Meaning(
        "asking", Place.WAITS, "asking to join",
        "an answer of the run",
        "nothing for some seconds; a better cause stands here as soon as one is known",
    )  # fmt: skip
    SCRIPT_ANSWERS = Meaning(
        "script-answers", Place.WAITS, "asks to join when this site's script has answered what it was last given",
        "the script of this site",
        "nothing for as long as an update, or loading a state, takes; a script that hangs has to be started again",
    )  # fmt: skip
    NO_PEER = Meaning(
        "no-peer", Place.WAITS,
        "asking to join: the configuration names no peer, and no site has dialled this one; name a site of the run in "
        "[[peers]]",
        "the operator of this site",
        "put a site of the run into `[[peers]]`, or wait until one dials; if this site is to found the run: "
        "`bootstrap = true`, at exactly one site",
    )  # fmt: skip
    NO_LINK = Meaning(
        "no-link", Place.WAITS, "asking to join, without a link: {links}",
        "the sites that are named",
        "what the text says of each; more on every cause of a link under \"A link does not come about\"",
    )  # fmt: skip
    NO_FOUNDER = Meaning(
        "no-founder", Place.WAITS,
        "asking to join: {sites} wait, too, and none of them is in a run: one site has to found it (bootstrap = true)"
        "{links}",
        "the site that founds the run",
        "start the founding site, and link one of these with it; exactly one site has `bootstrap = true`",
    )  # fmt: skip
    TWO_RUNS = Meaning(
        "two-runs", Place.WAITS,
        "asking to join: the neighbours take part in two runs of the same name ({runs}); join neither before one of "
        "them is gone, or is no peer of this site",
        "the operators of the sites that are named",
        "end the run that is not wanted: its daemons are stopped, their `journal` is moved away, and they start "
        "without `bootstrap`; or take its sites out of `[[peers]]` here",
    )  # fmt: skip
    RUN_WITHOUT_SCHEDULER = Meaning(
        "run-without-scheduler", Place.WAITS,
        "asking to join: linked with {sites}, and no scheduler of the run answers: it has none at the moment, or no "
        "way leads to it",
        "the voters of the run",
        "look at `chaosd status` of one of these sites: it says what the run waits for, and for whom",
    )  # fmt: skip
    UNPROVEN = Meaning(
        "scheduler-unproven", Place.WAITS,
        "{site} schedules the run, and cannot show this site who elected it: by this site's journal {voters} vote, and "
        "no chain of votes leads from there to it. So this site would follow nothing that it says; asked again later",
        "the operator of this site",
        "ask the other operators who schedules. If it is this one, and those who voted are gone: stop the daemon, move "
        "`journal` out of the data directory, set `bootstrap = false`, start it again: it joins as a newcomer",
    )  # fmt: skip
    ADMISSION = Meaning(
        "admission", Place.WAITS,
        "asking to join: the run has said yes, and its sites make and measure their links to this one",
        "the neighbours",
        "nothing; if it stays, one of the neighbours cannot dial this site (`advertise`) or be dialled",
    )  # fmt: skip
    NOT_NOW = Meaning(
        "not-now", Place.WAITS, "{reason}",
        "the run",
        "as the text says: the scheduler's release is older than this list",
    )  # fmt: skip
    FOUNDER_HAS_NO_WORKER = Meaning(
        "founder-has-no-worker", Place.WAITS, "the site that founds the run has no worker yet",
        "the script of the founding site",
        "start the training script at the site with `bootstrap = true`",
    )  # fmt: skip
    RESOLVING = Meaning(
        "resolving", Place.WAITS, "a failure is being resolved",
        "the sites of the run",
        "nothing; asked again by itself. `chaosd status` at a member names who does not answer; such a site is removed "
        "after ten failure timeouts",
    )  # fmt: skip
    NOBODY_TRAINS = Meaning(
        "nobody-trains", Place.WAITS,
        "no member has the training state at the moment; waiting for one that has the newest",
        "a member whose worker has the state",
        "start the scripts of the members; see `state-lost`",
    )  # fmt: skip
    SCRIPTS_REST = Meaning(
        "scripts-rest", Place.WAITS, "no member's script trains at the moment: they pause, or are late",
        "the scripts of the members",
        "nothing, or end the pause there",
    )  # fmt: skip
    FORMER_SELF = Meaning(
        "former-self", Place.WAITS, "its former self is still in the roster, and is being removed",
        "the scheduler",
        "nothing; asked again by itself",
    )  # fmt: skip
    FORMER_LEAVE = Meaning(
        "former-leave", Place.WAITS, "its former leave is still being finished",
        "the scheduler",
        "nothing; asked again by itself",
    )  # fmt: skip
    HAS_LEFT = Meaning(
        "has-left", Place.WAITS, "this start of its daemon has left the run; this request was under way for long",
        "the operator of this site",
        "start the daemon again",
    )  # fmt: skip
    NEIGHBOURS_OUTSIDE = Meaning(
        "neighbours-outside", Place.WAITS,
        "none of the named neighbours is in the run at the moment, or no way from there to this site is known",
        "the peers of this site",
        "they are joining themselves, or stopped: see their `chaosd status`; or name a member in `[[peers]]`",
    )  # fmt: skip
    LINKS_TOO_SLOW = Meaning(
        "links-too-slow", Place.WAITS, "{reason}",
        "the links of this site",
        "as the text says: a faster link, fewer rounds (accumulate gradients), or a longer `join_hold_s` at all sites",
    )  # fmt: skip
    BANNED = Meaning(
        "banned", Place.WAITS, "this site was banned from the run",
        "the members of the run",
        "speak with the members; final for this worker",
    )  # fmt: skip
    OTHER_MODEL = Meaning(
        "other-model", Place.WAITS, "the model or optimizer differs from that of the run",
        "the script of this site",
        "give it the same model and optimizer as the others have; the refusal names the first array that differs. "
        "Final for this worker",
    )  # fmt: skip
    RUN_NEEDS_VERSION = Meaning(
        "run-needs-version", Place.WAITS, "{reason}",
        "the operator who has the older release",
        "install the release that the text names; final for this worker",
    )  # fmt: skip

    # -- this site waits: in the run

    NO_QUORUM = Meaning(
        "no-quorum", Place.WAITS,
        "no scheduler: {missing}; training waits for a majority of the voters{recovered}",
        "the voters that are named",
        "bring their daemons back on their data directories, or the links to them; no worker is needed. If they are "
        "gone for good, or their journals: `chaosd recover` shows what an operator can decide, and what that costs",
    )  # fmt: skip
    ELECTION = Meaning(
        "election", Place.WAITS,
        "no scheduler: an election is under way; training waits for a majority of the voters",
        "the voters",
        "nothing; it takes a few seconds",
    )  # fmt: skip
    FOUNDERS_WORKER = Meaning(
        "founders-worker", Place.WAITS, "waiting for the founder's worker",
        "the script of the founding site",
        "start the training script at the site with `bootstrap = true`",
    )  # fmt: skip
    MIN_SITES = Meaning(
        "min-sites", Place.WAITS, "waiting for {wanted} sites; here: {here}",
        "sites that are still to join",
        "nothing, or start them; `start_sites` of the founder asks for so many",
    )  # fmt: skip
    FLOOR = Meaning(
        "too-few-sites", Place.WAITS, "rounds wait for {wanted} sites; here: {here}",
        "sites that have left or failed, or are still to join",
        "bring them back, or another one in; `min_sites` of the founder asks for so many, for good",
    )  # fmt: skip
    STATE_COMES = Meaning(
        "state-comes", Place.WAITS,
        "waiting for the state of round {round}: it is fetched again from a site that trains",
        "a neighbour that trains",
        "nothing; the transfer shows in `chaosd status`",
    )  # fmt: skip
    STATE_PROMISED = Meaning(
        "state-promised", Place.WAITS,
        "waiting for the state of round {round}: {sites} will send it when that round is done there",
        "the scripts of the sites that are named, which compute that round, and the links to them",
        "nothing; it takes as long as their round takes. `chaosd status` shows who computes",
    )  # fmt: skip
    TRANSFER_STANDS = Meaning(
        "transfer-stands", Place.WAITS,
        "the transfer of the state of round {round} stands at {done} of {size} bytes ({percent} %): {sources}; what "
        "they owe is asked of other sources, and without one the state is asked for anew",
        "the sources that are named, and the links to them",
        "nothing at first: it goes on by itself when a link is back, or from another source. If it stays: `chaosd "
        "doctor` here names what is wrong with the links; another peer in `[[peers]]` is another source",
    )  # fmt: skip
    STATE_LOST = Meaning(
        "state-lost", Place.WAITS,
        "no member that trains has the state of round {round}; waiting for a worker that has it",
        "a worker with the newest state, at any site",
        "start the scripts of all members: one of them, or a checkpoint, may have it. If none has: `chaosd recover` "
        "shows what there is, and what each way costs",
    )  # fmt: skip
    STATE_AWAITED = Meaning(
        "state-awaited", Place.WAITS, "{reason}",
        "the sites that are named: their daemons, scripts or checkpoints",
        "bring them back, or the newest checkpoint of one (`chaosd checkpoint import FILE` at another site). If that "
        "cannot be: `chaosd recover` shows what there is, and goes on from it at an operator's word",
    )  # fmt: skip
    ROUND_WAITS = Meaning(
        "round-waits", Place.WAITS, "{reason}",
        "the scripts of the sites that are named; where the text says so, their daemons or links",
        "look at the script there: what it does on purpose belongs into `with coordinator.evaluating():`; one that "
        "hangs has to be started again. A daemon that does not follow: its processor and its links. Bytes that do not "
        "arrive: `chaosd doctor` at the site that is named",
    )  # fmt: skip
    NOTHING_GIVEN = Meaning(
        "nothing-given", Place.WAITS,
        "training waits until a site has something to give",
        "a worker with the newest state, at any site",
        "start the scripts of the members; where they run, what they give is not finite, and the events name the site",
    )  # fmt: skip
    JOIN_HOLD = Meaning(
        "join-hold", Place.WAITS,
        "rounds wait until {site} has the state, {seconds} s at most: it cannot follow them meanwhile",
        "the site that is named, and its links",
        "nothing: they go on after `join_hold_s` at the latest; the event `scale-out` has the figures",
    )  # fmt: skip

    # -- a link does not come about

    NOT_RUNNING = Meaning(
        "peer-not-running", Place.LINK, "{site} does not run: nothing listens at {address}",
        "the operator of the peer",
        "start its daemon; if it runs, its `listen`, a port forwarding or the address here is wrong",
    )  # fmt: skip
    UNREACHABLE = Meaning(
        "peer-unreachable", Place.LINK, "{site} cannot be reached at {address} ({reason})",
        "the network between the two, or the address here",
        "check the address in `[[peers]]`, both firewalls, and that the machine is on; `chaosd doctor` tries it",
    )  # fmt: skip
    DISTRUSTED = Meaning(
        "peer-does-not-trust", Place.LINK,
        "waiting for the operator of {site}, who lets this site in with `chaosd accept {own}` after comparing the "
        "words of its id: {words}",
        "the operator of the peer",
        "call them and read them the words (`chaosd id --words` prints them, too): over there `chaosd pending` shows "
        "the same ones, and `chaosd accept ID` lets this site in. It tries again by itself",
    )  # fmt: skip
    KEPT_OUT = Meaning(
        "peer-keeps-out", Place.LINK,
        "{site} lets this site in no more, though both are of the run, as far as is known here: it was blocked there, "
        "or put out of the run. Call its operator before any `chaosd recover`",
        "the operator of the peer",
        "call them: over there `chaosd block` shows who is blocked, and `chaosd unblock ID` undoes it; `chaosd events` "
        "tells who was put out and why, `chaosd pending` who may come back by `chaosd accept ID`. Where all others "
        "refuse it they train on without this site. Who was banned comes back with a new key",
    )  # fmt: skip
    LET_IN_BEFORE = Meaning(
        "peer-let-in-before", Place.LINK,
        "{site} had a link with this site, and does not let it in now; `chaosd events` there tells why",
        "the operator of the peer, or nobody: what keeps a site out for a while passes by itself",
        "call them if it lasts. Links that come and go, too many words or a broken rule: find out why, it is tried "
        "again by itself. Blocked: `chaosd unblock ID` over there. Trusted no more: `chaosd accept ID` over there",
    )  # fmt: skip
    OTHER_VERSION = Meaning(
        "peer-speaks-other-version", Place.LINK, "{site} speaks another protocol: {reason}",
        "the operator who has the older release",
        "install what the text names, at the end that it names",
    )  # fmt: skip
    OTHER_NAME = Meaning(
        "peer-in-run-of-other-name", Place.LINK, "{site} takes part in a run of another name: {reason}",
        "the operator of either end",
        "give both the same `run`, or take the peer out of `[[peers]]`",
    )  # fmt: skip
    OTHER_RUN = Meaning(
        "peer-in-other-run", Place.LINK,
        "{site} takes part in another run of the same name ({there}; this site in {here}): two sites have founded it, "
        "or one of these has files of a former run, or one side was recovered without the other",
        "the operators of both",
        "`chaosd recover` tells of a recovered run, and how to follow it. Else decide which run stays; at each site "
        "of the other: stop the daemon, move `journal` out of the data directory, set `bootstrap = false`, start it "
        "again: it joins with the state of the run that stays",
    )  # fmt: skip
    ANOTHER_SITE = Meaning(
        "another-site-answers", Place.LINK, "another site than {site} answers at {address}: {reason}",
        "the operator of this site",
        "correct `site` or `address` of that peer; the site id is what `chaosd id` prints over there. A firewall or "
        "proxy that opens TLS has to leave this host and port out",
    )  # fmt: skip
    OLDER_START = Meaning(
        "older-start", Place.LINK, "{site} knows a newer start of this site's daemon ({reason})",
        "the operator of this site",
        "set the clock of this machine and start the daemon again; if its files were brought back from an older "
        "copy, that is enough, too",
    )  # fmt: skip
    LINK_FAILED = Meaning(
        "link-failed", Place.LINK, "the link to {site} at {address} does not come up ({reason})",
        "either end",
        "as the text says; it is tried again by itself",
    )  # fmt: skip

    # -- this site refuses another one

    UNTRUSTED = Meaning(
        "untrusted", Place.REFUSES,
        "it is not trusted here; if that institution reads out the same words, let it in with `chaosd accept {other}`: "
        "{words}",
        "the operator of this site",
        "call that institution and compare the words of its id; then `chaosd accept ID`, at once and for good, or "
        "leave it",
    )  # fmt: skip
    SHUT_OUT = Meaning(
        "shut-out", Place.REFUSES, "it is shut out here: {reason}",
        "the operator of that site",
        "broke the rules: it is let in again by itself, later each time; the events say what it sent. Blocked: "
        "`chaosd unblock ID`. Banned: for good; that institution comes back with a new key",
    )  # fmt: skip
    REFUSED_VERSION = Meaning(
        "refused-other-version", Place.REFUSES, "it speaks another protocol: {reason}",
        "the operator who has the older release",
        "install what the text names, at the end that it names",
    )  # fmt: skip
    REFUSED_NAME = Meaning(
        "refused-run-of-other-name", Place.REFUSES, "it takes part in a run of another name: {reason}",
        "the operator of either end",
        "give both the same `run`, or take the peer out of `[[peers]]`",
    )  # fmt: skip
    REFUSED_RUN = Meaning(
        "refused-other-run", Place.REFUSES,
        "it takes part in another run of the same name ({there}; this site in {here}): two sites have founded it, or "
        "one of these has files of a former run",
        "the operators of both",
        "as for `peer-in-other-run`",
    )  # fmt: skip
    REFUSED_START = Meaning(
        "refused-older-start", Place.REFUSES, "a newer start of its daemon is known: {reason}",
        "the operator of that site",
        "if it stays: two daemons have one key (a copied machine), or that machine's clock is behind",
    )  # fmt: skip

    # -- this site goes on, and warns

    KEY_USED = Meaning(
        "key-used-elsewhere", Place.WARNS,
        "{site} has refused another daemon with this site's key, which was started before this one: {reason}",
        "the operator of this site",
        "find the other machine (a copy of this one, a restored backup) and stop its daemon; if it is to be a site, "
        "too, it gets a key of its own: `chaosd init` in an empty folder",
    )  # fmt: skip

    # -- this daemon ends

    KEY_ELSEWHERE = Meaning(
        "key-elsewhere", Place.ENDS,
        "another daemon with this site's key was started later and is linked with {site}: two daemons must not have "
        "one key. Stop the other one, or, if this machine is a copy, or there is no other one (the clock was ahead "
        "when this site was last started), give it a key of its own: `chaosd init` in an empty folder",
        "the operator of this site",
        "find the other machine (a copy of this one, a restored backup); let only one of them keep `site.key`",
    )  # fmt: skip

    def told(self, **found: object) -> Why:
        """The sentence, with what was found in it. Raises KeyError where something is missing."""
        return Why(self, self.value.text.format_map(found))

    @property
    def code(self) -> str:
        return self.value.code

    @property
    def fields(self) -> tuple[str, ...]:
        """What `told` must be given."""
        return tuple(name for _, name, _, _ in string.Formatter().parse(self.value.text) if name)


BY_CODE = {cause.code: cause for cause in Cause}


def by_code(code: str) -> Cause:
    """What another site names; NOT_NOW for what this release does not know."""
    return BY_CODE.get(code, Cause.NOT_NOW)
