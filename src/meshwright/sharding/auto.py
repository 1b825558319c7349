"""``AUTO``: a sharding to be chosen by a search."""

from __future__ import annotations

from typing import ClassVar, final

from meshwright.core.sentinel import Sentinel


@final
class AutoSharding(Sentinel):
    """The type of :data:`AUTO`."""

    variable: ClassVar[str] = "AUTO"

    def __call__(self, mesh: object) -> AutoSharding:
        """Returns itself. The JAX of 2022 and 2023 wrote ``AUTO(mesh)``; here, the mesh in use is taken."""
        return self


#: in place of a sharding: the search for the fastest step that fits in memory chooses it (``mw.plan``)
AUTO = AutoSharding()
