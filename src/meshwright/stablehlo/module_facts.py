"""What is known of a module while it is read: its functions, meshes and numbers of devices, and notes about it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from jaxlib.mlir import ir

from meshwright.errors import ImportProgramError
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.sharding.axes import MOST_DEVICES
from meshwright.stablehlo.per_device import counted_devices
from meshwright.stablehlo.read_attributes import Attributes, resource_blobs
from meshwright.stablehlo.read_shardings import Meshes


def module_name(module: ir.Module) -> str:
    attributes = module.operation.attributes
    return str(attributes["sym_name"].value) if "sym_name" in attributes else ""


class ModuleFacts:
    """A module, and what is known of it while it is read.

    Errors contain the name ``file``, and line numbers of ``text``, or of ``hlo`` if the module was made from such text.
    ``host_functions`` are the Python functions that the program calls, by number. ``entry`` is the function to read, by
    default the main one.
    """

    def __init__(
        self, module: ir.Module, file: str, text: str = "", per_device: bool = False,
        host_functions: Sequence[Callable[..., Any]] = (), hlo: str = "", entry: str = "",
    ) -> None:  # fmt: skip
        self.module = module
        self.per_device = per_device
        self.host_functions = host_functions
        self.file = file
        self.text = text
        self.hlo = hlo
        self.entry = entry
        self.attributes = Attributes(file, module_name(module), hlo)
        self.functions: dict[str, ClosedJaxpr] = {}
        self.meshes = Meshes()
        self.notes: dict[str, None] = {}
        self.warnings: dict[str, None] = {}
        #: the number of constants whose values the text omits
        self.elided = 0
        self._draws = itertools.count()
        self._remembered: list[ir.Operation] = []

    @cached_property
    def blobs(self) -> dict[str, bytes]:
        """The elements of constants that are stored after the module, by name."""
        return resource_blobs(self.text or self.module.operation.get_asm())

    def remember(self, operation: ir.Operation) -> int:
        """A number for an operation, by which an error can refer to it later."""
        self._remembered.append(operation)
        return len(self._remembered) - 1

    @cached_property
    def num_partitions(self) -> int | None:
        """The number of partitions, if the module declares it."""
        return self._number("mhlo.num_partitions")

    @property
    def num_devices(self) -> int | None:
        """The number of devices among which groups are formed, if it is known."""
        return None if self.partitions is None else self.replicas * self.partitions

    @property
    def partitions(self) -> int | None:
        """The number of devices of a replica. A program over an abstract mesh declares one partition."""
        if self.per_device:
            return self._counts and self._counts[1]
        declared = [m.mesh.size for m in self.meshes.declared.values()]
        return max(declared, default=1) if self.num_partitions == 1 else self.num_partitions

    @property
    def replicas(self) -> int:
        """The number of replicas among which groups may be formed. A program for all devices has one."""
        return self._counts[0] if self.per_device and self._counts else 1

    @cached_property
    def _counts(self) -> tuple[int, int] | None:
        """The declared numbers of replicas and partitions; without any, those that follow from the collectives."""
        partitions, replicas = self.num_partitions, self.num_replicas
        if partitions is None and replicas is None:
            return counted_devices(self.module)
        return replicas or 1, partitions or 1

    @cached_property
    def num_replicas(self) -> int | None:
        """The number of replicas, if the module declares it."""
        return self._number("mhlo.num_replicas")

    def _number(self, name: str) -> int | None:
        attributes = self.module.operation.attributes
        if name not in attributes:
            return None
        value = self.attributes.value(attributes[name])
        if type(value) is not int or not 0 < value <= MOST_DEVICES:
            raise ImportProgramError(f"{self.file}: {name} is {value!r}; expected a number of 1 to {MOST_DEVICES}")
        return value

    def next_draw(self) -> int:
        """A number for each draw of random numbers without a key."""
        return next(self._draws)
