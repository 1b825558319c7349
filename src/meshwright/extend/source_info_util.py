"""``jax.extend.source_info_util``: locations in users' programs, and what they skip."""

from meshwright.core.absent import absent as _absent
from meshwright.core.source import SourceLocation as SourceInfo
from meshwright.core.source import current, register_exclusion

__all__ = ["SourceInfo", "current", "register_exclusion", "summarize"]

__getattr__ = _absent("extend.source_info_util")


def summarize(source_info: SourceInfo, num_frames: int = 1) -> str:
    """The file, line and function of a location, and of the calls that led there: ``num_frames`` lines in all.

    Example:
      >>> from meshwright.extend import source_info_util
      >>> source_info_util.summarize(source_info_util.SourceInfo.at("model.py", 7, "apply"))
      'model.py:7 (apply)'
    """
    return "\n".join(str(place) for place, _ in zip(source_info.stack, range(num_frames)))
