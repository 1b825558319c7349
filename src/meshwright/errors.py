"""The exception tree of Meshwright.

Every error says which argument or op is meant, what was expected, what came, and what to do about it. Where
Python or NumPy programmers expect a builtin exception (``TypeError`` for a wrong type, ``ValueError`` for a
wrong value, ``IndexError`` ...), ours derives from it too, so that code written against JAX keeps working.
"""

from __future__ import annotations

from typing import Any


class MeshwrightError(Exception):
    """Base of every error that Meshwright raises on purpose."""


# --- programs -----------------------------------------------------------------------------------------------
class ArgumentError(MeshwrightError, ValueError):
    """An argument of a public function has a value that cannot be used."""


class IntegerRangeError(ArgumentError, OverflowError):
    """A Python integer beside an array whose dtype cannot hold it. NumPy raises ``OverflowError``."""


class ArgumentNumberError(ArgumentError, TypeError):
    """The number of an argument that the function was not called with, or one twice. JAX raises either error."""


class AxisError(ArgumentError, IndexError):
    """There is no such axis. NumPy's ``AxisError`` is a ``ValueError`` and an ``IndexError``, so this is both."""


class ArgumentTypeError(MeshwrightError, TypeError):
    """An argument of a public function has the wrong type (not an array, unhashable static argument, ...)."""


class StaticArgumentError(ArgumentTypeError, ValueError):
    """A static argument that is not hashable. Python raises ``TypeError`` and JAX ``ValueError``, so this is both."""


class NestingError(MeshwrightError, RecursionError):
    """Functions call each other, or containers hold each other, more deeply than can be followed."""


class ShapeError(MeshwrightError, TypeError, ValueError):
    """Operand shapes do not fit the op. JAX raises ``TypeError`` here and NumPy ``ValueError``, so this is both."""


class DTypeError(MeshwrightError, TypeError):
    """Operand dtypes do not fit the op or each other."""


class DrawnTypeError(DTypeError, ValueError):
    """A dtype in which a function of random numbers has none. JAX raises ``ValueError``."""


class TypePromotionError(DTypeError, ValueError):
    """Operands whose dtypes go together in no way, or in none that ``numpy_dtype_promotion`` allows."""


class JAXIndexError(MeshwrightError, IndexError):
    """What programs written for JAX catch of errors of indices."""


class JAXTypeError(MeshwrightError, TypeError):
    """What programs written for JAX catch of errors of traced values."""


class IndexingError(JAXIndexError, TypeError):
    """An index expression that is not understood, or is out of range where that is an error.

    Of an index that is no integer JAX raises ``TypeError`` and NumPy ``IndexError``, so this is both.
    """


class TracerError(JAXTypeError):
    """A traced value was used where a concrete one is needed."""


class ConcretizationTypeError(TracerError):
    """A traced value was needed as a concrete one (``float(x)``, a shape, ...)."""


class TracerBoolConversionError(ConcretizationTypeError):
    """Python control flow (``if``, ``while``, ``and``) on a traced value."""


class TracerIntegerConversionError(TracerError):
    """A traced value was used as a Python integer or index."""


class TracerArrayConversionError(TracerError):
    """A traced value was handed to NumPy, or to something else that reads the memory of an array."""


class NonConcreteBooleanIndexError(ConcretizationTypeError, JAXIndexError):
    """``x[mask]`` with a traced mask, whose number of true elements, and so the result's shape, is not known."""


class UnexpectedTracerError(TracerError):
    """A tracer was used after the function that was being traced had returned."""


class InconclusiveDimensionOperation(MeshwrightError):
    """Of dimensions that are not known it cannot be said how they compare.

    Dimensions are numbers here, so that this is not raised; programs written for JAX may name it.
    """


class KeyReuseError(MeshwrightError, TypeError):
    """A random key was used twice where that is an error."""


class DifferentiationError(MeshwrightError, TypeError):
    """A derivative was asked for that does not exist (integer input, non-scalar output of ``grad``, ...)."""


class TangentMismatchError(DifferentiationError, ValueError):
    """A tangent or cotangent that has not the structure or type of what it belongs to.

    JAX raises ``ValueError`` for some of these and ``TypeError`` for others, so this is both.
    """


class LoopDerivativeError(DifferentiationError, ValueError):
    """Reverse mode of a loop whose number of steps is not known; ``ValueError``, as JAX raises it."""


class UnboundAxisError(MeshwrightError, NameError):
    """A collective names a mesh axis that is not in scope."""


class ImmutableArrayError(MeshwrightError, TypeError):
    """``x[i] = y`` on an array; arrays are immutable, use ``x = x.at[i].set(y)``."""


class DeletedArrayError(MeshwrightError, RuntimeError):
    """An array was used after its buffer was donated or deleted."""


class ProfilerError(ArgumentError, RuntimeError):
    """A profile (or a server of profiles) is started while there is one, or stopped while there is none."""


class DLPackError(MeshwrightError, BufferError):
    """An array cannot be handed over as the consumer asked."""


class NonFiniteError(MeshwrightError, FloatingPointError):
    """A NaN or infinity appeared while checking for them was on."""


class JaxprTypeError(MeshwrightError, TypeError):
    """A jaxpr whose types do not fit each other."""


class VerifierError(JaxprTypeError):
    """A jaxpr is malformed: a bug in the pass that made it."""


