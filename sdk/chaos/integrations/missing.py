"""What is told when the library of an integration is not there."""

from __future__ import annotations

from chaos.errors import ChaosError


class MissingLibrary(ChaosError, ImportError):
    """An integration was imported whose library is not installed here; the text has the command that installs it."""

    @classmethod
    def of(cls, module: str, packages: str, error: ImportError) -> MissingLibrary:
        """`packages`: as `pip install` takes them."""
        return cls(
            f"chaos.integrations.{module} cannot be imported here ({error}); install what it needs: "
            f"pip install {packages}"
        )
