"""Ahead-of-time compilation for hardware that need not be present: targets, placement, compiler processes, reports."""

from meshwright.targets.report import TargetReport
from meshwright.targets.saved import SavedExecutable, load_executable
from meshwright.targets.topology import CompileTarget, TargetDevice, target

__all__ = ["CompileTarget", "SavedExecutable", "TargetDevice", "TargetReport", "load_executable", "target"]
