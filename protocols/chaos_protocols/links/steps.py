"""Where each site stands, as far as this one has heard: by its own heartbeats, or handed on by neighbours (spec 3.15).

For people: nothing is decided by what was handed on, but where an operator is to recover a run (spec 21.1). A word is
known by the heartbeat that it was made from, so an old one that comes round by another way is not taken for news, and
its age is never less than it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chaos_protocols.names import SITES_MAX, SiteId
from chaos_protocols.wire.control import Heartbeat
from chaos_protocols.wire.steps import STEPS_TOLD_MAX, SiteStep

TOLD_AFTER_S = 0.4
"""A neighbour is told of the others at most so often: a site four links away is then heard of within 2 s."""
FORGOTTEN_AFTER_S = 600.0
"""Of a site that nobody has heard for so long nothing is handed on."""


@dataclass(frozen=True, slots=True)
class HeardStep:
    """What was heard of a site, and when it was said. `direct`: by the site itself."""

    incarnation: int
    sequence: int
    round: int
    phase: str
    at_s: float
    direct: bool
    encoding_error: float | None


class Steps:
    """See the module."""

    def __init__(self, site: SiteId) -> None:
        self._site = site
        self._known: dict[SiteId, HeardStep] = {}
        self._told_s: float | None = None

    def of(self, site: SiteId) -> HeardStep | None:
        """The newest word of a site."""
        return self._known.get(site)

    def forget(self, site: SiteId) -> None:
        """It is gone."""
        self._known.pop(site, None)

    def heard(
        self,
        site: SiteId,
        incarnation: int,
        beat: Heartbeat,
        *,
        now_s: float,
        of_run: bool = True,
        is_of_run: Callable[[SiteId], bool] = lambda _: True,
    ) -> None:
        """A neighbour says where it stands; one of the run, too, what it knows of others that are (`is_of_run`): sites
        that it makes up would leave no room for true ones."""
        if self._is_news(site, incarnation, beat.sequence, direct=True):
            self._known[site] = HeardStep(
                incarnation, beat.sequence, beat.round, beat.phase, now_s, True, beat.encoding_error
            )
        for one in beat.others if of_run else ():
            if one.site not in self._known and (len(self._known) >= SITES_MAX or not is_of_run(one.site)):
                continue
            if one.site != self._site and self._is_news(one.site, one.incarnation, one.sequence, direct=False):
                at_s = now_s - one.age_s
                self._known[one.site] = HeardStep(
                    one.incarnation, one.sequence, one.round, one.phase, at_s, False, one.encoding_error
                )

    def _is_news(self, site: SiteId, incarnation: int, sequence: int, *, direct: bool) -> bool:
        """Most of what is handed on is not: asked before anything is made of it."""
        known = self._known.get(site)
        if known is None:
            return True
        overrules = direct and not known.direct  # nobody knows it better than the site
        return overrules or (incarnation, sequence) > (known.incarnation, known.sequence)

    def told(self, sites: tuple[SiteId, ...], *, now_s: float) -> tuple[SiteStep, ...]:
        """What the neighbours are told with this heartbeat about these sites; nothing if they were told just now."""
        if self._told_s is not None and now_s < self._told_s + TOLD_AFTER_S:
            return ()
        self._told_s = now_s
        fresh = [(site, self._known[site]) for site in sites if site in self._known]
        fresh = [(site, one) for site, one in fresh if now_s - one.at_s <= FORGOTTEN_AFTER_S]
        fresh.sort(key=lambda one: (-one[1].at_s, one[0]))
        return tuple(
            SiteStep(
                site=site,
                incarnation=one.incarnation,
                sequence=one.sequence,
                round=one.round,
                phase=one.phase,
                age_s=max(0.0, now_s - one.at_s),
                encoding_error=one.encoding_error,
            )
            for site, one in fresh[:STEPS_TOLD_MAX]
        )
