"""Configuration: options that can be set with ``config.update``, in a ``with`` block, or by an environment variable.

``MESHWRIGHT_<OPTION>`` in the environment sets the initial value; for ``num_devices``, so does
``XLA_FLAGS=--xla_force_host_platform_device_count=8``. ``update`` applies to all threads, ``override`` to the block and
the thread that runs it: class attributes hold the values of the process, thread-local attributes those of the thread.

Options that affect traces are part of the key of every cache, as one object ``config.tracing``. So changing one clears
nothing, and after changing it back, compiled programs are found again. Options of the runtime (``num_devices``) are
frozen once it has started.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from meshwright.core.jax_options import JAX_NAMES, has_value, is_as_it_is, names, settled, value_of
from meshwright.core.key_types import KEY_TYPES
from meshwright.core.precision import PRECISIONS, DotAlgorithmPreset
from meshwright.core.records import dataclass
from meshwright.errors import ConfigError


@dataclass(frozen=True)
class Option:
    """The allowed values of an option: one of ``choices``, ``accepts(value)``, or else the type of its default."""

    default: Any
    choices: tuple[Any, ...] = ()
    accepts: Callable[[Any], bool] | None = None
    expected: str = ""
    #: whether traces or compiled programs depend on it
    traced: bool = False


def _is_path(value: Any) -> bool:
    return value is None or isinstance(value, (str, os.PathLike))


#: the environment variable with PJRT plugins, ``name:path,name:path``, as in JAX
PLUGINS_VARIABLE = "PJRT_NAMES_AND_LIBRARY_PATHS"


def _is_platform(value: str) -> bool:
    """Whether it names a platform; whether that is available, the runtime checks later."""
    named = (entry.partition(":")[0].strip() for entry in os.environ.get(PLUGINS_VARIABLE, "").split(","))
    return value in ("cpu", "cuda", "tpu") or value in filter(None, named)


def _is_device(value: Any) -> bool:
    if isinstance(value, str):
        return platform_named(value) == config.platform  # only one platform is in use at a time
    return value is None or (hasattr(value, "platform") and hasattr(value, "id"))


def _half_of_memory() -> int:
    """Half of the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


#: treatment of transfers; those without "explicit" apply only to implicit transfers
GUARDS = (None, "allow", "log", "disallow", "log_explicit", "disallow_explicit")
OPTIONS: dict[str, Option] = {
    "num_devices": Option(1, accepts=lambda v: v > 0, expected="a positive number"),
    "real_devices": Option(0, accepts=lambda v: v >= 0, expected="a number of devices, or 0 for the platform's own"),
    "platform": Option(
        "cpu", accepts=_is_platform, expected=f"cpu, cuda (or gpu), tpu, or a name in {PLUGINS_VARIABLE}"
    ),
    "collective_timeout": Option(60.0, accepts=lambda v: v > 0, expected="a positive number of seconds"),
    "enable_x64": Option(False, traced=True),
    "debug_nans": Option(False),
    "debug_infs": Option(False),
    "debug_key_reuse": Option(False, traced=True),
    "disable_jit": Option(False),
    "check_tracer_leaks": Option(False, traced=True),
    "log_compiles": Option(False),
    "explain_cache_misses": Option(False),
    "dump_ir": Option(None, accepts=_is_path, expected="a folder's path or None"),
    "verify_passes": Option(False),
    "traceback_in_locations_limit": Option(
        10, accepts=lambda v: v == -1 or v > 0, expected="a positive number of frames, or -1 for all", traced=True
    ),
    "traceback_filtering": Option("auto", ("auto", "off", "remove_frames", "quiet_remove_frames")),
    "compilation_cache_dir": Option(None, accepts=_is_path, expected="a folder's path or None"),
    "persistent_cache_min_compile_time_secs": Option(0.05, accepts=lambda v: v >= 0, expected="a number of seconds"),
    "compilation_cache_max_size": Option(-1, accepts=lambda v: v >= -1, expected="a number of bytes, or -1 for any"),
    "default_prng_impl": Option("threefry2x32", tuple(KEY_TYPES), traced=True),
    "enable_custom_prng": Option(False, traced=True),
    "default_matmul_precision": Option(None, (None, *PRECISIONS, *DotAlgorithmPreset.__members__), traced=True),
    "numpy_rank_promotion": Option("allow", ("allow", "warn", "raise"), traced=True),
    "numpy_dtype_promotion": Option("standard", ("standard", "strict"), traced=True),
    "load_seconds": Option(60, accepts=lambda v: v > 0, expected="a positive number"),
    "load_memory": Option(_half_of_memory(), accepts=lambda v: v > 0, expected="a positive number of bytes"),
    "target_seconds": Option(3600, accepts=lambda v: v > 0, expected="a positive number"),
    "target_memory": Option(_half_of_memory(), accepts=lambda v: v > 0, expected="a positive number of bytes"),
    "transfer_guard": Option(None, GUARDS),
    "transfer_guard_host_to_device": Option(None, GUARDS),
    "transfer_guard_device_to_device": Option(None, GUARDS),
    "transfer_guard_device_to_host": Option(None, GUARDS),
    "move_arguments": Option(False),
    "enable_compilation_cache": Option(True),
    "persistent_cache_min_entry_size_bytes": Option(0, accepts=lambda v: v >= -1, expected="a number of bytes, or -1"),
    "random_seed_offset": Option(0, traced=True),
    "reproducible_sums": Option(False, traced=True),
    "use_shardy_partitioner": Option(True),
    "default_device": Option(
        None, accepts=_is_device, expected="a device (see devices()), the platform's name or None", traced=True
    ),
}
#: settings for programs (``dtypes.wide_types``, ``checkify``), not options for users
_SCOPED = {"wide_types": False, "automatic_checks": frozenset()}
_TRACED = (*(name for name, option in OPTIONS.items() if option.traced), *_SCOPED)
_AT_CALLS = ("disable_jit", "debug_nans", "debug_infs", "debug_key_reuse")


