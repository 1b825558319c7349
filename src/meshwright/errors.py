"""The errors and warnings of Meshwright.

Every message names the argument or op, what was expected, what was given, and the remedy. Errors also derive from the
builtin exception that JAX or NumPy raises in the same place (``TypeError`` for a wrong type, ``ValueError`` for a wrong
value, ``IndexError``, ...), so that code written for them keeps working.
"""

from __future__ import annotations

from typing import Any


class MeshwrightError(Exception):
    """Base class of all errors that Meshwright raises."""


# --- programs -----------------------------------------------------------------------------------------------
class ArgumentError(MeshwrightError, ValueError):
    """An argument of a public function has an invalid value."""


class IntegerRangeError(ArgumentError, OverflowError):
    """A Python integer does not fit the dtype of the array that it is combined with. NumPy: ``OverflowError``."""


class ArgumentNumberError(ArgumentError, TypeError):
    """An argument number is out of range for the call, or repeats. JAX raises either of both builtin errors."""


class SizeError(ArgumentError, TypeError):
    """A size in a shape is negative. NumPy raises ``ValueError`` and JAX ``TypeError``."""


class AxisError(ArgumentError, IndexError):
    """An axis is out of range. Like NumPy's ``AxisError``, it is a ``ValueError`` and an ``IndexError``."""


class ArgumentTypeError(MeshwrightError, TypeError):
    """An argument of a public function has the wrong type (not an array, unhashable static argument, ...)."""


class NoArrayError(ArgumentTypeError, ValueError):
    """No array can be made of a value, such as None. JAX raises either of both builtin errors."""


class WideIntegerError(ArgumentTypeError, OverflowError):
    """A Python integer does not fit the default integer dtype."""


class MissingRuleError(ArgumentError, AttributeError):
    """A function with rules of its own was called before they were set."""


class StaticArgumentError(ArgumentTypeError, ValueError):
    """A static argument is not hashable. Python raises ``TypeError`` and JAX ``ValueError``, so this is both."""


class NestingError(MeshwrightError, RecursionError):
    """Calls or containers are nested too deeply."""


class ShapeError(MeshwrightError, TypeError, ValueError):
    """Operand shapes do not fit the op. JAX raises ``TypeError`` here and NumPy ``ValueError``, so this is both."""


class DTypeError(MeshwrightError, TypeError):
    """Operand dtypes do not fit the op or each other."""


class DrawnTypeError(DTypeError, ValueError):
    """A function of random numbers does not support the dtype. JAX raises ``ValueError``."""


class LimitsTypeError(DTypeError, ValueError):
    """``finfo`` of a dtype that is not a float, or ``iinfo`` of one that is not an integer."""


class TypePromotionError(DTypeError, ValueError):
    """There is no common dtype for the operands, or ``numpy_dtype_promotion`` does not allow the promotion."""


class JAXIndexError(MeshwrightError, IndexError):
    """Base class of errors for invalid indices, under JAX's name."""


class JAXTypeError(MeshwrightError, TypeError):
    """Base class of errors for traced values, under JAX's name."""


class IndexingError(JAXIndexError, TypeError):
    """An index expression is invalid, or out of range where that is an error.

    For an index that is not an integer, JAX raises ``TypeError`` and NumPy ``IndexError``, so this is both.
    """


class TracerError(JAXTypeError):
    """A traced value was used where a concrete value is needed."""


class ConcretizationTypeError(TracerError):
    """A traced value would have to become a concrete one (``float(x)``, a shape, ...)."""


class TracerBoolConversionError(ConcretizationTypeError):
    """Python control flow (``if``, ``while``, ``and``) on a traced value."""


class TracerIntegerConversionError(ConcretizationTypeError):
    """A traced value was used as a Python integer or index."""


class TracerArrayConversionError(TracerError):
    """A traced value was passed to NumPy, or to other code that reads the memory of an array."""


class NonConcreteBooleanIndexError(ConcretizationTypeError, JAXIndexError):
    """``x[mask]`` with a traced mask: the number of true elements, and so the result's shape, is unknown."""


