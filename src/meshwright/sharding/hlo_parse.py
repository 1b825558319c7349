"""Parser for the text form of HLO shardings.

The grammar (spaces are allowed between tokens)::

    sharding := "{" "}" | "{" sharding ("," sharding)* "}" | "{" body suffix* "}" | "{" named "}"
    body     := "replicated" | "manual" | "unreduced" | "unknown" | "maximal" "device=" int
              | "devices=[" ints "]" (ints | "<=[" ints "]" ("T(" ints ")")?)
    suffix   := "last_tile_dim_replicate" | "last_tile_dims={" kinds "}" | ("shard_as" | "shard_like") int
              | "metadata={" anything "}"
    named    := "mesh[" (name "=" int),* "]" ("," "device_ids=(" order ")")? "," "[" dim,* "]"
                ("," ("replicated" | "unreduced" | "manual") "={" axis,* "}")*
    order    := ints | "[" ints "]" ("T(" ints ")")?
    dim      := "{" (axis | "?"),* "}"
    axis     := name (":(" int ")" int)?
    name     := "'" anything "'"
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from meshwright.core.words import counted
from meshwright.errors import MeshError, ShardingError, ShardingSyntaxError
from meshwright.sharding.abstract_mesh import AbstractMesh
from meshwright.sharding.axes import MOST_DEVICES
from meshwright.sharding.hlo import HloSharding
from meshwright.sharding.hlo_convert import sdy_to_hlo
from meshwright.sharding.sdy import SdyDimension, SdySharding
from meshwright.sharding.tile_assignment import IotaOrder, TileAssignment

T = TypeVar("T")

_INTS = re.compile(r"\d+(?:\s*,\s*\d+)*")
#: with the comments by which XLA numbers members of long tuples
_SPACE = re.compile(r"(?:\s|/\*.*?\*/)*")


def parse_annotation(text: str) -> HloSharding | SdySharding:
    """Parse ``"{devices=[4,2]<=[8]}"``, or ``"{mesh['x'=4,'y'=2], [{'x'}, {'y'}]}"`` as a sharding over a mesh."""
    parser = _Parser(text)
    sharding = parser.sharding()
    parser.expect_end()
    return sharding


def parse_device_order(text: str) -> tuple[int, ...]:
    """Parse the devices at the positions of a mesh: ``"3,1,2,0"``, or ``"[2,4]T(1,0)"``."""
    parser = _Parser(text)
    order = parser.order()
    parser.expect_end()
    return order


def parse_hlo_sharding(text: str) -> HloSharding:
    """Parse a sharding in either notation as an ``HloSharding``."""
    annotation = parse_annotation(text)
    if isinstance(annotation, SdySharding):
        return sdy_to_hlo(annotation)
    if any(isinstance(e, SdySharding) for e in annotation.elements):
        return HloSharding.tuple_of([sdy_to_hlo(e) if isinstance(e, SdySharding) else e for e in annotation.elements])
    return annotation


class _Parser:
    """A recursive-descent parser of ``text``, at position ``at``."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    # --- tokens ---------------------------------------------------------------------------------------------
    def error(self, message: str) -> ShardingSyntaxError:
        return ShardingSyntaxError(f"sharding {self.text!r}, position {self.at}: {message}")

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def accept(self, token: str) -> bool:
        self.skip_space()
        if not self.text.startswith(token, self.at):
            return False
        end = self.at + len(token)
        if token[-1].isalnum() and self.text[end : end + 1].isalnum():
            return False  # a longer word
        self.at = end
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.error(f"expected {token!r}, found {self.text[self.at : self.at + 20]!r}")

    def expect_end(self) -> None:
        self.skip_space()
        if self.at != len(self.text):
            raise self.error(f"expected the end, found {self.text[self.at : self.at + 20]!r}")

    def ints(self) -> tuple[int, ...]:
        self.skip_space()
        match = _INTS.match(self.text, self.at)
        if match is None:
            raise self.error(f"expected numbers, found {self.text[self.at : self.at + 20]!r}")
        self.at = match.end()
        return tuple(map(int, match[0].split(",")))

    def integer(self) -> int:
        numbers = self.ints()
        if len(numbers) != 1:
            raise self.error(f"expected one number, found {numbers}")
        return numbers[0]

    # --- grammar --------------------------------------------------------------------------------------------
    def sharding(self) -> HloSharding | SdySharding:
        self.expect("{")
        if self.accept("}"):
            return HloSharding.tuple_of(())
        self.skip_space()
        if self.text.startswith("{", self.at):
            elements: list[Any] = [self.sharding()]  # a Shardy one among them becomes HLO's later
            while self.accept(","):
                elements.append(self.sharding())
            self.expect("}")
            return HloSharding.tuple_of(elements)
        return self.over_mesh() if self.accept("mesh[") else self.single()

    # --- over a named mesh ----------------------------------------------------------------------------------
    def over_mesh(self) -> HloSharding | SdySharding:
        mesh = self.mesh()
        device_ids: tuple[int, ...] = ()
        if self.accept("device_ids=("):
            device_ids = self.order()
            self.expect(")")
            self.expect(",")
            if sorted(device_ids) != list(range(mesh.size)):
                raise self.error(f"device_ids must be the numbers 0 to {mesh.size - 1}, each once")
        self.expect("[")
        dimensions = tuple(self.several(self.dimension, "]"))
        axes: dict[str, tuple[str, ...]] = {}
        while self.accept(","):
            kind = next((k for k in ("replicated", "unreduced", "manual") if self.accept(f"{k}={{")), None)
            if kind is None:
                raise self.error(
                    f"expected replicated, unreduced or manual, found {self.text[self.at : self.at + 20]!r}"
                )
            axes[kind] = tuple(self.several(self.axis, "}"))
        self.expect("}")
        natural = device_ids == tuple(range(mesh.size))
        sharding = SdySharding(
            mesh, dimensions, axes.get("replicated", ()), axes.get("unreduced", ()), () if natural else device_ids
        )
        self.check_axes(sharding, axes.get("manual", ()))
        return sdy_to_hlo(sharding, axes["manual"]) if axes.get("manual") else sharding

    def mesh(self) -> AbstractMesh:
        axes = list(self.several(self.mesh_axis, "]"))
        self.expect(",")
        try:
            return AbstractMesh([size for _, size in axes], [name for name, _ in axes])
        except MeshError as error:
            raise self.error(str(error)) from None

    def mesh_axis(self) -> tuple[str, int]:
        name = self.name()
        self.expect("=")
        return name, self.integer_alone()

    def dimension(self) -> SdyDimension:
        self.expect("{")
        entries = list(self.several(lambda: None if self.accept("?") else self.axis(), "}"))
        if None in entries[:-1]:
            raise self.error("'?' stands last in a dimension")
        return SdyDimension(tuple(e for e in entries if e is not None), None not in entries)

    def axis(self) -> str:
        name = self.name()
        if not self.accept(":("):
            return name
        pre = self.integer_alone()
        self.expect(")")
        return f"{name}:({pre}){self.integer_alone()}"

    def name(self) -> str:
        self.expect("'")
        end = self.text.find("'", self.at)
        if end < 0:
            raise self.error("a name without an end")
        name, self.at = self.text[self.at : end], end + 1
        return name

    def integer_alone(self) -> int:
        """One number; unlike in :meth:`integer`, a comma after it is not part of it."""
        self.skip_space()
        match = re.compile(r"\d+").match(self.text, self.at)
        if match is None:
            raise self.error(f"expected a number, found {self.text[self.at : self.at + 20]!r}")
        self.at = match.end()
        return int(match[0])

    def several(self, one: Callable[[], T], end: str) -> Iterator[T]:
        """Entries separated by commas, up to ``end``."""
        if self.accept(end):
            return
        yield one()
        while self.accept(","):
            yield one()
        self.expect(end)

    def check_axes(self, sharding: SdySharding, manual: tuple[str, ...]) -> None:
        used = [a for d in sharding.dimensions for a in d.axes]
        try:
            atoms = sharding.mesh.expand([*used, *sharding.replicated, *sharding.unreduced, *manual])
        except ShardingError as error:
            raise self.error(str(error)) from None
        if len(set(atoms)) < len(atoms):
            raise self.error("an axis, or a part of one, is used twice")

    # --- tile assignments -----------------------------------------------------------------------------------
    def single(self) -> HloSharding:
        body = self.body()
        subgroups: tuple[str, ...] = ()
        group = ""
        while not self.accept("}"):
            if self.accept("last_tile_dim_replicate"):
                subgroups = ("replicated",)
            elif self.accept("last_tile_dims="):
                subgroups = self.subgroups()
            elif self.accept("metadata="):
                self.skip_braces()
            else:
                group = self.shard_group()
        if isinstance(body, HloSharding):
            if subgroups:
                raise self.error(f"subgroups {subgroups} on {body}, which is no tile assignment")
            return body.with_group(group) if group else body
        try:
            sharding = HloSharding.tiled(body, subgroups)
        except ShardingError as error:
            raise self.error(str(error)) from None
        return sharding.with_group(group) if group else sharding

    def body(self) -> HloSharding | TileAssignment:
        for kind in ("replicated", "manual", "unreduced", "unknown"):
            if self.accept(kind):
                return HloSharding(kind)
        if self.accept("maximal"):
            self.expect("device=")
            return HloSharding.maximal(self.integer())
        if self.accept("devices=["):
            return self.tiles()
        raise self.error(
            "expected devices=[...], replicated, maximal, manual, unreduced or unknown, "
            f"found {self.text[self.at : self.at + 20]!r}"
        )

    def tiles(self) -> TileAssignment:
        dims = self.ints()
        self.expect("]")
        iota = self.iota() if self.accept("<=[") else None
        listed = () if iota else self.ints()
        tiles = TileAssignment(dims, iota or listed)
        if max(tiles.num_devices, math.prod(dims)) > MOST_DEVICES:
            raise self.error(f"a tile assignment of {tiles.num_devices} devices; expected at most {MOST_DEVICES}")
        if 0 in dims or tiles.num_devices != math.prod(dims):
            raise self.error(
                f"tile dimensions {list(dims)} have {counted(math.prod(dims), 'tile')} but "
                f"{counted(tiles.num_devices, 'device')} are given; their numbers must be the same and not zero"
            )
        if len(set(listed)) != len(listed):
            raise self.error("a device is listed twice; every device holds one tile")
        if max(listed, default=0) >= math.prod(dims):
            raise self.error(f"device {max(listed)} is listed; expected 0 to {math.prod(dims) - 1}")
        return tiles

    def order(self) -> tuple[int, ...]:
        """A device order: a list, or the transpose of an iota."""
        iota = self.iota() if self.accept("[") else None
        if iota is not None and iota.size > MOST_DEVICES:
            raise self.error(f"an order of {iota.size} devices; expected at most {MOST_DEVICES}")
        return self.ints() if iota is None else tuple(iota.numbers().tolist())

    def iota(self) -> IotaOrder:
        reshape = self.ints()
        self.expect("]")
        transpose = tuple(range(len(reshape)))
        if self.accept("T("):
            transpose = self.ints()
            self.expect(")")
        if sorted(transpose) != list(range(len(reshape))):
            raise self.error(f"T{transpose} is no permutation of the dimensions of {list(reshape)}")
        return IotaOrder(reshape, transpose)

    def subgroups(self) -> tuple[str, ...]:
        self.expect("{")
        kinds: list[str] = []
        while not self.accept("}"):
            if kinds:
                self.expect(",")
            kinds.append(self.subgroup())
        return tuple(kinds)

    def subgroup(self) -> str:
        for kind in ("replicated", "manual", "unreduced"):
            if self.accept(kind):
                return kind
        raise self.error("expected replicated, manual or unreduced")

    def shard_group(self) -> str:
        for kind in ("shard_as", "shard_like"):
            if self.accept(kind):
                return f"{kind} {self.integer()}"
        raise self.error(f"expected '}}' or a suffix, found {self.text[self.at : self.at + 20]!r}")

    def skip_braces(self) -> None:
        """Skip a balanced ``{...}``, in which quoted strings may contain braces."""
        self.expect("{")
        depth = 1
        while depth:
            match = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]').search(self.text, self.at)
            if match is None:
                raise self.error("metadata is not closed")
            self.at = match.end()
            depth += {"{": 1, "}": -1}.get(match[0], 0)
