"""What can keep a lab from starting or going on."""

from __future__ import annotations


class LabError(Exception):
    """The lab cannot go on; the text says what happened, and where the log is."""


class NetworkUnavailableError(LabError):
    """This machine cannot have the network that was asked for; the text says what is missing and what to do."""
