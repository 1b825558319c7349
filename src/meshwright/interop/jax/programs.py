"""``from_jax``: conversion of JAX's functions, lowered programs and exported programs.

JAX lowers a function to StableHLO with Shardy's shardings and the arguments' names, which is loaded like any other
program. JAX's pytree definitions are kept with it, so that arguments and results may be of classes that are registered
with JAX only (those of flax, equinox and optax).
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import jax
import jax.extend
import numpy as np
from jax import export as jax_export

from meshwright.api.load import ImportedProgram, load, read_program
from meshwright.api.partitioned import PartitionedProgram
from meshwright.core.config import config
from meshwright.core.key_types import is_key
from meshwright.core.late import LateModule
from meshwright.errors import ArgumentError, ArgumentTypeError, ImportProgramError, MissingExtraError, ShapeError
from meshwright.interop.jax.derivatives import ByRules, of_operations
from meshwright.interop.jax.lowering import Seen, lowering
from meshwright.interop.jax.platforms import by_platform, lowered_for_platforms
from meshwright.interop.jax.rules import (
    has_backward_rules,
    has_batching_rules,
    has_rules,
    has_rules_that_close_over_values,
)
from meshwright.interop.jax.values import from_arrays, from_mesh, on_devices, words
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.tracing import Tracer
from meshwright.ops.elementwise.table import convert
from meshwright.random import key_data, key_impl, wrap_key_data
from meshwright.runtime.array import Array
from meshwright.sharding import AbstractMesh, Mesh


class JaxTrees:
    """JAX's pytree definitions of arguments and results, and the indices of the arguments that the program kept.

    Raises:
      ImportProgramError: the program takes more, which JAX adds for what leaked from another trace.
    """

    def __init__(self, name: str, in_tree: Any, out_tree: Any, kept: Sequence[int] | None, out_avals: Sequence[Any]):
        self.name = name
        self.in_tree = in_tree
        self.out_tree = out_tree
        self.kept = None if kept is None else sorted(kept)
        if self.kept and self.kept[-1] >= in_tree.num_leaves:
            raise ImportProgramError(
                "from_jax: the function uses a value of a trace of JAX's that has ended; pass it as an argument"
            )
        self.out_avals = list(out_avals)

    def arguments(self, args: Any, kwargs: Any) -> list[Any]:
        """The flat list of arrays that the program takes, for the function's arguments.

        Raises:
          ArgumentError: the arguments have another tree structure.
        """
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))
        if tree != self.in_tree:
            raise ArgumentError(f"{self.name}: arguments of another structure: expected {self.in_tree}, got {tree}")
        return [words(leaves[i]) for i in (range(len(leaves)) if self.kept is None else self.kept)]

    def results(self, outs: Any) -> Any:
        """The function's output, of our arrays, from the results ``outs`` of the program."""
        flat = list(outs) if isinstance(outs, tuple) else [outs]
        if len(flat) != self.out_tree.num_leaves:
            flat = []  # a function without results
        typed = [_typed(x, aval) for x, aval in zip(flat, self.out_avals)]
        return jax.tree_util.tree_unflatten(self.out_tree, typed)


def _typed(x: Any, aval: Any) -> Any:
    """A result with what its JAX type ``aval`` adds to the StableHLO type: typed keys and weak types."""
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return wrap_key_data(x, impl=aval.dtype._impl.name)
    return convert(x, x.dtype, weak_type=True) if aval.weak_type else x


