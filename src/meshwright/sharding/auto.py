"""``AUTO``: a sharding that is to be chosen."""

from __future__ import annotations

from typing import ClassVar, final

from meshwright.core.sentinel import Sentinel


@final
class AutoSharding(Sentinel):
    """The type of :data:`AUTO`."""

    variable: ClassVar[str] = "AUTO"

    def __call__(self, mesh: object) -> AutoSharding:
        """Itself: in 2022 and 2023 one wrote ``AUTO(mesh)``, ``mesh`` being the one that is set."""
        return self


#: in place of a sharding: it is chosen by a search for the quickest step that fits the memory (``mw.plan``)
AUTO = AutoSharding()
