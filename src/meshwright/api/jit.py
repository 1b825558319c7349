"""``jit``: trace and compile once per argument types, then only run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from meshwright.api import cache_misses
from meshwright.api.arguments import (
    ReferenceGiven,
    array_type,
    bad_argument,
    both_ways,
    check_apart,
    numbers_in_call,
    signature,
    words_of,
)
from meshwright.api.bound_jit import BoundJit
from meshwright.api.calls import misplaced, together
from meshwright.api.carried_references import GivenReferences
from meshwright.api.compiled import Compiled
from meshwright.api.jit_caches import CACHES, Ready
from meshwright.api.jit_options import JitOptions, Static
from meshwright.api.shape_dtype import ShapeDtypeStruct, shape_of
from meshwright.api.shardings import (
    UNSPECIFIED,
    argument_shardings,
    check_fit,
    committed_to,
    common_place,
    flat_shardings,
    named,
    without_auto,
)
from meshwright.api.stages import Lowered, Traced
from meshwright.api.updated_references import InPlace, call_jitted, in_jit, jitted_of_values, program_of
from meshwright.core import pytree
from meshwright.core.avals import ShapedArray
from meshwright.core.config import config
from meshwright.core.depth import room
from meshwright.core.expected import as_numbers, refused
from meshwright.core.float0 import is_float0, without_float0
from meshwright.core.identity import kind_of, made_of
from meshwright.core.late import LateModule
from meshwright.core.pytree_order import in_order
from meshwright.core.signature import described, leaf_names
from meshwright.core.source import own_scope
from meshwright.core.tracebacks import boundary, without_own_frames
from meshwright.errors import (
    ArgumentError,
    ArgumentTypeError,
    MeshwrightError,
    NonFiniteError,
    StaticArgumentError,
)
from meshwright.ir.explicit import is_explicit
from meshwright.ir.jaxpr import ClosedJaxpr
from meshwright.ir.leaks import ends_traces, watched
from meshwright.ir.passes import inline_calls, shallow
from meshwright.ir.program import Argument, Program
from meshwright.ir.state import STATE, scope, set_trace
from meshwright.ir.tracing import EVAL, FOREIGN, JaxprTrace, Tracer, array_leaves, check_alive, eval_jaxpr, typeof
from meshwright.ops.control.call import Jit
from meshwright.ops.sharding.constraint import constrain
from meshwright.ops.sharding.memory_put import in_memories
from meshwright.runtime.array import Array
from meshwright.runtime.devices import Device, require_backend
from meshwright.runtime.eager import check_finite
from meshwright.runtime.values import as_array
from meshwright.sharding import SingleDeviceSharding, get_mesh, typed_by
from meshwright.sharding.auto import AUTO
from meshwright.transforms import key_reuse
from meshwright.transforms.autodiff import lift_constants
from meshwright.transforms.wrapped import Signed, found_by_name, name_of, require_callable, takes_names_of

if TYPE_CHECKING:
    from meshwright.api import planning
    from meshwright.api.partitioned import PartitionedProgram
else:
    planning = LateModule("meshwright.api.planning")


def _outputs(out_tree: Any) -> Any:
    """The outline of an output, with None for float0 leaves, which no program computes."""
    return pytree.map(lambda x: None if is_float0(x) else x, pytree.outline(out_tree))


@ends_traces
def trace_flat(
    fun: Callable[..., Any], treedef: Any, avals: Sequence[ShapedArray], name: str, names: Callable[[], Sequence[str]]
) -> tuple[ClosedJaxpr, Any]:
    """Record ``fun(*args, **kwargs)`` at flat types; returns the jaxpr and the structure of the output.

    Raises:
      UnexpectedTracerError: the function returned a tracer of a finished trace.
      ArgumentTypeError: it returned something other than arrays.
      NestingError: functions call each other too deeply.
    """
    trace = watched(JaxprTrace(names))
    tracers = [trace.new_arg(a) for a in avals]
    with trace:
        with room(name), set_trace(trace), own_scope():
            args, kwargs = pytree.unflatten(treedef, tracers)
            out = fun(*args, **kwargs)
        out = without_float0(out)
        leaves, out_tree = array_leaves(out, lambda path: f"{name} returned output{path}, which is no array")
        return key_reuse.checked(trace.finish(leaves, name)), out_tree


class JitFunction(Signed):
    """A jitted function. Calling it runs the compiled program; see also ``trace``, ``lower``, ``clear_cache``."""

    #: references that it closes over
    closed: tuple[Any, ...] = ()
    #: the references whose values it is given instead
    in_place: InPlace | None = None
    _numbered = "jit: static_argnums", "jit: donate_argnums"

    def __init__(self, fun: Callable[..., Any], options: JitOptions) -> None:
        takes_names_of(self, fun)
        self.fun = fun
        self.name = name_of(fun)
        self.options = options
        self._has_static = options.has_static
        self._caches = CACHES.of(fun, options)
        self._programs, self._direct = self._caches.programs, self._caches.direct
        made_of(self, fun, "jit", options)

    def __reduce__(self) -> Any:
        # The original function, which a decorator replaced, cannot be pickled by name; this object can.
        return found_by_name(self) or (JitFunction, (self.fun, self.options))

    def moving(self) -> JitFunction:
        """The same function, but moving arguments placed with another sharding than ``in_shardings``."""
        return JitFunction(self.fun, self.options._replace(move_arguments=True))

    __copy__ = __deepcopy__ = lambda self, *memo: self

    def clear_cache(self) -> None:
        """Forget compiled programs and traces."""
        self._caches.clear()

    def _cache_size(self) -> int:
        """The number of compiled programs, as in JAX, where tests of recompilation ask for it."""
        return len(self._programs)

    # --- calling --------------------------------------------------------------------------------------------
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:  # inline rather than in a decorator: an extra call would be noticeable
            if STATE.trace is not EVAL or config.at_calls:
                return self._other_call(args, kwargs)
            if not (kwargs or self._has_static) and STATE.decided is None:
                # Positional arrays are their own leaves, and their number determines the structure.
                types = [signature(x) if x.committed else x.aval for x in args if type(x) is Array]
                run = self._direct.get((len(args), get_mesh(), config.tracing, *types))
                if run is not None and len(types) == len(args):
                    return run(args)
            return self._evaluated(args, kwargs)
        except Exception as error:
            without_own_frames(error)
            raise

    def _other_call(self, args: Any, kwargs: Any) -> Any:
        """A call with jit disabled, inside a trace, or with checked results."""
        if config.disable_jit:
            return self.fun(*args, **kwargs)
        if STATE.trace is EVAL:
            return key_reuse.noted(self, self._split, self._evaluated, args, kwargs)
        return self._traced_call(args, kwargs)

    @in_jit
    def _evaluated(self, args: Any, kwargs: Any) -> Any:
        static, dynamic, named = self._split(args, kwargs)
        leaves, treedef = pytree.flatten((dynamic, named))
        if any(type(x) in FOREIGN for x in leaves):
            leaves = [as_array(x) if type(x) in FOREIGN else x for x in leaves]
            dynamic, named = pytree.unflatten(treedef, leaves)
        try:
            types = [x.aval if type(x) is Array and not x.committed else signature(x) for x in leaves]
        except (ArgumentTypeError, ReferenceGiven):
            return self._with_references(dynamic, named, static)
        where = (get_mesh(), config.tracing) if STATE.decided is None else (get_mesh(), config.tracing, "decided")
        ready = self._programs.get((treedef, static, *where, *types))
        if ready is None:
            if any(map(is_float0, leaves)):
                args, kwargs = without_float0((args, kwargs))
                return self._evaluated(args, kwargs)
            start = treedef, static, *where
            ready = self._caches.serving(start, types)
            if ready is None:
                if config.explain_cache_misses:
                    cache_misses.explain(self.fun, (*start, *types), self._programs.copy(), self._names_in)
                ready = self._compile(dynamic, named, static)
            self._programs[*start, *types] = ready
        outs = ready.results(leaves)
        if static is None and not kwargs and all(type(x) is Array for x in args):
            self._direct[len(args), *where, *types] = ready.direct()
        if config.debug_nans or config.debug_infs:
            self._check_finite(outs, leaves, treedef, static, bool(ready.executable.donated))
        return ready.unflatten(outs)

    def _with_references(self, args: Any, kwargs: Any, static: Static | None) -> Any:
        """A call with references among its dynamic arguments.

        Raises:
          ArgumentTypeError: an argument is neither an array nor a reference.
          ArgumentError: the same reference is passed twice.
        """
        given = GivenReferences.among(self.name, *without_float0((args, kwargs)))
        if given is None:
            raise self.bad_argument(args, kwargs, static) from None
        function = self.of_values(given, static)
        try:
            return call_jitted(given, function, function)
        except Exception as error:
            raise error from None  # without the exception that led here

    def of_values(self, given: GivenReferences, static: Static | None) -> Any:
        """The function of values in place of references; the same object for equal places."""
        known, key = vars(self).setdefault("_for_values", {}), (static, *given.key)
        if key not in known:
            known[key] = jitted_of_values(self, self.with_static(static), given.key[1])
        return known[key]

    def _compile(self, args: Any, kwargs: Any, static: Static | None) -> Ready:
        compiled = Lowered(self.own_program(args, kwargs, static)).compile()
        out_tree = compiled.program.out_tree
        unflatten = itemgetter(0) if out_tree.is_leaf() else in_order(out_tree).unflatten
        return Ready(compiled.executable, unflatten, compiled.program.kept, compiled.takes)

    @in_jit
    def _traced_call(self, args: Any, kwargs: Any) -> Any:
        """Inside another trace: one equation that holds the inner jaxpr."""
        static, args, kwargs = self._split(args, kwargs)
        args, kwargs = without_float0((args, kwargs))
        leaves, treedef = pytree.flatten((args, kwargs))
        for x in leaves:
            check_alive(x)
        try:
            avals = tuple(array_type(x) for x in leaves)
        except (ArgumentTypeError, ReferenceGiven):
            return self._with_references(args, kwargs, static)
        jaxpr, out_tree = self._trace(treedef, avals, static)
        closed, hoisted = self._constrained(jaxpr, args, kwargs, out_tree), list[Any]()
        if any(isinstance(c, Tracer) for c in closed.consts):  # of an outer trace
            closed, hoisted = lift_constants(closed)
        return pytree.unflatten(out_tree, Jit(self.name, closed, self.options.inline).bind(*hoisted, *leaves))

    def _constrained(self, jaxpr: ClosedJaxpr, args: Any, kwargs: Any, out_tree: Any) -> ClosedJaxpr:
        """The trace with this function's shardings as constraints; the same object each time."""
        constrained = self._caches.constrained.get(jaxpr)
        if constrained is None:
            ins = argument_shardings(self.options.in_shardings, args, kwargs, self.name)
            outs = flat_shardings(self.options.out_shardings, _outputs(out_tree), "jit out_shardings")
            ins, outs = list(map(without_auto, ins)), list(map(without_auto, outs))
            constrained = shallow(constrain(jaxpr, list(map(named, ins)), list(map(named, outs))))
            if not any(isinstance(c, Tracer) for c in jaxpr.consts):
                self._caches.constrained[jaxpr] = constrained
        return constrained

    def _trace(self, treedef: Any, avals: tuple[ShapedArray, ...], static: Static | None) -> tuple[ClosedJaxpr, Any]:
        is_decided = STATE.decided is not None and is_explicit(avals)
        key = (treedef, avals, static, get_mesh(), config.tracing, scope(), is_decided)
        traced = self._caches.traces.get(key)
        if traced is None:

            def names() -> list[str]:
                return [f"{name} of {described(self.fun)}" for name in self._names_in(treedef, static)]

            traced = trace_flat(self.with_static(static), treedef, avals, self.name, names)
            if not any(isinstance(c, Tracer) for c in traced[0].consts):
                self._caches.traces[key] = traced
        return traced

    # --- what went wrong ------------------------------------------------------------------------------------
    def _names(self, args: Any, kwargs: Any, static: Static | None) -> list[str]:
        return leaf_names(self.fun, args, kwargs, static.numbers if static else ())

    def _names_in(self, treedef: Any, static: Static | None) -> list[str]:
        args, kwargs = pytree.outline(treedef)
        return self._names(args, kwargs, static)

    def bad_argument(self, args: Any, kwargs: Any, static: Static | None) -> MeshwrightError:
        return bad_argument(self.name, pytree.leaves((args, kwargs)), self._names(args, kwargs, static))

    def _check_finite(
        self, outs: list[Array], leaves: list[Any], treedef: Any, static: Static | None, donated: bool
    ) -> None:
        """Raise if a result is not finite. If the arguments still exist, rerun op by op to name the op that produced
        it."""
        try:
            check_finite(f"the jitted function {self.name}", outs)
        except NonFiniteError:
            if not donated:
                jaxpr = inline_calls(self._trace(treedef, tuple(map(typeof, leaves)), static)[0])
                eval_jaxpr(jaxpr, jaxpr.consts, *leaves)
            raise

    # --- static arguments -----------------------------------------------------------------------------------
    def _split(self, args: Any, kwargs: Any) -> tuple[Static | None, Any, Any]:
        """The static arguments of a call, None without any, and the others."""
        if not self._has_static:
            return None, args, kwargs
        numbers = numbers_in_call(self._numbered[0], self.options.static_argnums, len(args), self.name)
        positional = tuple((i, args[i]) for i in sorted(numbers) if i < len(args))
        named = tuple((n, kwargs[n]) for n in self.options.static_argnames if n in kwargs)
        for where, value in (*positional, *named):
            try:
                hash(value)
            except TypeError as error:
                raise StaticArgumentError(
                    f"{self.name}: static argument {where!r} of type {type(value).__name__} is not hashable ({error}); "
                    "pass a tuple or another hashable value, or do not mark it static"
                ) from None
        dynamic = tuple(a for i, a in enumerate(args) if i not in numbers)
        rest = {n: v for n, v in kwargs.items() if n not in self.options.static_argnames}
        kinds = tuple(kind_of(value) for _, value in (*positional, *named))
        return Static(len(args), positional, named, kinds), dynamic, rest

    def with_static(self, static: Static | None) -> Callable[..., Any]:
        """The function of the arguments that are not static."""
        return self.fun if static is None else static.bound(self.fun)

    # --- stages ---------------------------------------------------------------------------------------------
    def own_program(self, args: Any, kwargs: Any, static: Static | None) -> Program:
        program, auto = self._open_program(args, kwargs, static)
        return planning.with_chosen(program, auto) if auto else program

    def traced_open(self, *args: Any) -> Program:
        """The traced program with ``AUTO`` shardings left open."""
        static, args, kwargs = self._split(args, {})
        return self._open_program(args, kwargs, static)[0]

    def _open_program(self, args: Any, kwargs: Any, static: Static | None) -> tuple[Program, list[int]]:
        """The program, and the numbers of the arguments whose shardings are left to be chosen."""
        args, kwargs = without_float0((args, kwargs))
        leaves, treedef = pytree.flatten((args, kwargs))
        names = self._names(args, kwargs, static)
        try:
            avals = tuple(shape_of(x) for x in leaves)
        except ArgumentTypeError:
            raise self.bad_argument(args, kwargs, static) from None
        in_shardings = argument_shardings(self.options.in_shardings, args, kwargs, self.name)
        auto = [i for i, (s, x) in enumerate(zip(in_shardings, leaves)) if s is AUTO and committed_to(x) is None]
        given = list(map(without_auto, in_shardings))
        for sharding, x, name in zip(given, leaves, names):
            common_place([(f"argument {name}", committed_to(x)), (f"in_shardings for {name}", sharding)], self.name)
        moves = self.options.move_arguments or config.move_arguments
        takes = (misplaced(f"{self.name!r} takes argument {n}", x, s, moves) for s, x, n in zip(given, leaves, names))
        if wrong := [error for error in takes if error is not None]:
            raise together(self.name, wrong)
        shardings = [g if g is not None else committed_to(x) for g, x in zip(given, leaves)]
        check_fit(shardings, avals, names, f"{self.name}: argument ")
        avals = tuple(a if g is None else typed_by(a, named(g)) for a, g in zip(avals, given))
        jaxpr, out_tree = self._trace(treedef, avals, static)
        outs_value = _outputs(out_tree)
        outs = list(map(without_auto, flat_shardings(self.options.out_shardings, outs_value, "jit out_shardings")))
        check_fit(outs, jaxpr.out_avals, pytree.paths(outs_value), f"{self.name}: output")
        donated = self._donated(args, kwargs, static, jaxpr)
        arguments = tuple(Argument(*fields) for fields in zip(names, avals, map(named, shardings), donated))
        program = Program(
            self.name, constrain(in_memories(jaxpr, outs)), arguments, tuple(map(named, outs)), treedef, out_tree,
            compiler_options=self.options.compiler_options, keep_unused=self.options.keep_unused,
        )  # fmt: skip
        return program.in_place(), auto

    def _donated(self, args: Any, kwargs: Any, static: Static | None, jaxpr: ClosedJaxpr) -> list[bool]:
        skipped = set(static.numbers) if static else set()
        count = static.num_args if static else len(args)
        numbers = [i for i in range(count) if i not in skipped]  # original number of each dynamic argument
        donate = numbers_in_call(self._numbered[1], self.options.donate_argnums, count, self.name)
        check_apart(skipped, donate, self._numbered[1].partition(":")[0])
        flags = []
        for number, arg in zip(numbers, args):
            flags += [number in donate] * len(pytree.leaves(arg))
        for name in sorted(kwargs):
            flags += [name in self.options.donate_argnames] * len(pytree.leaves(kwargs[name]))
        for i in self.in_place.donated(args, kwargs, jaxpr) if self.in_place else ():
            flags[i] = True
        return flags

    @boundary
    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Trace at the types of the arguments, which may be ``ShapeDtypeStruct``."""
        static, args, kwargs = self._split(args, kwargs)
        return Traced(program_of(self, static, args, kwargs))

    @boundary
    def lower(
        self,
        *args: Any,
        lowering_platforms: Sequence[str] | None = None,
        compiler_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Lowered:
        """Trace and lower at the types of the arguments, which may be ``ShapeDtypeStruct``.

        ``compiler_options`` are XLA flags by name, in addition to those of ``jit``.
        """
        traced = self.trace(*args, **kwargs)
        return traced.lower(lowering_platforms=lowering_platforms, compiler_options=compiler_options)

    def program_at(self, *args: Any, **kwargs: Any) -> Program:
        """The program at the types of the arguments, of a function that uses no references."""
        static, args, kwargs = self._split(args, kwargs)
        return self.own_program(args, kwargs, static)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The types of the results, with the shardings of ``out_shardings``."""
        program = self.trace(*args, **kwargs).program
        types = map(ShapeDtypeStruct.of, program.jaxpr.out_avals, program.out_shardings)
        tree = pytree.unflatten(program.out_tree, list(types))
        return tree if program.references is None else program.references.result(tree)

    def partition(self, *args: Any, **kwargs: Any) -> PartitionedProgram:
        """Short for ``.lower(...).partition()``."""
        return self.lower(*args, **kwargs).partition()

    def compile(self, *args: Any, **kwargs: Any) -> Compiled:
        """Short for ``.lower(...).compile()``."""
        return self.lower(*args, **kwargs).compile()

    def __repr__(self) -> str:
        return f"<jitted function {self.name}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else BoundJit(self, instance)