class Standin:
    """A stand-in for a ``jax.stages.Lowered``, whose compiled program is the function ``call``."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def compile(self, compiler_options: Any = None) -> Callable[..., Any]:
        """The function, which the wrappers of other libraries call with the arguments that JAX would get."""
        return self.call


class Held(np.ndarray):
    """A NumPy array of the same type that carries one of our arrays through libraries that test for arrays.

    Its values are zeros without memory; ``ours`` is the array.
    """

    __array_ufunc__ = None  # type: ignore[assignment]
    ours: Any = None


def _held(x: Any) -> Any:
    if not isinstance(x, (Array, Tracer)) or is_key(x.dtype):
        return x
    held = np.broadcast_to(np.zeros((), x.dtype), x.shape).view(Held)
    held.ours = x
    return held


def wrapped(outer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Adapt ``call``, which takes the arguments of a JAX program, to the arguments of the library that lowered it.

    Flax and equinox return their own wrapper (``outer``) around a ``Lowered``, which separates modules and static
    values from the arrays that JAX gets. Without a wrapper, the result is ``call``.
    """
    if not hasattr(outer, "lowered"):
        return call

    def given(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = jax.tree_util.tree_map(lambda x: x.ours if isinstance(x, Held) else x, (args, kwargs))
        return call(*args, **kwargs)

    compiled = dataclasses.replace(outer, lowered=Standin(given)).compile()

    def run(*args: Any, **kwargs: Any) -> Any:
        held, named = jax.tree_util.tree_map(_held, (args, kwargs))
        outs = compiled(*held, **named)
        _update((args, kwargs), (held, named))
        return outs

    return run


def _update(given: Any, held: Any) -> None:
    """Copy the state that a call has changed in flax modules of ``held`` back to the modules in ``given``.

    Flax modules are updated in place, and mapping a pytree to held arrays copies them. A module whose state has no
    tracers does not get any, as they would outlive their trace.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return
    kinds = tuple({nnx.Module, getattr(nnx, "Pytree", nnx.Module), getattr(nnx, "Object", nnx.Module)})
    is_module = lambda x: isinstance(x, kinds)  # noqa: E731
    modules, copies = (jax.tree_util.tree_leaves(tree, is_leaf=is_module) for tree in (given, held))
    for module, copied in zip(modules, copies):
        if is_module(module) and module is not copied:
            new = jax.tree_util.tree_map(lambda x: x.ours if isinstance(x, Held) else x, nnx.state(copied))
            if _is_traced(nnx.state(module)) or not _is_traced(new):
                nnx.update(module, new)


def _is_traced(tree: Any) -> bool:
    return any(isinstance(x, Tracer) for x in jax.tree_util.tree_leaves(tree))


def argument_names(function: Any, outer: Any, args: Any, kwargs: Any) -> list[str | None]:
    """The name of each array that the program of a wrapped function takes; None for those that are not arguments.

    A name is the function's parameter followed by the path in its pytree. The wrapper is called with a function that
    only records which arrays it gets.
    """
    given: dict[Any, Any]
    try:
        given = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        given = {**dict(enumerate(args)), **kwargs}
    names = {
        id(leaf): f"{name}{jax.tree_util.keystr(path)}"
        for name, tree in given.items()
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }
    leaves: list[Any] = []

    def look(*args: Any, **kwargs: Any) -> Any:
        leaves.extend(jax.tree_util.tree_leaves((args, kwargs)))
        raise _Seen

    with suppress(_Seen):
        wrapped(outer, look)(*args, **kwargs)
    return [names.get(id(leaf)) for leaf in leaves]


class _Seen(Exception):
    """Ends a call after its arguments have been recorded."""


class JaxPartitioned:
    """The per-device program of a JAX function, called with the function's arguments.

    It has all members of :class:`meshwright.PartitionedProgram`.
    """

    def __init__(self, part: PartitionedProgram, trees: JaxTrees, outer: Any = None) -> None:
        self.part = part
        self.trees = trees
        self._call = wrapped(outer, lambda *a, **k: trees.results(part(*trees.arguments(a, k))))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's output; see :meth:`PartitionedProgram.__call__`."""
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)

    def __repr__(self) -> str:
        return repr(self.part)


