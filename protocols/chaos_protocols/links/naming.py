"""Which run a word names that others hand on, and whose words are taken that name another one, or none (spec 4.19).

A key may take part in two runs. What its site signs for others to hand on in one of them would count in the other, too,
if somebody brought it there. Driven by `Network`, which knows the run and its rules; asked by the `Router`.
"""

from __future__ import annotations

from chaos_protocols.agreement.roster import RunId
from chaos_protocols.links.site_versions import SiteVersions
from chaos_protocols.names import SITES_MAX, SiteId
from chaos_protocols.wire.control import Envelope, JoinRequest
from chaos_protocols.wire.versions import NAMES_SINCE


class RunNaming:
    """See the module. `versions`: what the sites speak."""

    def __init__(self, versions: SiteVersions) -> None:
        self.run: RunId = ""
        """The run that this site is in, or was, or is to join; empty: none is known."""
        self.named = False
        """What it says for others to hand on names that run."""
        self.required = False
        """What others bring of a third site counts only if it names that run."""
        self.shown: RunId = ""
        """The run that a site of it has named in a word that others handed on."""
        self._readers: dict[SiteId, None] = {}
        """Who has named the run in its own newest word for this site, so that it can read one that does, whatever
        others report of it; the newest SITES_MAX of them."""
        self._versions = versions

    def saw_named(self, run: RunId) -> None:
        """A site of the run has named it in a word that others handed on."""
        self.shown = run

    def heard_from(self, source: SiteId, run: RunId) -> None:
        """A word of `source` has come for this site, or for everybody; it names this run, or none."""
        self._readers.pop(source, None)
        if run:
            self._readers[source] = None
            if len(self._readers) > SITES_MAX:
                del self._readers[next(iter(self._readers))]

    def settle(self, run: RunId, *, named: bool, required: bool) -> bool:
        """What is known now. True: this site's words name a run that they did not name before, so what it has said of
        its links is to be said again."""
        news = named and (run != self.run or not self.named)
        self.run, self.named, self.required = run, named, required
        return news

    def of_word_to(self, destination: SiteId) -> RunId:
        """What a word for `destination` names that others hand on; empty: nothing. Who asks to join with an older
        release could not read it, and has to hear why that is refused."""
        reads = destination in self._readers or not self._versions.lacks(destination, NAMES_SINCE)
        return self.run if self.named and reads else ""

    def may_go(self, neighbour: SiteId, envelope: Envelope) -> bool:
        """Whether a neighbour can read it: one of an older release would take its signature for a wrong one."""
        return not envelope.run or not self._versions.neighbour_lacks(neighbour, NAMES_SINCE)

    def takes(self, neighbour: SiteId, envelope: Envelope) -> bool:
        """Whether it was said in this run, as far as can be told. What a neighbour says itself comes over a link that
        is of this run."""
        if envelope.run:
            return not self.run or envelope.run == self.run
        return not self.required or envelope.source == neighbour

    def can_only_be_refused(self, envelope: Envelope) -> bool:
        """A site of which nobody said that it speaks more asks to join with a release that cannot name a run, which is
        not let in where a run has agreed on that. It is to hear so, though it may have been another run that it asked:
        nothing else follows from it."""
        message = envelope.message
        if envelope.run or not isinstance(message, JoinRequest):
            return False
        return max(message.versions.newest, self._versions.of(envelope.source).newest) < NAMES_SINCE
