"""``Compiled``: a program ready to run."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

from meshwright.api.calls import Taken, called
from meshwright.api.stage import Stage
from meshwright.core import pytree
from meshwright.core.tracebacks import boundary
from meshwright.errors import ArgumentError
from meshwright.ir.program import Program
from meshwright.runtime.array import default_sharding
from meshwright.runtime.executable import Executable
from meshwright.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from meshwright.sharding.format import Format, row_major


class Compilable(Protocol):
    """A stage that can be compiled."""

    program: Program

    def compile(self) -> Compiled: ...


def single_device(program: Program) -> SingleDeviceSharding:
    """The device on which a program without a mesh runs."""
    return default_sharding() if program.place is None else SingleDeviceSharding(program.place)


class Compiled(Stage):
    """A program ready to run; call it with arguments of the types it was made for."""

    def __init__(
        self,
        stage: Compilable,
        executable: Executable,
        in_shardings: Sequence[Sharding],
        on_device: Callable[[], Any] | None = None,
    ) -> None:
        self.stage = stage
        self.program = stage.program
        self.executable = executable
        self._in_shardings = in_shardings
        #: returns XLA's executable of the per-device program, where another one runs here
        self._on_device = on_device

    def __reduce__(self) -> Any:
        # Executables belong to this process; another one compiles again.
        return _compiled, (self.stage,)

    def __deepcopy__(self, memo: Any) -> Compiled:
        return self

    @cached_property
    def _taken(self) -> Taken:
        program = self.program
        place: Sharding | None = None  # a program that takes arrays in any tree takes them from any device
        if program.mesh is not None:
            place = NamedSharding(program.mesh, PartitionSpec())
        elif program.in_tree is not None:
            place = single_device(program)
        return Taken(program, "compiled", [a.sharding for a in program.arguments], place)

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return called(self._taken, self.executable, args, kwargs)

    @cached_property
    def _looked_into(self) -> Any:
        return self.executable.inspected if self._on_device is None else self._on_device()

    def runtime_executable(self) -> Any:
        """XLA's executable that runs here; on a virtual mesh it computes for all devices."""
        return self.executable.inspected

    def as_text(self, what: str = "device") -> str:
        """The optimized HLO of one device, fused and scheduled, with its collectives, as XLA compiles it for that many
        CPU devices. ``as_text("virtual")`` is the program that computes here for all devices of a virtual mesh.

        Raises:
          ArgumentError: ``what`` is neither.
        """
        if what not in ("device", "virtual"):
            raise ArgumentError(f"as_text: expected 'device' or 'virtual', got {what!r}")
        return (self._looked_into if what == "device" else self.executable.inspected).get_hlo_text()

    def memory_analysis(self) -> Any:
        """XLA's memory statistics of one device (bytes of arguments, outputs, temporaries)."""
        return self._looked_into.get_compiled_memory_stats()

    def cost_analysis(self) -> dict[str, float]:
        """XLA's cost estimates of one device, by name (``"flops"``, ``"bytes accessed"``)."""
        return (self.executable if self._on_device is None else self._looked_into).cost_analysis()

    @property
    def in_avals(self) -> Any:
        """The types of the arguments, in their tree."""
        return pytree.unflatten(self.in_tree, [a.aval for a in self.program.all_arguments])

    @property
    def out_avals(self) -> Any:
        """The types of the results, in their tree."""
        return pytree.unflatten(self.out_tree, self.program.out_avals)

    @property
    def input_formats(self) -> Any:
        """The layout in memory and the sharding of each argument: a tree of :class:`Format`, empty for unused
        arguments."""
        pairs = zip(self.program.in_avals, self._in_shardings)
        formats = [Format(row_major(a.ndim), s) for a, s in pairs]
        return pytree.unflatten(self.in_tree, self.program.spread(formats, Format(None, None)))

    @property
    def output_formats(self) -> Any:
        """The layout in memory and the sharding of each result: a tree of :class:`Format`."""
        pairs = zip(self.program.out_avals, self.executable.out_shardings)
        return pytree.unflatten(self.out_tree, [Format(row_major(a.ndim), s) for a, s in pairs])

    @property
    def takes(self) -> Sequence[Any] | None:
        """The sharding of each argument on the program's mesh, None for unused ones; None without a mesh."""
        return None if self.program.mesh is None else self.program.spread(self._in_shardings)

    @property
    def input_shardings(self) -> Any:
        """The shardings of the arguments, in their tree; None for unused ones."""
        return pytree.unflatten(self.in_tree, self.program.spread(self._in_shardings))

    @property
    def output_shardings(self) -> Any:
        return pytree.unflatten(self.program.out_tree, self.executable.out_shardings)

    def __repr__(self) -> str:
        return f"Compiled({self._types()})"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(repr(self))}</p><pre>{html.escape(self.as_text())}</pre>"


def _compiled(stage: Compilable) -> Compiled:
    return stage.compile()