class JaxProgram:
    """A JAX function traced for the types of its arguments: ``program(*args)``, ``program.partition(mesh)``.

    It has all members of :class:`meshwright.ImportedProgram`.
    """

    def __init__(self, program: ImportedProgram, trees: JaxTrees, outer: Any = None) -> None:
        self.program = program
        self.trees = trees
        self._outer = outer
        self._call = wrapped(outer, self._run)
        #: evaluates the function, from leaves to leaves, with JAX's derivative; None if the program's is the same
        self.by_rules: Callable[[Callable[..., list[Any]], Sequence[Any]], list[Any]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's output, in JAX's pytrees, of our arrays.

        The derivative and batched form of a function are those of JAX. An exported program with ``vjp_order`` has the
        derivative that it was exported with. The derivative of a ``Lowered`` or of any other exported program is that
        of its operations.

        Raises:
          ArgumentError: the arguments have another tree structure.
          ShapeError: an array has another type.

        Warns:
          DerivativeWarning: the derivative of operations is taken, without any rules of JAX's functions.
        """
        return self._call(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`__call__` on the arguments that JAX gets (see :func:`wrapped`)."""
        trees = self.trees
        leaves, tree = jax.tree_util.tree_flatten((args, kwargs))

        def results(*leaves: Any) -> Any:
            args, kwargs = jax.tree_util.tree_unflatten(tree, leaves)
            return trees.results(_called(self.program, trees.arguments(args, kwargs)))

        if self.by_rules is None or tree != trees.in_tree or not any(isinstance(x, Tracer) for x in leaves):
            return results(*leaves)
        outs = self.by_rules(lambda *leaves: jax.tree_util.tree_leaves(results(*leaves)), from_arrays(leaves))
        return jax.tree_util.tree_unflatten(trees.out_tree, outs)

    def partition(self, mesh: Any = None, num_devices: int | None = None, **options: Any) -> JaxPartitioned:
        """Partition the program; ``mesh`` may be one of JAX's meshes. See :meth:`ImportedProgram.partition`.

        The result can be run if we have as many devices as JAX's mesh, or as the mesh that the program declares.
        """
        if mesh is None:
            mesh = self.program.mesh_for(None, num_devices)
            mesh = on_devices(mesh) if type(mesh) is AbstractMesh else mesh
        elif not isinstance(mesh, (Mesh, AbstractMesh)):
            mesh = on_devices(from_mesh(mesh))
        return JaxPartitioned(self.program.partition(mesh, num_devices, **options), self.trees, self._outer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)

    def __repr__(self) -> str:
        return f"JaxProgram({self.program!r})"


def _called(program: ImportedProgram, args: Sequence[Any]) -> Any:
    """``program(*args)``; an error says if their types differ because 64-bit types are enabled in one library alone."""
    try:
        return program(*args)
    except ShapeError as error:
        on, off = ("JAX", "Meshwright") if jax.config.read("jax_enable_x64") else ("Meshwright", "JAX")
        if bool(jax.config.read("jax_enable_x64")) == config.enable_x64:
            raise
        raise ShapeError(f"{error}\n64-bit types are enabled in {on} and not in {off}: enable them in both") from None


class JaxFunction:
    """A JAX function that is traced for the types of the arguments it is called with."""

    def __init__(self, function: Callable[..., Any]) -> None:
        # A bound method of a jitted function has the function's ``lower``, which does not add the bound object.
        is_method = inspect.ismethod(function) and hasattr(function, "lower")
        self._first: tuple[Any, ...] = (getattr(function, "__self__", None),) if is_method else ()
        inner: Any = getattr(function, "__func__", function) if is_method else function
        self.function = inner if hasattr(inner, "lower") else jax.jit(inner)
        self._given: Callable[..., Any] | None = None if hasattr(inner, "lower") else inner
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self._programs: dict[Any, JaxProgram] = {}

    def lower(self, *args: Any, **kwargs: Any) -> JaxProgram:
        """Trace the function for the types of the arguments: JAX's arrays or ours, or ``jax.ShapeDtypeStruct``.

        As in JAX, the resulting program is called without the static arguments.
        """
        known = _known_to_jax if hasattr(self.function, "_jit_info") else _held
        args, kwargs = jax.tree_util.tree_map(known, ((*self._first, *args), kwargs))
        dynamic, static = self._told_apart(args, kwargs)
        leaves, tree = jax.tree_util.tree_flatten(dynamic)
        key = (
            tree,
            tuple(map(_type, leaves)),
            static,
            _CONFIG.trace_context(),
        )  # JAX's options and mesh shape its traces
        if key not in self._programs:
            outer, seen = self._lowered(args, kwargs)
            jaxpr = seen.jaxprs[-1] if seen.jaxprs else None
            names = argument_names(self.function, outer, args, kwargs) if hasattr(outer, "lowered") else None
            self._programs[key] = program = of_lowered(outer, names, seen.kernels)
            if jaxpr is None:
                program.by_rules = of_operations
            elif (batches := has_batching_rules(jaxpr) or program.is_split) or has_rules(jaxpr):
                given = self._given if has_rules_that_close_over_values(jaxpr) else None
                whole = jax.extend.core.jaxpr_as_fun(jaxpr) if given is None else _of_leaves(given, tree)
                closes = given is not None
                program.by_rules = ByRules(whole, JaxFunction, batches, closes, has_backward_rules(jaxpr))
        return self._programs[key]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's output, of our arrays."""
        program = self.lower(*args, **kwargs)
        (args, kwargs), _ = self._told_apart((*self._first, *args), kwargs)
        return program(*args, **kwargs)

    def _lowered(self, args: Any, kwargs: Any) -> tuple[Any, Seen]:
        """JAX's ``Lowered``, and what was lowered if the function was traced for this call.

        A mesh may be abstract, as the platform to lower for is given.
        """
        with lowering(_alone) as seen:
            if hasattr(self.function, "trace"):
                lowered = lowered_for_platforms(self.function.trace(*args, **kwargs))
            else:
                lowered = self.function.lower(*args, **kwargs)
        return lowered, seen

    def _told_apart(self, args: Any, kwargs: Any) -> tuple[tuple[Any, Any], tuple[Any, ...]]:
        """The dynamic arguments, and those that are static by ``jax.jit``'s options, with their positions or names."""
        info = getattr(self.function, "_jit_info", None)
        numbers = {n % len(args) for n in getattr(info, "static_argnums", ()) if -len(args) <= n < len(args)}
        names = {n for n in getattr(info, "static_argnames", ()) if n in kwargs}
        dynamic = tuple(a for n, a in enumerate(args) if n not in numbers)
        static = (*((n, args[n]) for n in sorted(numbers)), *((n, kwargs[n]) for n in sorted(names)))
        return (dynamic, {n: a for n, a in kwargs.items() if n not in names}), static

    def partition(self, *args: Any, mesh: Any = None, num_devices: int | None = None, **kwargs: Any) -> JaxPartitioned:
        """The per-device program for the types of the arguments."""
        return self.lower(*args, **kwargs).partition(mesh, num_devices)

    def __repr__(self) -> str:
        return f"JaxFunction({self.__name__!r})"


_CONFIG: Any = LateModule("jax._src.config")


def _alone(function: Callable[..., Any], types: Sequence[Any]) -> ClosedJaxpr:
    """A JAX function for one device."""
    return JaxFunction(function).lower(*types).program.program.jaxpr


def _known_to_jax(x: Any) -> Any:
    """JAX's type of one of our arrays; anything else is returned unchanged."""
    if not isinstance(x, Array):
        return x
    if is_key(x.dtype):
        words = jax.ShapeDtypeStruct(key_data(x).shape, "uint32")
        return jax.eval_shape(partial(jax.random.wrap_key_data, impl=str(key_impl(x))), words)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type)


