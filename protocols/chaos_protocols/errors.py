"""Who broke the rules: we, or the peer. Closed by us and broken by the world are different things, and neither is one
of these."""

from __future__ import annotations


class LocalProtocolError(Exception):
    """This site used a machine wrongly: a defect of ours, never the fault of a peer or a user."""


class RemoteProtocolError(Exception):
    """A peer broke the rules; the text names the rule. Its connection is closed, this site is unharmed."""
