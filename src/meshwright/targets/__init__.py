"""Compiling for hardware that one does not own: names, placement, the compilers' processes, and what they report."""

from meshwright.targets.report import TargetReport
from meshwright.targets.saved import SavedExecutable, load_executable
from meshwright.targets.topology import CompileTarget, TargetDevice, target

__all__ = ["CompileTarget", "SavedExecutable", "TargetDevice", "TargetReport", "load_executable", "target"]