class UnexpectedTracerError(TracerError):
    """A tracer was used after the function that was being traced had returned."""


class InconclusiveDimensionOperation(MeshwrightError):
    """Symbolic sizes are compared, or used as numbers, where that depends on their values."""


class KeyReuseError(MeshwrightError, TypeError):
    """A random key was used twice while reuse is checked."""


class DifferentiationError(MeshwrightError, TypeError):
    """The requested derivative does not exist (integer input, non-scalar output of ``grad``, ...)."""


class TangentMismatchError(DifferentiationError, ValueError):
    """A tangent or cotangent has another tree structure or type than its primal value.

    JAX raises ``ValueError`` for some of these and ``TypeError`` for others, so this is both.
    """


class LoopDerivativeError(DifferentiationError, ValueError):
    """Reverse mode of a loop with an unknown number of steps. JAX raises ``ValueError``."""


class UnboundAxisError(MeshwrightError, NameError):
    """A collective names an axis that is not in scope."""


class ImmutableArrayError(MeshwrightError, TypeError):
    """``x[i] = y`` on an array; arrays are immutable, use ``x = x.at[i].set(y)``."""


class DeletedArrayError(MeshwrightError, RuntimeError, ValueError):
    """An array was used after its buffer was donated or deleted. JAX raises either of both builtin errors."""


class ProfilerError(ArgumentError, RuntimeError):
    """A profile or profiler server is started while one is running, or stopped while none is."""


class DLPackError(MeshwrightError, BufferError):
    """An array cannot be shared through DLPack in the requested way."""


class NonFiniteError(MeshwrightError, FloatingPointError):
    """A NaN or infinity was computed while ``debug_nans`` or ``debug_infs`` is on."""


class JaxprTypeError(MeshwrightError, TypeError):
    """The types in a jaxpr are inconsistent."""


class VerifierError(JaxprTypeError):
    """A jaxpr is malformed, because of a bug in the pass that produced it."""


class UnexportableError(MeshwrightError, NotImplementedError):
    """A program cannot be exported, as it calls Python functions of this process."""


class RuleError(MeshwrightError, NotImplementedError):
    """An op has no rule for the requested transformation."""


# --- shardings ----------------------------------------------------------------------------------------------
class ShardingError(MeshwrightError, ValueError):
    """A sharding does not fit the array or the mesh."""


class ShardingTypeError(ShardingError, TypeError):
    """With explicit shardings: types are incompatible, or a result could be split in several ways."""


class MeshError(ShardingError):
    """A mesh cannot be created, or there are several meshes where one was expected."""


class NoMeshError(MeshError, RuntimeError):
    """A spec names axes, and no mesh is set whose axes they are."""


class ShardingSyntaxError(ShardingError):
    """The text of a sharding cannot be parsed."""


class PartitionError(MeshwrightError):
    """A program cannot be partitioned as requested."""


class MemoryLimitError(PartitionError):
    """No way was found to run a program within the memory of a device, or within the given limit."""


class VerificationError(MeshwrightError):
    """The results of the partitioned and the unpartitioned program differ, or cannot be compared.

    ``first`` is the first difference, if it was found: the equation on a device, the equation that it stands for, and
    the size of the difference.
    """

    first: Any = None


# --- imported programs, and running -------------------------------------------------------------------------
class ImportProgramError(MeshwrightError, ValueError):
    """HLO or StableHLO cannot be read; the message names file and line if they are known."""


class ContractError(MeshwrightError, AssertionError):
    """A partitioned program violates its contract."""


class WeightsError(MeshwrightError, ValueError):
    """Weights cannot be read or written, or their names or shapes are not those of the model."""


class JaxRuntimeError(MeshwrightError, RuntimeError):
    """A program could not be compiled or run; base class under JAX's name."""


class TransferError(JaxRuntimeError):
    """A transfer guard refuses to move a value between host and devices, or between devices."""


class CompileError(JaxRuntimeError):
    """XLA rejected a program."""


class MissingExtraError(MeshwrightError, ImportError):
    """An optional package is not installed, or has an unsupported version."""


