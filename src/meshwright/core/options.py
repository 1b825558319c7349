"""Options set within a ``with`` block, one function each, by JAX's names: ``with mw.debug_nans(True): ...``.

``config.update`` sets the same options permanently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from os import PathLike
from typing import Any

from meshwright.core.config import config


def enable_x64(new_val: bool = True) -> AbstractContextManager[None]:
    """Enable 64-bit types in the ``with`` block (or disable them with False).

    Example:
      >>> with mw.enable_x64(True):
      ...     mnp.arange(2).dtype, mnp.ones(2).dtype
      (dtype('int64'), dtype('float64'))
    """
    return config.override("enable_x64", new_val)


def debug_nans(new_val: bool = True) -> AbstractContextManager[None]:
    """In the ``with`` block, raise an error if a result has a NaN; it names the op that produced it and its line.

    Example:
      >>> try:
      ...     with mw.debug_nans(True):
      ...         mnp.log(mnp.array([1.0, -1.0]))
      ... except FloatingPointError as error:
      ...     print(str(error)[:44])
      log made a NaN in a result of type f32[2] at
    """
    return config.override("debug_nans", new_val)


def debug_infs(new_val: bool = True) -> AbstractContextManager[None]:
    """In the ``with`` block, raise an error if a result has an infinity; it names the op that produced it and its line.

    Example:
      >>> try:
      ...     with mw.debug_infs(True):
      ...         1 / mnp.array([1.0, 0.0])
      ... except FloatingPointError as error:
      ...     print(str(error)[:50])
      div made an infinity in a result of type f32[2] at
    """
    return config.override("debug_infs", new_val)


def debug_key_reuse(new_val: bool = True) -> AbstractContextManager[None]:
    """In the ``with`` block, raise an error if a random key is used twice, for draws or ``split``.

    Keys of :func:`meshwright.random.key` are followed, through traced functions too, those of ``PRNGKey`` are not.
    ``fold_in`` does not use a key, and ``random.clone`` makes one that may be used again.

    Example:
      >>> key = mw.random.key(0)
      >>> try:
      ...     with mw.debug_key_reuse(True):
      ...         mw.random.normal(key) + mw.random.uniform(key)
      ... except mw.errors.KeyReuseError as error:
      ...     print(str(error)[:51])
      uniform is given a random key of type key<fry>[] th
    """
    return config.override("debug_key_reuse", new_val)


def checking_leaks() -> AbstractContextManager[None]:
    """In the ``with`` block, raise an error if a tracer still exists after its function has been traced.

    The error names the line that created it, and what refers to it. Functions are traced again even if they were
    before. Slow: the garbage collector scans all objects. The same as option ``check_tracer_leaks``. Tracers created
    only by ``grad`` and similar transformations are not checked. A rule of ``custom_vjp`` that closes over tracers may
    legitimately keep them, but is reported too.

    Example:
      >>> kept = []
      >>> try:
      ...     with mw.checking_leaks():
      ...         mw.jit(lambda x: kept.append(x + 1))(2.0)
      ... except mw.errors.UnexpectedTracerError as error:
      ...     print(str(error)[:43])
      1 traced value outlived the traced function
    """
    return config.override("check_tracer_leaks", True)


def check_tracer_leaks(new_val: bool = True) -> AbstractContextManager[None]:
    """Enable :func:`checking_leaks`, or disable it with False, in the ``with`` block.

    Example:
      >>> with mw.check_tracer_leaks(True):
      ...     mw.jit(lambda x: x + 1)(2)
      Array(3, dtype=int32, weak_type=True)
    """
    return config.override("check_tracer_leaks", new_val)


def disable_jit(disable: bool = True) -> AbstractContextManager[None]:
    """In the ``with`` block, run jitted functions and loops in Python, op by op, so that values can be printed and
    debugged.

    Branches and loops whose predicate is traced (for example under ``vmap``) are still one op.

    Example:
      >>> @mw.jit
      ... def f(x):
      ...     print(x * 2)
      ...     return x
      >>> with mw.disable_jit():
      ...     _ = f(mnp.arange(3))
      [0 2 4]
    """
    return config.override("disable_jit", disable)


def log_compiles(new_val: bool = True) -> AbstractContextManager[None]:
    """In the ``with`` block, log each compilation and its time to the logger ``meshwright``.

    Example:
      >>> with mw.log_compiles(), __import__("unittest").TestCase().assertLogs("meshwright") as logs:
      ...     _ = mw.jit(lambda x: x + 1).lower(2.0).compile()
      >>> "Compiled <lambda> for f32[]" in logs.output[0]
      True
    """
    return config.override("log_compiles", new_val)


def explain_cache_misses(new_val: bool = True) -> AbstractContextManager[None]:
    """In the ``with`` block, log why a jitted function is compiled, to the logger ``meshwright``: what tells the call
    from the earlier one that is most like it (shapes, dtypes, places, static arguments, structure, options, the mesh),
    or that the function is a new one of the same code.

    Example:
      >>> double = mw.jit(lambda x: 2 * x)
      >>> with mw.explain_cache_misses(), __import__("unittest").TestCase().assertLogs("meshwright") as logs:
      ...     _ = double(mnp.ones(3)), double(mnp.ones(4))
      >>> logs.output[1].rpartition(": ")[2]
      'float32[3] → float32[4]'
    """
    return config.override("explain_cache_misses", new_val)


def dump_ir(folder: str | PathLike[str] | None) -> AbstractContextManager[None]:
    """In the ``with`` block, write partitioned programs to ``folder`` after each pass that changed them.

    Files are numbered: ``003_layer_partition.txt``. ``meshwright passes`` lists the passes.

    Example:
      >>> folder = __import__("tempfile").mkdtemp()
      >>> with mw.dump_ir(folder):
      ...     _ = mw.jit(lambda x: x + 1).lower(mnp.arange(4)).partition(mw.AbstractMesh((2,), ("x",)))
      >>> sorted(__import__("os").listdir(folder))
      ['000_lambda_input.txt', '001_lambda_partition.txt']
    """
    return config.override("dump_ir", folder)


def default_device(new_val: Any) -> AbstractContextManager[None]:
    """In the ``with`` block, create arrays without explicit placement on a device (None, or a platform's name: the
    first).

    Example:
      >>> with mw.default_device(mw.devices()[3]):
      ...     mnp.ones(2).device
      CpuDevice(id=3)
    """
    return config.override("default_device", new_val)


def default_matmul_precision(new_val: str | None) -> AbstractContextManager[None]:
    """In the ``with`` block, set the precision of products and convolutions for which none is given.

    One of ``"default"``, ``"high"`` and ``"highest"``, or their synonyms ``"bfloat16"``, ``"tensorfloat32"``,
    ``"float32"``. CPUs always use full precision. Names of algorithms (``lax.DotAlgorithmPreset``) apply to matrix
    products of floats.

    Example:
      >>> with mw.default_matmul_precision("float32"):
      ...     text = mw.jit(lambda x: x @ x).lower(mnp.ones((2, 2))).as_text()
      >>> "precision = [HIGHEST, HIGHEST]" in text
      True
    """
    return config.override("default_matmul_precision", new_val)


def default_prng_impl(new_val: str) -> AbstractContextManager[None]:
    """In the ``with`` block, set the generator of new random keys, by name.

    Example:
      >>> with mw.default_prng_impl("threefry2x32"):
      ...     mw.random.PRNGKey(7).shape
      (2,)
    """
    return config.override("default_prng_impl", new_val)


def enable_custom_prng(new_val: bool = True) -> AbstractContextManager[None]:
    """In the ``with`` block, let ``random.PRNGKey`` return keys with a key dtype, as ``random.key`` does.

    Example:
      >>> with mw.enable_custom_prng(True):
      ...     mw.random.PRNGKey(7).dtype
      key<fry>
    """
    return config.override("enable_custom_prng", new_val)


def numpy_rank_promotion(new_val: str) -> AbstractContextManager[None]:
    """In the ``with`` block, set the treatment of operands of different ranks: ``"allow"``, ``"warn"`` or ``"raise"``.

    Scalars combine with any rank.

    Example:
      >>> try:
      ...     with mw.numpy_rank_promotion("raise"):
      ...         mnp.ones((2, 3)) + mnp.ones(3)
      ... except ValueError as error:
      ...     print(str(error)[:44])
      add: operands of shapes (2, 3) and (3,) have
    """
    return config.override("numpy_rank_promotion", new_val)


def numpy_dtype_promotion(new_val: str) -> AbstractContextManager[None]:
    """In the ``with`` block, set which dtypes may be combined: most (``"standard"``) or only equal ones (``"strict"``).

    In both, Python numbers combine with arrays of their kind.

    Example:
      >>> try:
      ...     with mw.numpy_dtype_promotion("strict"):
      ...         mnp.ones(2, "float32") + mnp.ones(2, "int32")
      ... except TypeError as error:
      ...     print(str(error)[:46])
      add: no implicit promotion between dtypes f32,
    """
    return config.override("numpy_dtype_promotion", new_val)


@contextmanager
def transfer_guard(new_val: str) -> Iterator[None]:
    """In the ``with`` block, set the treatment of transfers between host and devices, and between devices.

    ``"allow"``, ``"log"`` and ``"disallow"`` apply to implicit transfers: NumPy values and Python numbers used with
    arrays or jitted functions. ``"log_explicit"`` and ``"disallow_explicit"`` also apply to those by ``device_put`` and
    ``device_get``. Reading a CPU array is not a transfer, since its memory is shared; nor is using a number that was
    transferred before.

    Raises (in the block):
      TransferError: a disallowed transfer.

    Example:
      >>> step, x = mw.jit(lambda x: x * 2), mw.device_put(np.arange(3))
      >>> with mw.transfer_guard("disallow"):
      ...     y = step(x)
      ...     try:
      ...         step(np.arange(3))
      ...     except mw.errors.TransferError as error:
      ...         print(str(error)[:47])
      implicit host-to-device transfer of i32[3], whi
    """
    kinds = ("", "_host_to_device", "_device_to_device", "_device_to_host")
    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(config.override("transfer_guard" + kind, new_val))
        yield


def transfer_guard_host_to_device(new_val: str) -> AbstractContextManager[None]:
    """:func:`transfer_guard` for transfers to devices only.

    Example:
      >>> with mw.transfer_guard_host_to_device("allow"):
      ...     mnp.asarray(2.0).item()
      2.0
    """
    return config.override("transfer_guard_host_to_device", new_val)


def transfer_guard_device_to_device(new_val: str) -> AbstractContextManager[None]:
    """:func:`transfer_guard` for transfers between devices only.

    They are implicit if a program moves an argument to other devices. Programs themselves move arrays among their
    devices, and between virtual devices nothing moves.

    Example:
      >>> x = mw.device_put(np.arange(3), mw.devices()[0])
      >>> with mw.transfer_guard_device_to_device("disallow_explicit"):
      ...     try:
      ...         mw.device_put(x, mw.devices()[1])
      ...     except mw.errors.TransferError as error:
      ...         print(str(error)[:47])
      explicit device-to-device transfer of i32[3], w
    """
    return config.override("transfer_guard_device_to_device", new_val)


def transfer_guard_device_to_host(new_val: str) -> AbstractContextManager[None]:
    """:func:`transfer_guard` for transfers to the host only. CPU arrays are there already.

    Example:
      >>> with mw.transfer_guard_device_to_host("disallow"):
      ...     mw.device_get(mnp.arange(2)).tolist()
      [0, 1]
    """
    return config.override("transfer_guard_device_to_host", new_val)


# --- options of JAX that are none here ----------------------------------------------------------------------
def _context(name: str) -> Callable[..., AbstractContextManager[None]]:
    def within(new_val: Any) -> AbstractContextManager[None]:
        return config.override(name, new_val)

    return _named(within, name)


def _switch(name: str) -> Callable[..., AbstractContextManager[None]]:
    def within(new_val: bool = True) -> AbstractContextManager[None]:
        return config.override(name, new_val)

    return _named(within, name)


def _named(within: Callable[..., Any], name: str) -> Callable[..., AbstractContextManager[None]]:
    within.__name__ = within.__qualname__ = name
    within.__doc__ = (
        f"JAX's option ``{name}`` in the ``with`` block; values that change what is so here are refused "
        "(:mod:`meshwright.core.jax_options`)."
    )
    return within


allow_f16_reductions = _switch("allow_f16_reductions")
array_garbage_collection_guard = _context("array_garbage_collection_guard")
enable_checks = _switch("enable_checks")
legacy_prng_key = _context("legacy_prng_key")
softmax_custom_jvp = _switch("softmax_custom_jvp")
thread_guard = _switch("thread_guard")
threefry_partitionable = _switch("threefry_partitionable")
