"""Between two sites: why a link does not come about, why this site refuses another one, and what comes of a key
that is used twice."""

from __future__ import annotations

from chaos_protocols.cause_texts.kinds import Meaning, Place

# -- a link does not come about

NOT_RUNNING: Meaning = Meaning(
    "peer-not-running", Place.LINK, "{site} does not run: nothing listens at {address}",
    "the operator of the peer",
    "start its daemon; if it runs, its `listen`, a port forwarding or the address here is wrong",
)  # fmt: skip
UNREACHABLE: Meaning = Meaning(
    "peer-unreachable", Place.LINK, "{site} cannot be reached at {address} ({reason})",
    "the network between the two, or the address here",
    "check the address in `[[peers]]`, both firewalls, and that the machine is on; `chaosd doctor` tries it",
)  # fmt: skip
DISTRUSTED: Meaning = Meaning(
    "peer-does-not-trust", Place.LINK,
    "waiting for the operator of {site}, who lets this site in with `chaosd accept {own}` after comparing the "
    "words of its id: {words}",
    "the operator of the peer",
    "call them and read them the words (`chaosd id --words` prints them, too): over there `chaosd pending` shows "
    "the same ones, and `chaosd accept ID` lets this site in. It tries again by itself",
)  # fmt: skip
KEPT_OUT: Meaning = Meaning(
    "peer-keeps-out", Place.LINK,
    "{site} lets this site in no more, though both are of the run, as far as is known here: it was blocked there, "
    "or put out of the run. Call its operator before any `chaosd recover`",
    "the operator of the peer",
    "call them: over there `chaosd block` shows who is blocked, and `chaosd unblock ID` undoes it; `chaosd events` "
    "tells who was put out and why, `chaosd pending` who may come back by `chaosd accept ID`. Where all others "
    "refuse it they train on without this site. Who was banned comes back with a new key",
)  # fmt: skip
LET_IN_BEFORE: Meaning = Meaning(
    "peer-let-in-before", Place.LINK,
    "{site} had a link with this site, and does not let it in now; `chaosd events` there tells why",
    "the operator of the peer, or nobody: what keeps a site out for a while passes by itself",
    "call them if it lasts. Links that come and go, too many words or a broken rule: find out why, it is tried "
    "again by itself. Blocked: `chaosd unblock ID` over there. Trusted no more: `chaosd accept ID` over there",
)  # fmt: skip
OTHER_VERSION: Meaning = Meaning(
    "peer-speaks-other-version", Place.LINK, "{site} speaks another protocol: {reason}",
    "the operator who has the older release",
    "install what the text names, at the end that it names",
)  # fmt: skip
OTHER_NAME: Meaning = Meaning(
    "peer-in-run-of-other-name", Place.LINK, "{site} takes part in a run of another name: {reason}",
    "the operator of either end",
    "give both the same `run`, or take the peer out of `[[peers]]`",
)  # fmt: skip
OTHER_RUN: Meaning = Meaning(
    "peer-in-other-run", Place.LINK,
    "{site} takes part in another run of the same name ({there}; this site in {here}): two sites have founded it, "
    "or one of these has files of a former run, or one side was recovered without the other",
    "the operators of both",
    "`chaosd recover` tells of a recovered run, and how to follow it. Else decide which run stays; at each site "
    "of the other: stop the daemon, move `journal` out of the data directory, set `bootstrap = false`, start it "
    "again: it joins with the state of the run that stays",
)  # fmt: skip
ANOTHER_SITE: Meaning = Meaning(
    "another-site-answers", Place.LINK, "another site than {site} answers at {address}: {reason}",
    "the operator of this site",
    "correct `site` or `address` of that peer; the site id is what `chaosd id` prints over there. A firewall or "
    "proxy that opens TLS has to leave this host and port out",
)  # fmt: skip
OLDER_START: Meaning = Meaning(
    "older-start", Place.LINK, "{site} knows a newer start of this site's daemon ({reason})",
    "the operator of this site",
    "set the clock of this machine and start the daemon again; if its files were brought back from an older "
    "copy, that is enough, too",
)  # fmt: skip
LINK_FAILED: Meaning = Meaning(
    "link-failed", Place.LINK, "the link to {site} at {address} does not come up ({reason})",
    "either end",
    "as the text says; it is tried again by itself",
)  # fmt: skip

# -- this site refuses another one

UNTRUSTED: Meaning = Meaning(
    "untrusted", Place.REFUSES,
    "it is not trusted here; if that institution reads out the same words, let it in with `chaosd accept {other}`: "
    "{words}",
    "the operator of this site",
    "call that institution and compare the words of its id; then `chaosd accept ID`, at once and for good, or "
    "leave it",
)  # fmt: skip
SHUT_OUT: Meaning = Meaning(
    "shut-out", Place.REFUSES, "it is shut out here: {reason}",
    "the operator of that site",
    "broke the rules: it is let in again by itself, later each time; the events say what it sent. Blocked: "
    "`chaosd unblock ID`. Banned: for good; that institution comes back with a new key",
)  # fmt: skip
REFUSED_VERSION: Meaning = Meaning(
    "refused-other-version", Place.REFUSES, "it speaks another protocol: {reason}",
    "the operator who has the older release",
    "install what the text names, at the end that it names",
)  # fmt: skip
REFUSED_NAME: Meaning = Meaning(
    "refused-run-of-other-name", Place.REFUSES, "it takes part in a run of another name: {reason}",
    "the operator of either end",
    "give both the same `run`, or take the peer out of `[[peers]]`",
)  # fmt: skip
REFUSED_RUN: Meaning = Meaning(
    "refused-other-run", Place.REFUSES,
    "it takes part in another run of the same name ({there}; this site in {here}): two sites have founded it, or "
    "one of these has files of a former run",
    "the operators of both",
    "as for `peer-in-other-run`",
)  # fmt: skip
REFUSED_START: Meaning = Meaning(
    "refused-older-start", Place.REFUSES, "a newer start of its daemon is known: {reason}",
    "the operator of that site",
    "if it stays: two daemons have one key (a copied machine), or that machine's clock is behind",
)  # fmt: skip

# -- this site goes on, and warns

KEY_USED: Meaning = Meaning(
    "key-used-elsewhere", Place.WARNS,
    "{site} has refused another daemon with this site's key, which was started before this one: {reason}",
    "the operator of this site",
    "find the other machine (a copy of this one, a restored backup) and stop its daemon; if it is to be a site, "
    "too, it gets a key of its own: `chaosd init` in an empty folder",
)  # fmt: skip

# -- this daemon ends

KEY_ELSEWHERE: Meaning = Meaning(
    "key-elsewhere", Place.ENDS,
    "another daemon with this site's key was started later and is linked with {site}: two daemons must not have "
    "one key. Stop the other one, or, if this machine is a copy, or there is no other one (the clock was ahead "
    "when this site was last started), give it a key of its own: `chaosd init` in an empty folder",
    "the operator of this site",
    "find the other machine (a copy of this one, a restored backup); let only one of them keep `site.key`",
)  # fmt: skip