class LeftOutError(MeshwrightError, ModuleNotFoundError):
    """A module or name of JAX was imported that is left out here; the message says what to use instead."""


class CallbackError(JaxRuntimeError):
    """A Python function called by a program raised an exception, or returned other types than declared."""


class CheckError(MeshwrightError, ValueError):
    """A check in a program failed."""


class DeviceError(JaxRuntimeError):
    """A device does not exist, or a backend failed."""


class DistributedError(DeviceError):
    """Cooperating processes could not connect, or one of them failed.

    ``ranks`` are the processes that failed, as far as they are known.
    """

    ranks: tuple[int, ...] = ()


class ProgramMismatchError(DistributedError):
    """Processes are about to run different programs together; the message says where they first differ."""


class CheckpointError(MeshwrightError, OSError):
    """A checkpoint cannot be written or read, is damaged, or has another tree structure."""


class CheckpointDamagedError(CheckpointError):
    """Files of a checkpoint are truncated, missing, changed, or belong to another checkpoint."""


class ConfigError(MeshwrightError, ValueError, AttributeError):
    """A configuration option does not exist (JAX: ``AttributeError``), or can no longer be changed."""


class FileError(MeshwrightError, OSError):
    """A file or folder named by the caller cannot be read or written."""


class MissingFileError(FileError, FileNotFoundError):
    """A file or folder does not exist."""


class DumpError(FileError):
    """The stages of a program could not be dumped to a folder."""


# --- warnings -----------------------------------------------------------------------------------------------
class MeshwrightWarning(UserWarning):
    """Base class of all warnings; ``warnings.simplefilter("error", MeshwrightWarning)`` makes them errors."""


class ReplicationWarning(MeshwrightWarning):
    """The partitioner replicates a value because it cannot be kept sharded."""


class RedundancyWarning(MeshwrightWarning):
    """Devices compute the same values redundantly."""


class PaddingWarning(MeshwrightWarning):
    """A dimension was padded because a mesh axis does not divide it."""


class MutationWarning(MeshwrightWarning):
    """An imported program writes to its arguments or parameters, which a pure function cannot do."""


class ValueCheckWarning(MeshwrightWarning):
    """An imported program raises errors, or warns, depending on values, and the function made of it does not."""


class KernelWarning(MeshwrightWarning):
    """An imported program calls a kernel that runs on some hardware only."""


class PlanWarning(MeshwrightWarning):
    """A plan of shardings has entries that match no parameter."""


class DerivativeWarning(MeshwrightWarning):
    """A derivative is taken of a program's operations, without custom rules that the original function may have."""


class ElidedConstantWarning(MeshwrightWarning):
    """A program's text omits the values of large constants, which were read as zeros."""


class CompilationCacheWarning(MeshwrightWarning):
    """A compiled program could not be read from or written to ``compilation_cache_dir``."""


class CheckpointWarning(MeshwrightWarning):
    """A damaged checkpoint was skipped."""


class DTypeWarning(MeshwrightWarning):
    """A dtype was narrowed.

    Either a requested dtype is unavailable (64 bits without ``enable_x64``), or values were written into an array of
    another dtype.
    """


class LossyWriteWarning(DTypeWarning, FutureWarning):
    """Values were written into an array of a dtype that does not hold them all; JAX will refuse that."""


class RankPromotionWarning(MeshwrightWarning):
    """Operands of different ranks were broadcast together, and ``numpy_rank_promotion`` is ``"warn"``."""


class OptionWarning(MeshwrightWarning):
    """An option of JAX was set that has no effect here."""


class ConstantsWarning(MeshwrightWarning):
    """A program closes over more bytes than ``config.captured_constants_warn_bytes``."""


class RecompilationWarning(MeshwrightWarning):
    """A program is compiled again for each value of something that changes between calls."""


class DonationWarning(MeshwrightWarning):
    """A donated argument could not be reused."""


class PlacementWarning(MeshwrightWarning):
    """A placement on a single device inside of a program was ignored."""


class MovedArgumentWarning(MeshwrightWarning):
    """With ``config.move_arguments``: an argument was moved to the sharding that a function expects."""