def _type(x: Any) -> Any:
    """The part of an argument that programs are cached by: the type of an array, or any other value itself."""
    if hasattr(x, "dtype") and hasattr(x, "shape"):
        sharding = getattr(x, "sharding", None)
        split = sharding if isinstance(sharding, jax.sharding.NamedSharding) else None
        return x.shape, x.dtype, getattr(x, "weak_type", False), split
    return jax.typeof(x) if isinstance(x, (bool, int, float, complex)) else x


def of_lowered(lowered: Any, names: Sequence[str | None] | None = None, kernels: Sequence[Any] = ()) -> JaxProgram:
    """The program of a ``Lowered``, or of flax's or equinox's wrapper around one; ``names`` are those of all arguments,
    ``kernels`` the grids of its kernels.

    Raises:
      ImportProgramError: the function mutates a ``jax.Ref``, or the program cannot be read.
    """
    inner = getattr(lowered, "lowered", lowered)
    if inner._lowering.compile_args.get("mut") is not None:
        raise ImportProgramError(
            "from_jax: the function changes a jax.Ref, which lives with JAX; pass its value and return the new one"
        )
    kept = inner._lowering.compile_args.get("kept_var_idx")
    trees = JaxTrees("", inner.in_tree, inner.out_tree, kept, inner._lowering.compile_args["global_out_avals"])
    functions = inner._lowering.compile_args.get("host_callbacks") or ()
    numbered = *functions, *reversed(kernels)  # kernels count from the end
    chosen = partial(by_platform, platforms=getattr(inner._lowering, "_platforms", None) or ())
    program = read_program(inner.as_text(debug_info=True), "<text>", numbered, changed=chosen)
    trees.name = program.name
    if names is not None:
        program = _named(program, names if trees.kept is None else [names[i] for i in trees.kept])
    program.donates = True
    return JaxProgram(program, trees, lowered)


