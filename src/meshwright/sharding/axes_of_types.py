"""What meshes with and without devices say of their axes, by the types of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.sharding.axis_type import AxisType


class AxesOfTypes:
    """Base class of meshes, with JAX's names for what follows from their axes."""

    if TYPE_CHECKING:

        @property
        def axis_names(self) -> tuple[str, ...]: ...
        @property
        def axis_sizes(self) -> tuple[int, ...]: ...
        @property
        def axis_types(self) -> tuple[AxisType, ...]: ...

    @property
    def shape_tuple(self) -> tuple[tuple[str, int], ...]:
        """The name and size of each axis."""
        return tuple(zip(self.axis_names, self.axis_sizes))

    def of_type(self, kind: AxisType) -> tuple[str, ...]:
        """The axes of one type."""
        return tuple(a for a, t in zip(self.axis_names, self.axis_types) if t is kind)

    def _all_of(self, kind: AxisType) -> bool:
        return bool(self.axis_types) and self.of_type(kind) == self.axis_names

    @property
    def auto_axes(self) -> tuple[str, ...]:
        return self.of_type(AxisType.Auto)

    @property
    def explicit_axes(self) -> tuple[str, ...]:
        return self.of_type(AxisType.Explicit)

    @property
    def manual_axes(self) -> tuple[str, ...]:
        return self.of_type(AxisType.Manual)

    @property
    def are_all_axes_auto(self) -> bool:
        return self._all_of(AxisType.Auto)

    @property
    def are_all_axes_explicit(self) -> bool:
        return self._all_of(AxisType.Explicit)

    @property
    def are_all_axes_manual(self) -> bool:
        return self._all_of(AxisType.Manual)