class Setting:
    """The values of the options that affect traces. Equal settings are the same object, so hashing is cheap."""

    __slots__ = ("values",)
    _known: dict[tuple[Any, ...], Setting] = {}

    def __new__(cls, values: tuple[Any, ...]) -> Setting:
        setting = cls._known.get(values)
        if setting is None:
            setting = object.__new__(cls)
            setting.values = values
            setting = cls._known.setdefault(values, setting)
        return setting

    values: tuple[Any, ...]

    def __reduce__(self) -> Any:
        return Setting, (self.values,)

    def differences(self, before: Setting) -> Iterator[str]:
        """What differs from an earlier setting, in words."""
        for name, was, now in zip(_TRACED, before.values, self.values):
            if was != now:
                yield f"{name}: {was!r} → {now!r}"

    def __repr__(self) -> str:
        return f"Setting({dict(zip(_TRACED, self.values))})"


class Config(threading.local):
    """The options. Read as attributes, change with :meth:`update` or :meth:`override`."""

    #: devices of this process, which share its real devices
    num_devices: int
    #: real devices of XLA that compute for them; 0: one CPU device, or all devices of an accelerator
    real_devices: int
    platform: str
    #: seconds after which a collective that waits for another process fails
    collective_timeout: float
    enable_x64: bool
    debug_nans: bool
    debug_infs: bool
    disable_jit: bool
    check_tracer_leaks: bool
    log_compiles: bool
    #: whether it is logged why a jitted function is compiled once more
    explain_cache_misses: bool
    #: folder to which the program is written after every pass; None: do not write
    dump_ir: str | os.PathLike[str] | None
    #: whether the program is verified after every pass
    verify_passes: bool
    #: the number of user frames in a location in a program's text; -1: all
    traceback_in_locations_limit: int
    #: whether errors show our own frames: "off" shows them; the quiet form does not mention that they are hidden
    traceback_filtering: str
    #: folder in which compiled programs are kept for other processes; None: none. Convolutions then avoid oneDNN
    compilation_cache_dir: str | os.PathLike[str] | None
    #: programs that compile faster are not cached on disk
    persistent_cache_min_compile_time_secs: float
    #: in bytes; least recently used programs are evicted; -1: no limit
    compilation_cache_max_size: int
    #: whether the folder is used
    enable_compilation_cache: bool
    #: in bytes; smaller programs are not cached on disk
    persistent_cache_min_entry_size_bytes: int
    #: added to every seed of a random key
    random_seed_offset: int
    #: whether sums over devices have a fixed order, the same for virtual and real devices and for processes
    reproducible_sums: bool
    #: whether texts of traced programs state shardings in Shardy's dialect, or in GSPMD's notation
    use_shardy_partitioner: bool
    default_prng_impl: str
    enable_custom_prng: bool
    default_matmul_precision: str | None
    numpy_rank_promotion: str
    numpy_dtype_promotion: str
    #: limits for reading a program: seconds (plus one for every 0.5 MB of it), bytes of memory
    load_seconds: int
    load_memory: int
    #: limits for compiling for a target: seconds, bytes of this computer's memory
    target_seconds: int
    target_memory: int
    #: for transfers of all kinds, and for each kind; None: as ``transfer_guard``, whose default allows all
    transfer_guard: str | None
    transfer_guard_host_to_device: str | None
    transfer_guard_device_to_device: str | None
    transfer_guard_device_to_host: str | None
    default_device: Any
    #: whether 64-bit types are kept without ``enable_x64``
    wide_types: bool
    #: what ``checkify`` will look for in all ops of what is traced, by the names of its sets of checks
    automatic_checks: frozenset[str]
    #: represents the values of the options that affect traces; part of the key of every cache of traces and programs
    tracing: Setting
    #: whether calls of compiled programs do more than run them, since one of ``_AT_CALLS`` is on
    at_calls: bool
    _frozen: dict[str, str] = {}

    def update(self, name: str, value: Any) -> None:
        """Set option ``name`` to ``value``, for all threads (except in their :meth:`override` blocks).

        Raises:
          ConfigError: an unknown option, an invalid value, or an option that is already in use.
        """
        if isinstance(name, str) and is_as_it_is(name, value):
            return
        name, value = self._checked(name, value)
        if value == getattr(self, name):
            return
        if name in self._frozen:
            raise ConfigError(f"config.update({name!r}): {self._frozen[name]}")
        shared = type(self)
        setattr(shared, name, value)
        _summarize(shared)
        if self.__dict__:
            self._set_here(name, value)

    def read(self, name: str) -> Any:
        """The value of an option; prefer the attribute of ``config``.

        Raises:
          AttributeError: an unknown option.
        """
        return getattr(self, name)

    def parse_flags_with_absl(self) -> None:
        """Has no effect: options are set by :meth:`update` and ``MESHWRIGHT_...`` in the environment, not by flags."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise ConfigError(f"config.{name}: options are not assigned to; call config.update({name!r}, {value!r})")

    def freeze(self, name: str, why: str) -> None:
        """Refuse later changes of ``name``, giving the reason ``why``."""
        self._frozen.setdefault(name, why)

    @contextmanager
    def override(self, name: str, value: Any) -> Iterator[None]:
        """Set an option within a ``with`` block, in this thread.

        Raises:
          ConfigError: an unknown option, or an invalid value.
        """
        is_settled = isinstance(name, str) and has_value(name.removeprefix("jax_"))
        with settled(name, value) if is_settled else self.within(*self._checked(name, value)):
            yield

    @contextmanager
    def within(self, name: str, value: Any) -> Iterator[None]:
        """:meth:`override` for settings that are not options, but set for programs."""
        before = dict(self.__dict__)
        self._set_here(name, value)
        try:
            yield
        finally:
            self.__dict__.clear()
            self.__dict__.update(before)

    def _set_here(self, name: str, value: Any) -> None:
        # All values in the summary become thread-local, so that another thread's update does not make it wrong.
        values = {n: getattr(self, n) for n in (*_TRACED, *_AT_CALLS)} | {name: value}
        self.__dict__.update(values)
        self.__dict__.update(_summaries(values))

    def _checked(self, name: str, value: Any) -> tuple[str, Any]:
        """The option's own name, given that or JAX's, and its value.

        Raises:
          ConfigError: an unknown option, or an invalid value.
        """
        if not isinstance(name, str):
            raise ConfigError(f"config.update: expected the name of an option, got {name!r}")
        name = name.removeprefix("meshwright_").removeprefix("jax_")
        name = JAX_NAMES.get(name, name)
        if name == "dump_ir" and value == "":  # means None in JAX
            value = None
        if name == "platform" and (value is None or isinstance(value, str)):
            value = platform_named(value)
        option = OPTIONS.get(name)
        if option is None:
            raise ConfigError(f"config.update: unknown option {name!r}; the options are {', '.join(OPTIONS)}")
        default = option.default
        if option.choices and value not in option.choices:
            choices = ", ".join(map(repr, option.choices))
            raise ConfigError(f"config.update({name!r}): expected one of {choices}, got {value!r}")
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if default is not None and type(value) is not type(default):
            raise ConfigError(
                f"config.update({name!r}): expected {type(default).__name__}, got {value!r} of type "
                f"{type(value).__name__}"
            )
        if option.accepts is not None and not option.accepts(value):
            raise ConfigError(f"config.update({name!r}): expected {option.expected}, got {value!r}")
        return name, value

    def __repr__(self) -> str:
        """The options that differ from their defaults."""
        changed = {n: getattr(self, n) for n, o in OPTIONS.items() if getattr(self, n) != o.default}
        return f"Config({', '.join(f'{n}={v!r}' for n, v in changed.items())})"

    def __reduce__(self) -> str:
        return "config"  # a singleton: copies are the object itself, and pickles refer to it by name

    @property
    def x64_enabled(self) -> bool:
        """``enable_x64``, as programs for JAX also read it."""
        return self.enable_x64

    @property
    def values(self) -> dict[str, Any]:
        """A copy of all options under JAX's names, ``jax_enable_x64`` and others, as programs for JAX read them."""
        return {f"jax_{name}": getattr(self, name) for name in (*OPTIONS, *JAX_NAMES, *names())}

    def __getattr__(self, name: str) -> Any:
        known = JAX_NAMES.get(name.removeprefix("jax_"), name.removeprefix("jax_"))
        if known != name and known in OPTIONS:
            return getattr(self, known)
        if has_value(known):
            return value_of(known)
        raise ConfigError(f"there is no option {name!r}; the options are {', '.join(OPTIONS)}")