def jit(
    fun: Callable[..., Any] | None = None,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    inline: bool = False,
    device: Device | None = None,
    backend: str | None = None,
    compiler_options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile ``fun`` as one program per combination of argument types.

    ``in_shardings`` and ``out_shardings`` are tree prefixes of the positional arguments (a tuple with one entry per
    argument) and of the output: ``NamedSharding``, ``PartitionSpec`` (with a current mesh), ``None`` to leave the
    choice to the partitioner, or ``AUTO`` to search for the fastest that fits in memory (see :func:`plan`).
    ``static_argnums`` are passed as Python values and must be hashable. ``donate_argnums`` may be overwritten by
    results and cannot be used afterwards. ``device`` is the device to run on, as a sharding of all arguments.
    ``backend`` must be the current one. Arguments that no result depends on are neither transferred nor parameters of
    the compiled program, unless ``keep_unused``. ``compiler_options`` are XLA flags by name. Without ``fun``, returns a
    decorator.

    Raises (when called):
      ArgumentError, ShardingError, MeshError: shardings that do not fit each other or the arguments
        (``config.update("move_arguments", True)`` moves these, with a warning).
      ArgumentTypeError: arguments that are not arrays, or static ones that are not hashable.

    Example:
      >>> mw.jit(lambda x, n: x * n, static_argnums=1)(mnp.array([1, 2, 3]), 10)
      Array([10, 20, 30], dtype=int32)
      >>> mesh = mw.make_mesh((4,), ("x",))
      >>> mw.jit(lambda x: 2 * x, out_shardings=mw.NamedSharding(mesh, P("x")))(mnp.arange(8)).sharding.spec
      P('x',)
    """
    require_backend(backend, "jit")
    if not isinstance(compiler_options, Mapping | None):
        raise refused("jit: compiler_options", "a dict of XLA's flags by name", compiler_options)
    in_shardings, out_shardings = (None if s is UNSPECIFIED else s for s in (in_shardings, out_shardings))
    if device is not None:
        if in_shardings is not None or out_shardings is not None:
            raise ArgumentError("jit: device and shardings exclude each other; put the device into the shardings")
        in_shardings = out_shardings = SingleDeviceSharding(device)
    static = (
        as_numbers("jit: static_argnums", () if static_argnums is None else static_argnums),
        words_of(static_argnames, "static_argnames"),
    )
    donate = (
        as_numbers("jit: donate_argnums", () if donate_argnums is None else donate_argnums),
        words_of(donate_argnames, "donate_argnames"),
    )

    def wrap(f: Callable[..., Any]) -> JitFunction:
        require_callable(f, "jit")
        statics = both_ways(f, *static, "static")
        donated = both_ways(f, *donate, "donate")
        check_apart((*statics[0], *statics[1]), (*donated[0], *donated[1]))
        flags = tuple(dict(compiler_options or ()).items())
        return JitFunction(f, JitOptions(in_shardings, out_shardings, *statics, *donated, inline, flags, keep_unused))

    return wrap if fun is None else wrap(fun)