class RuleError(MeshwrightError, NotImplementedError):
    """An op has no rule for the transformation that was asked for."""


# --- shardings ----------------------------------------------------------------------------------------------
class ShardingError(MeshwrightError, ValueError):
    """A sharding that does not fit the array or the mesh."""


class ShardingTypeError(ShardingError, TypeError):
    """Explicit shardings: types that do not go together, or a result that could be split in several ways."""


class MeshError(ShardingError):
    """A mesh that cannot be made, or two meshes where one was expected."""


class ShardingSyntaxError(ShardingError):
    """Sharding text that cannot be read."""


class PartitionError(MeshwrightError):
    """A program that cannot be partitioned as asked."""


class MemoryLimitError(PartitionError):
    """A program that needs more memory than a device has, or than was allowed, in every way that was found."""


class VerificationError(MeshwrightError):
    """The partitioned program and the unpartitioned one give different results, or none that can be compared.

    ``first`` is where they first differ, if that was found: the equation on a device, what it stands for, by how much.
    """

    first: Any = None


# --- programs from elsewhere and running --------------------------------------------------------------------
class ImportProgramError(MeshwrightError, ValueError):
    """HLO or StableHLO that cannot be read; names file and line where they are known."""


class ContractError(MeshwrightError, AssertionError):
    """A partitioned program is not what its contract says."""


class WeightsError(MeshwrightError, ValueError):
    """Weights that cannot be read, or do not fit the model: names or shapes differ."""


class JaxRuntimeError(MeshwrightError, RuntimeError):
    """A program could not be compiled or run; the name that programs written for JAX know."""


class TransferError(JaxRuntimeError):
    """A value moved between host and devices, or devices, where a transfer guard refuses it."""


class CompileError(JaxRuntimeError):
    """XLA refused a program."""


class MissingExtraError(MeshwrightError, ImportError):
    """A package that only some of the library needs is not installed, or in a version that does not fit."""


class LeftOutError(MeshwrightError, ModuleNotFoundError):
    """An import of what JAX has and is left out here; says what to use instead."""


class CallbackError(JaxRuntimeError):
    """A Python function that a program calls raised, or returned something else than it was declared to."""


class CheckError(MeshwrightError, ValueError):
    """A check that the program made of its own values failed."""


class DeviceError(JaxRuntimeError):
    """A device that does not exist, or a backend that failed."""


class DistributedError(DeviceError):
    """Processes that compute together could not find each other, or one of them failed.

    ``ranks`` are the processes that failed, as far as they are known.
    """

    ranks: tuple[int, ...] = ()


class ProgramMismatchError(DistributedError):
    """Processes were about to run different programs together; says which, and where they first differ."""


class CheckpointError(MeshwrightError, OSError):
    """A checkpoint that cannot be written or read, is damaged, or is of another tree."""


class CheckpointDamagedError(CheckpointError):
    """A checkpoint whose files are not as they were written: cut off, missing, changed, or of another one."""


class ConfigError(MeshwrightError, ValueError, AttributeError):
    """A configuration option that does not exist (JAX: ``AttributeError``) or cannot be changed any more."""


class FileError(MeshwrightError, OSError):
    """A file or folder that the caller named cannot be read or written."""


class MissingFileError(FileError, FileNotFoundError):
    """There is no such file or folder."""


class DumpError(FileError):
    """What a program looks like on its way could not be written to a folder."""


# --- warnings -----------------------------------------------------------------------------------------------
class MeshwrightWarning(UserWarning):
    """Base of every warning; ``warnings.simplefilter("error", MeshwrightWarning)`` makes them errors."""


class ReplicationWarning(MeshwrightWarning):
    """The partitioner fell back to replicating a value that could not be kept sharded."""


class RedundancyWarning(MeshwrightWarning):
    """Devices repeat each other's arithmetic."""


class PaddingWarning(MeshwrightWarning):
    """A dimension was padded because a mesh axis does not divide it."""


class MutationWarning(MeshwrightWarning):
    """A program from elsewhere writes to its arguments, which a pure function cannot."""


class PlanWarning(MeshwrightWarning):
    """A plan of shardings has entries that no parameter has the name of."""


class DerivativeWarning(MeshwrightWarning):
    """A derivative is that of a program's operations, where rules that the program does not have may be others."""


class ElidedConstantWarning(MeshwrightWarning):
    """A program's text leaves the values of large constants out; they were read as zeros."""


class CompilationCacheWarning(MeshwrightWarning):
    """A compiled program could not be read from ``compilation_cache_dir``, or not be written to it."""


class CheckpointWarning(MeshwrightWarning):
    """A damaged checkpoint was passed over."""


class DTypeWarning(MeshwrightWarning):
    """A dtype was narrowed: a requested one that is not available (64-bit types without ``enable_x64``), or that of
    values that were written into an array of another one."""


class RankPromotionWarning(MeshwrightWarning):
    """Operands of different ranks were broadcast together, and ``numpy_rank_promotion`` is ``"warn"``."""


class RecompilationWarning(MeshwrightWarning):
    """A program is compiled for each value of what changes from call to call."""


class DonationWarning(MeshwrightWarning):
    """A donated argument could not be reused."""


class PlacementWarning(MeshwrightWarning):
    """A value of a program was to be put on one device, and stays where the program runs."""


class MovedArgumentWarning(MeshwrightWarning):
    """``config.move_arguments``: an argument was moved to the sharding that a function takes it with."""
