"""Programs serialized for other processes, machines and versions; deserialized they are functions again.

An exported program is a StableHLO portable artifact, which StableHLO guarantees to keep readable, after a line that
describes its trees. The interface follows ``jax.export``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, ClassVar

import numpy as np

from meshwright.api.arguments import bad_argument, lowering_platforms
from meshwright.api.binding import on_mesh
from meshwright.api.control_flow import by_platform
from meshwright.api.jit import JitFunction, jit
from meshwright.api.load import ImportedProgram, load
from meshwright.api.shape_dtype import ShapeDtypeStruct, SymbolicStruct
from meshwright.api.stages import Lowered
from meshwright.api.trees_as_json import described, tree_of
from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.key_types import KeyType, key_type
from meshwright.core.late import LateModule
from meshwright.core.records import dataclass
from meshwright.core.words import counted, there_are
from meshwright.errors import (
    ArgumentError,
    ArgumentTypeError,
    ImportProgramError,
    MeshError,
    ShapeError,
    UnexportableError,
)
from meshwright.ir.tracing import typeof
from meshwright.ops.control.callback import calls_python
from meshwright.ops.control.cond import Platforms
from meshwright.ops.control.platform import depends_on_platform
from meshwright.ops.random.keys import unwrap_keys, wrap_words
from meshwright.runtime.devices import default_device, devices
from meshwright.sharding import Mesh, Sharding
from meshwright.sharding.hlo import HloSharding
from meshwright.sharding.hlo_convert import named_to_hlo
from meshwright.stablehlo.hlo import module_text, portable_artifact
from meshwright.transforms.autodiff import vjp

symbolic: Any = LateModule("meshwright.api.symbolic")
_MAGIC = b"meshwright.export\n"
#: version of the header line before the artifact
_FORMAT = 1
#: JAX's names for the first and last version that can be read
minimum_supported_calling_convention_version = maximum_supported_calling_convention_version = _FORMAT


@dataclass(frozen=True)
class DisabledSafetyCheck:
    """A check that :func:`export` and :meth:`Exported.call` leave out: :meth:`platform`, that of the platform where a
    program is called. Of the others that JAX has there are none here."""

    #: its name, as it is written
    _impl: str

    @staticmethod
    def platform() -> DisabledSafetyCheck:
        return DisabledSafetyCheck("platform")

    @staticmethod
    def custom_call(target_name: str) -> DisabledSafetyCheck:
        return DisabledSafetyCheck(f"custom_call:{target_name}")

    def is_custom_call(self) -> str | None:
        """The name of the custom call, if it is a check of one."""
        return self._impl.removeprefix("custom_call:") if self._impl.startswith("custom_call:") else None

    def __str__(self) -> str:
        return self._impl


@dataclass(frozen=True)
class Exported:
    """An exported program: :meth:`serialize` writes it, :meth:`call` calls it."""

    fun_name: str
    in_tree: Any
    out_tree: Any
    platforms: tuple[str, ...]
    nr_devices: int
    #: a StableHLO portable artifact, in the form for the first platform
    mlir_module_serialized: bytes = field(repr=False)
    disabled_safety_checks: tuple[DisabledSafetyCheck, ...] = ()
    #: the generators of the arguments, and of the results, that are random keys: in the artifact they are words
    in_keys: tuple[str | None, ...] = ()
    out_keys: tuple[str | None, ...] = ()
    #: the artifacts for the other platforms, in their order, where they differ from that for the first
    others: tuple[bytes, ...] = field(default=(), repr=False)
    #: whether the program chooses by platform, so that an artifact is right for its own platforms alone
    depends_on_platform: bool = False

    #: programs with effects are not exported
    ordered_effects: ClassVar[tuple[Any, ...]] = ()
    unordered_effects: ClassVar[tuple[Any, ...]] = ()
    uses_global_constants: ClassVar[bool] = False

    @property
    def calling_convention_version(self) -> int:
        """The format version that :meth:`serialize` writes."""
        return _FORMAT

    @property
    def module_kept_var_idx(self) -> tuple[int, ...]:
        """The arguments that the program has: all, also those that it does not use."""
        return tuple(range(self.in_tree.num_leaves))

    @cached_property
    def program(self) -> ImportedProgram:
        """The program, read from the artifact for this platform if there is one."""
        artifacts = dict(zip(self.platforms, (self.mlir_module_serialized, *self.others)))
        return load(artifacts.get(default_device().platform, self.mlir_module_serialized))

    @property
    def in_avals(self) -> tuple[ShapedArray, ...]:
        """The types of the arguments, flattened."""
        return _with_keys(self.program.in_avals, self.in_keys)

    @property
    def out_avals(self) -> tuple[ShapedArray, ...]:
        """The types of the results, flattened."""
        return _with_keys(self.program.out_avals, self.out_keys)

    @property
    def in_shardings_hlo(self) -> tuple[HloSharding | None, ...]:
        """The shardings of the arguments in HLO's form; None where there is none."""
        return _as_hlo(self.program.in_shardings, self.program.in_avals)

    @property
    def out_shardings_hlo(self) -> tuple[HloSharding | None, ...]:
        """The shardings of the results in HLO's form; None where there is none."""
        return _as_hlo(self.program.out_shardings, self.program.out_avals)

    def mlir_module(self) -> str:
        """The program as StableHLO text, in the form for the first platform."""
        program = load(self.mlir_module_serialized) if self.others else self.program
        return module_text(program.lower().module_for(self.platforms[0]))

    def out_shardings_jax(self, mesh: Mesh) -> tuple[Sharding | None, ...]:
        """The shardings of the results over a mesh of this process."""
        return self._over(mesh, self.out_shardings_hlo, self.out_avals)

    def in_shardings_jax(self, mesh: Mesh) -> tuple[Sharding | None, ...]:
        """The shardings of the arguments over a mesh of this process."""
        return self._over(mesh, self.in_shardings_hlo, self.in_avals)

    def _over(self, mesh: Mesh, shardings: Any, avals: Sequence[ShapedArray]) -> tuple[Sharding | None, ...]:
        pairs = zip(shardings, avals)
        return tuple(None if s is None else on_mesh(s, a.ndim, mesh, self.fun_name) for s, a in pairs)

    def serialize(self, vjp_order: int = 0) -> bytearray:
        """The program as bytes, for :func:`deserialize`. ``vjp_order`` has no effect: derivatives are taken of the
        program where it is called, and take no space.

        Raises:
          ArgumentError: a tree has containers other than tuples, lists, dicts and None.
        """
        head = {
            "format": _FORMAT,
            "name": self.fun_name,
            "platforms": self.platforms,
            "devices": self.nr_devices,
            "in": described(self.in_tree, self.fun_name),
            "out": described(self.out_tree, self.fun_name),
        }
        if any(self.in_keys) or any(self.out_keys):
            head["keys"] = [self.in_keys, self.out_keys]
        if self.disabled_safety_checks:
            head["disabled"] = [str(check) for check in self.disabled_safety_checks]
        if self.depends_on_platform:
            head["depends_on_platform"] = True
        if self.others:
            head["sizes"] = [len(self.mlir_module_serialized), *map(len, self.others)]
        artifact = b"".join((self.mlir_module_serialized, *self.others))
        return bytearray(_MAGIC + json.dumps({**head, "sha256": digest_of(head, artifact)}).encode() + b"\n" + artifact)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the program on arguments with the trees and types it was exported for. The call can be traced,
        differentiated and batched.

        Raises:
          ArgumentError: other trees, or another platform. ShapeError: other types. MeshError: too few devices.
        """
        if self._is_checked and (here := default_device().platform) not in self.platforms:
            raise ArgumentError(
                f"{self.fun_name!r} was exported for {', '.join(self.platforms)}; this is {here}: export it with "
                f"platforms={[*self.platforms, here]!r}"
            )
        flat, tree = pytree.flatten((args, kwargs))
        if tree != self.in_tree:
            raise ArgumentError(
                f"{self.fun_name!r} was exported for arguments {pytree.show(self.in_tree)}, got {pytree.show(tree)}; "
                "call it with these, or export it again"
            )
        self._check(flat, args, kwargs)
        return pytree.unflatten(self.out_tree, self._flat(flat))

    def _flat(self, flat: Sequence[Any]) -> list[Any]:
        """The results for flat arguments, with words in place of keys inside."""
        words = [x if key is None else unwrap_keys(x) for x, key in zip_longest(flat, self.in_keys)]
        if self.others or self.depends_on_platform:  # which program it is, is known where the caller is compiled
            values = by_platform(self._functions, self._platforms, tuple(words))
        else:
            values = self._functions[0](*words)
        outs = zip_longest(values, self.out_keys)
        return [x if key is None else wrap_words(x, key_type(key)) for x, key in outs]

    @property
    def _platforms(self) -> Platforms:
        """The platforms that each of the functions is for."""
        if not self.others:
            return (self.platforms if self._is_checked else None,)
        first, *rest = ((name,) for name in self.platforms)
        return (first if self._is_checked else None, *rest)

    @property
    def _is_checked(self) -> bool:
        return DisabledSafetyCheck.platform() not in self.disabled_safety_checks

    def _check(self, flat: Sequence[Any], args: Any, kwargs: Any) -> None:
        wrong, paths = [], [*pytree.paths(args), *pytree.paths(kwargs)]
        for x, want, path in zip(flat, self.in_avals, paths):
            try:
                got = typeof(x)
            except ArgumentTypeError:
                raise bad_argument(self.fun_name, flat, paths) from None
            if (got.shape, got.dtype) != (want.shape, want.dtype):
                wrong.append(f"argument{path} is {got}, expected {want}")
        if wrong:
            raise ShapeError(f"{self.fun_name!r} was exported for other types: {'; '.join(wrong)}; export it again")

    @cached_property
    def _functions(self) -> list[Callable[..., list[Any]]]:
        """The program as functions of flat arguments: one for each platform, or one for all."""
        if not self.others:
            return [self._function(self.program)]
        return [self._function(load(artifact)) for artifact in (self.mlir_module_serialized, *self.others)]

    def _function(self, program: ImportedProgram) -> Callable[..., list[Any]]:
        if self.nr_devices == 1:
            return lambda *xs: pytree.leaves(program(*xs))
        return jit(program.on(_local_mesh(program, self.nr_devices)))

    def has_vjp(self) -> bool:
        """Whether it can be differentiated: always."""
        return True

    def vjp(self) -> Exported:
        """The exported VJP: a function of the arguments and of cotangents of the results that returns cotangents of the
        arguments, all flat."""
        n = len(self.in_avals)

        def backward(*values: Any) -> Any:
            return vjp(lambda *xs: self._flat(xs), *values[:n])[1](list(values[n:]))

        structs = [ShapeDtypeStruct(a.shape, a.dtype) for a in (*self.in_avals, *self.out_avals)]
        backward.__name__ = f"{self.fun_name}_vjp"
        return export(jit(backward), platforms=self.platforms)(*structs)

    def __repr__(self) -> str:
        ins, outs = (", ".join(map(str, avals)) for avals in (self.in_avals, self.out_avals))
        return f"Exported({self.fun_name!r}, ({ins}) -> ({outs}), platforms={self.platforms})"


def _with_keys(avals: Sequence[ShapedArray], keys: Sequence[str | None]) -> tuple[ShapedArray, ...]:
    """The types of values of which some are words of random keys."""
    return tuple(
        a if key is None else ShapedArray(a.shape[:-1], key_type(key))  # type: ignore[arg-type]
        for a, key in zip_longest(avals, keys)
    )


def _keys(avals: Sequence[ShapedArray]) -> tuple[str | None, ...]:
    return tuple(a.dtype.impl if isinstance(a.dtype, KeyType) else None for a in avals)


def _as_hlo(shardings: Sequence[Any], avals: Sequence[ShapedArray]) -> tuple[HloSharding | None, ...]:
    return tuple(None if s is None else named_to_hlo(s, a.ndim) for s, a in zip(shardings, avals))


def _local_mesh(program: ImportedProgram, count: int) -> Mesh:
    """The mesh of a program, made of devices of this process.

    Raises:
      MeshError: there are too few.
    """
    available = devices()
    if len(available) < count:
        raise MeshError(
            f"{program.name!r} was exported for {counted(count, 'device')}, {there_are(len(available))}; set "
            f"MESHWRIGHT_NUM_DEVICES={count}"
        )
    mesh = program.mesh
    if mesh is None:
        return Mesh(np.array(available[:count], object), ("devices",))
    order = mesh.flat_ids if isinstance(mesh, Mesh) else range(count)
    return Mesh(np.array([available[i] for i in order], object).reshape(mesh.axis_sizes), mesh.axis_names)


def default_export_platform() -> str:
    """The platform that :func:`export` exports for by default: the current one.

    Example:
      >>> mw.export.default_export_platform()
      'cpu'
    """
    return default_device().platform


def export(
    fun_jit: Any, *, platforms: Sequence[str] | None = None, disabled_checks: Sequence[Any] = ()
) -> Callable[..., Exported]:
    """A function that exports a jitted function at the types of its arguments.

    Args:
      platforms: where it may be called: ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``; None: the current platform. The
        program is written in the form of each.
      disabled_checks: with ``DisabledSafetyCheck.platform()``, it may be called on other platforms, where it may not
        compile. Custom calls are not checked in any case.

    Raises:
      ArgumentTypeError: ``fun_jit`` is not jitted.
      UnexportableError: (when called) it calls Python functions.
      ArgumentError: an unknown platform, or none for which the program has a function.
      RuleError: (when called) the program has a kernel that a platform lacks.

    Example:
      >>> from meshwright import export
      >>> exported = export.export(mw.jit(lambda x: {"twice": 2 * x}))(mw.ShapeDtypeStruct((3,), "float32"))
      >>> export.deserialize(exported.serialize()).call(mnp.arange(3.0))
      {'twice': Array([0., 2., 4.], dtype=float32)}
    """
    if getattr(fun_jit, "__module__", "").startswith("meshwright.numpy"):
        fun_jit = jit(fun_jit)  # those of jax.numpy are jitted
    if not isinstance(fun_jit, JitFunction):
        raise ArgumentTypeError(f"export: expected a jitted function, got {fun_jit!r}; wrap it in jit")
    where = lowering_platforms(platforms, "export: platforms")

    def exporting(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, SymbolicStruct) for x in pytree.leaves((args, kwargs))):
            return symbolic.SymbolicExported.of(exporting, fun_jit, where, args, kwargs)
        lowered = Lowered(replace(fun_jit.program_at(*args, **kwargs), keep_unused=True))
        program = lowered.program
        if calls_python(program.jaxpr):
            raise UnexportableError(
                f"export: {program.name!r} calls a Python function (a callback, debug.print), which other processes do "
                "not have: leave it out, or return what it needs"
            )
        count = program.mesh.size if program.mesh is not None else 1
        artifact, *others = (portable_artifact(lowered.module_for(platform)) for platform in where)
        keys = _keys(program.jaxpr.in_avals), _keys(program.jaxpr.out_avals)
        trees, checks = (program.in_tree, program.out_tree), tuple(disabled_checks)
        others = others if any(other != artifact for other in others) else []
        depends = depends_on_platform(program.jaxpr)
        return Exported(program.name, *trees, where, count, artifact, checks, *keys, tuple(others), depends)

    return exporting


def deserialize(blob: bytes | bytearray) -> Exported:
    """Read what :meth:`Exported.serialize` wrote.

    Raises:
      ImportProgramError: not such bytes, or a newer format. ArgumentError: its trees have classes that are not
        registered for serialization.
    """
    data = bytes(blob)
    if data.startswith(symbolic.MAGIC):
        return symbolic.read(data)  # type: ignore[no-any-return]
    head, _, artifact = data[len(_MAGIC) :].partition(b"\n")
    try:
        header = json.loads(head) if data.startswith(_MAGIC) else {}
        whole = header.get("format") == _FORMAT and header.pop("sha256", "") == digest_of(header, artifact)
        if whole:  # a damaged one may name any class
            ins, outs = (pytree.structure(tree_of(header[side])) for side in ("in", "out"))
            fields = header["name"], ins, outs, tuple(header["platforms"]), header["devices"]
            checks = tuple(map(DisabledSafetyCheck, header.get("disabled", ())))
            in_keys, out_keys = map(tuple, header.get("keys", ((), ())))
            depends = header.get("depends_on_platform", False)
            ends = [*itertools.accumulate(header.get("sizes", [len(artifact)]))]
            artifact, *others = (artifact[i:j] for i, j in itertools.pairwise((0, *ends)))
    except ArgumentError:  # a class that this process has not registered
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ImportProgramError(_not_read(data, head))
    return Exported(*fields, artifact, checks, in_keys, out_keys, tuple(others), depends)


def _not_read(data: bytes, head: bytes) -> str:
    """Why bytes cannot be read, and what to do."""
    if not data.startswith(_MAGIC):
        return "deserialize: not what Exported.serialize writes; programs of other origin are read by meshwright.load"
    match = re.match(rb'{"format": (\d+)', head)
    if match is not None and int(match[1]) != _FORMAT:
        return (
            f"deserialize: the program is written in format {int(match[1])}, this version reads {_FORMAT}; read it "
            "with the version that wrote it, or export it again"
        )
    return "deserialize: the program is damaged: its checksum, or what stands before it, is not right; write it again"


def digest_of(head: dict[str, Any], artifact: bytes) -> str:
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode() + artifact).hexdigest()
