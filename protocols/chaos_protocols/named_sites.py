"""Which site an operator means by what he types: its id, its name, or the beginning of its id. Decides nothing else.

Every command that names a site asks here, so that what works for one works for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from chaos_protocols.names import SiteId, short

BEGINNING = re.compile(r"[0-9a-f]{4,}")
"""Of an id; fewer characters are too easily those of another site."""
TYPED_CHARACTERS_MAX = 64
"""Of what was typed, in an answer."""


def sites_named(text: str, among: Iterable[tuple[SiteId, str]]) -> set[SiteId]:
    """Those that may be meant; see `site_named`. A whole id means its site whatever others call themselves; a name that
    is the beginning of another site's id may mean that one as well."""
    pairs = list(among)
    if any(site == text for site, _ in pairs):
        return {SiteId(text)}
    begins = BEGINNING.fullmatch(text) is not None
    return {site for site, name in pairs if (name and name == text) or (begins and site.startswith(text))}


class NotOneSite(Exception):
    """None of the sites in question is meant, or several may be. Its text is for people, and names them all."""


def site_named(text: str, among: Iterable[tuple[SiteId, str]], what: str) -> SiteId:
    """The one of these sites that is meant. `among`: each with its name, or "" where it has none; with several names it
    is there several times. `what`: who these are, as in "none of the peers". Raises NotOneSite."""
    pairs = list(among)
    names: dict[SiteId, str] = {}
    for site, name in pairs:
        names.setdefault(site, name)
    found = sites_named(text, pairs)
    if len(found) == 1:
        return found.pop()
    known = ", ".join(f"{name} ({short(site)})" if name else short(site) for site, name in names.items())
    count = "more than one" if found else "none"
    raise NotOneSite(
        f"{count} of {what} is '{text[:TYPED_CHARACTERS_MAX]}'; {f'there are: {known}' if known else 'there is none'}"
    )