def _summaries(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values derived from options, so that calls need only look up one attribute."""
    return {"tracing": Setting(tuple(values[n] for n in _TRACED)), "at_calls": any(values[n] for n in _AT_CALLS)}


def _summarize(shared: type[Config]) -> None:
    for name, value in _summaries(vars(shared)).items():
        setattr(shared, name, value)


def platform_named(text: str | None) -> str:
    """The platform for JAX's name of it; of a list, the first."""
    platform = (text or "cpu").partition(",")[0].strip()
    return "cuda" if platform == "gpu" else platform


def _parse(name: str, default: Any, text: str) -> Any:
    """Parse an option's value from the environment.

    Raises:
      ConfigError: invalid text.
    """
    variable = "MESHWRIGHT_" + name.upper()
    if isinstance(default, bool):
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off", ""):
            return False
        raise ConfigError(f"{variable}: expected 0 or 1, got {text!r}")
    if isinstance(default, (int, float)):
        try:
            value = type(default)(text)
        except ValueError:
            raise ConfigError(f"{variable}: expected a number, got {text!r}") from None
        accepts = OPTIONS[name].accepts
        if accepts is not None and not accepts(value):
            raise ConfigError(f"{variable}: expected {OPTIONS[name].expected}, got {text!r}")
        return value
    if OPTIONS[name].choices and text not in OPTIONS[name].choices:
        raise ConfigError(f"{variable}: expected one of {', '.join(map(str, OPTIONS[name].choices))}, got {text!r}")
    if name != "platform":
        return text
    if not _is_platform(platform := platform_named(text)):
        raise ConfigError(f"{variable}: expected {OPTIONS[name].expected}, got {text!r}")
    return platform


_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count[= ](\d+)")


def _in_environment(name: str) -> str | None:
    """The text of an option in the environment: its own variable, or for the number of devices that of JAX."""
    own = os.environ.get("MESHWRIGHT_" + name.upper())
    if own is not None or name != "num_devices":
        return own
    flag = _DEVICE_COUNT.search(os.environ.get("XLA_FLAGS", ""))
    return flag[1] if flag else os.environ.get("JAX_NUM_CPU_DEVICES")


def _initialize() -> Config:
    """The options with their values from defaults and the environment."""
    for name, option in OPTIONS.items():
        text = _in_environment(name)
        value = option.default if text is None or name == "default_device" else _parse(name, option.default, text)
        setattr(Config, name, value)
    for name, value in _SCOPED.items():
        setattr(Config, name, value)
    _summarize(Config)
    return Config()


config = _initialize()