def _named(program: ImportedProgram, names: Sequence[str | None]) -> ImportedProgram:
    """The program with its parameters renamed; those with the name None keep theirs."""
    parsed = program.parsed
    arguments = tuple(dataclasses.replace(a, name=n or a.name) for a, n in zip(parsed.arguments, names))
    return ImportedProgram(dataclasses.replace(parsed, arguments=arguments))


def of_exported(exported: Any) -> JaxProgram | JaxFunction:
    """The program of a ``jax.export.Exported``; with symbolic sizes, a function that is specialized when called.

    Raises:
      ImportProgramError: it was exported in an older calling convention, or cannot be read.
    """
    if not all(isinstance(n, int) for aval in exported.in_avals for n in aval.shape):
        return JaxFunction(exported.call)
    if exported.calling_convention_version < 9 or any("_platform_index" in p for p in exported.platforms[1:]):
        raise ImportProgramError(f"from_jax: {exported.fun_name} is exported in a calling convention of older releases")
    chosen = partial(by_platform, platforms=exported.platforms)
    program = read_program(str(exported.mlir_module()), "<text>", changed=chosen)
    kept = exported.module_kept_var_idx
    trees = JaxTrees(program.name, exported.in_tree, exported.out_tree, kept, exported.out_avals)
    converted = JaxProgram(program, trees)
    by_rules = (
        ByRules(_of_leaves(exported.call, exported.in_tree), JaxFunction) if exported.has_vjp() else of_operations
    )
    converted.by_rules = by_rules
    return converted


def _of_leaves(function: Callable[..., Any], in_tree: Any) -> Callable[..., list[Any]]:
    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = jax.tree_util.tree_unflatten(in_tree, leaves)
        return [jax.numpy.asarray(y) for y in jax.tree_util.tree_leaves(function(*args, **kwargs))]

    return flat


def from_jax(f: Any, *args: Any, **kwargs: Any) -> Any:
    """See :func:`meshwright.from_jax`."""
    if isinstance(f, (bytes, bytearray)):
        try:
            f = jax_export.deserialize(bytearray(f))
        except ImportError as error:
            raise MissingExtraError(f"from_jax: {error} (pip install flatbuffers)") from error
        except Exception as error:
            raise ImportProgramError(f"from_jax: these bytes are no exported program ({error})") from None
    if isinstance(f, jax_export.Exported):
        exported = of_exported(f)
        return exported.lower(*args, **kwargs) if isinstance(exported, JaxFunction) and (args or kwargs) else exported
    if hasattr(f, "out_tree") and hasattr(getattr(f, "lowered", f), "_lowering"):
        program = of_lowered(f)
        program.by_rules = of_operations
        return program
    if isinstance(f, str):
        return load(f)
    if isinstance(f, tuple) and hasattr(f, "_fields") and all(map(callable, f)):
        functions: list[Any] = [JaxFunction(g) for g in f]
        return type(f)(*functions)
    if hasattr(f, "operation") and hasattr(f, "body"):
        return load(f.operation.get_asm(enable_debug_info=True))
    if not callable(f):
        raise ArgumentTypeError(
            "from_jax: expected a function, a jitted or lowered one, a named tuple of functions, an MLIR module or its "
            f"text, or an exported program or its bytes, got {type(f).__name__}"
        )
    function = JaxFunction(f)
    return function.lower(*args, **kwargs) if args or kwargs else function
