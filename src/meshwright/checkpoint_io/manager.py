"""The checkpoints of a training run: one per step, with removal of old ones and restoring of the latest intact one."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from meshwright.checkpoint_io.group import Group
from meshwright.checkpoint_io.index import NAME, REPLACED, WRITING
from meshwright.checkpoint_io.job import IN_WORK, Progress
from meshwright.checkpoint_io.parsing import read_index
from meshwright.checkpoint_io.reading import restore, settled
from meshwright.checkpoint_io.writing import Saving, save_in
from meshwright.core.expected import as_path
from meshwright.core.files import user_file
from meshwright.core.source import warn
from meshwright.core.static import static_index
from meshwright.errors import ArgumentError, CheckpointDamagedError, CheckpointError, CheckpointWarning
from meshwright.runtime.pjrt.world import WORLD

_STEP = re.compile(r"step_(\d+)")
#: the names of files and folders in a checkpoint
_PARTS = re.compile(rf"{NAME}|data-\d+(-\w+)?\.safetensors|_METADATA|d|manifest\.ocdbt.*|ocdbt\.process_.*")


class CheckpointManager:
    """The checkpoints in a folder, one per step: ``step_00000100``.

    Args:
      directory: the folder, which is created if necessary.
      keep: the number of latest checkpoints to keep; None for all.
      keep_best: the number of further checkpoints to keep, those with the best value of ``metric``. The best is the
        smallest (``mode="min"``) or the largest (``mode="max"``).
      metric, mode: see ``keep_best``.
      every: ``should_save(step)`` is true for multiples of it.
      format: the format as in :func:`save`.

    Only one run at a time may save in a folder; others may read what it saved. As a context manager, it waits at the
    end for the last checkpoint. Scripts written for Orbax find its ``all_steps``, ``best_step``,
    ``wait_until_finished`` and ``close``, too.

    Raises:
      ArgumentError: a number or ``mode`` is invalid.
      CheckpointError: the folder cannot be created.

    Example:
      >>> import tempfile
      >>> with mw.checkpoint_io.CheckpointManager(tempfile.mkdtemp(), keep=2) as manager:
      ...     for step in range(4):
      ...         _ = manager.save(step, {"w": mnp.full(3, step)})
      >>> manager.steps(), manager.restore()["w"]
      ([2, 3], Array([3, 3, 3], dtype=int32))
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, keep: int | None = 3, keep_best: int = 0, metric: str = "loss",
        mode: str = "min", every: int = 1, format: str = "safetensors",
    ) -> None:  # fmt: skip
        if (keep is not None and keep < 1) or keep_best < 0 or mode not in ("min", "max") or every < 1:
            raise ArgumentError(
                "CheckpointManager: expected keep >= 1 (or None), keep_best >= 0, mode 'min' or 'max', every >= 1, got "
                f"keep={keep}, keep_best={keep_best}, mode={mode!r}, every={every}"
            )
        self.directory = as_path("CheckpointManager: directory", directory).absolute()
        self.keep, self.keep_best, self.metric, self.mode = keep, keep_best, metric, mode
        self.every, self.format = every, format
        self._saving: Saving | None = None
        self._last: int | None = None
        self._is_clean = WORLD.rank != 0  # the first process cleans
        if WORLD.rank == 0:
            with user_file("CheckpointManager: directory", self.directory, CheckpointError):
                self.directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(self, *exception: object) -> None:
        self.wait()

    # --- existing checkpoints -------------------------------------------------------------------------------
    def folder(self, step: int) -> Path:
        """The folder of the checkpoint of a step."""
        return self.directory / f"step_{step:08d}"

    def steps(self) -> list[int]:
        """The steps with complete checkpoints, in order."""
        names = (p.name.removesuffix(REPLACED) for p in self.directory.glob("step_*"))
        steps = {int(m[1]) for m in map(_STEP.fullmatch, names) if m}
        return sorted(s for s in steps if (settled(self.folder(s)) / NAME).is_file())  # ignores names like step_5

    all_steps = steps

    def latest_step(self) -> int | None:
        return max(self.steps(), default=None)

    def best_step(self) -> int | None:
        return next(iter(self.best_steps()), None)

    def best_steps(self) -> list[int]:
        """The steps that have the metric, best first, without those whose metric is NaN."""
        known = [(self._metric(step), step) for step in self.steps()]
        sign = 1 if self.mode == "min" else -1
        ordered = sorted((sign * value, step) for value, step in known if value is not None and value == value)
        return [step for _, step in ordered]

    def _metric(self, step: int) -> float | None:
        """The metric of a step; None if it has none, or, with a warning, if the checkpoint is damaged."""
        try:
            return read_index(settled(self.folder(step))).metrics.get(self.metric)
        except CheckpointDamagedError as error:
            warn(f"step {step} is passed over: {error}", CheckpointWarning)
            return None

    # --- saving ---------------------------------------------------------------------------------------------
    def should_save(self, step: int) -> bool:
        """Whether ``step`` is a multiple of ``every``."""
        return step % self.every == 0

    def save(
        self, step: int, tree: Any, metrics: dict[str, float] | None = None, *, progress: Progress | None = None
    ) -> Saving:
        """Save the checkpoint of a step asynchronously, after waiting for the previous one.

        Args:
          step: an integer of at least 0.
          tree, metrics, progress: as in :func:`save`.

        Raises:
          CheckpointError: this step already has a checkpoint, or the previous one could not be written.
          ArgumentError: the step is negative.
          ArgumentTypeError: the step is not an integer, or a metric not a number.
        """
        step = static_index(step, "CheckpointManager.save", "the step")
        if step < 0:
            raise ArgumentError(f"CheckpointManager.save: expected a step of 0 or more, got {step}")
        group = Group()  # the other processes wait for this one, also where it only tidies up
        with group.told(f"save: {self.folder(step)} could not be written"):
            self.wait()
            later = [s for s in self.steps() if s > step]
            if later:
                warn(
                    f"step {step} is saved where there are later steps, {later[-1]} the last: a restart takes that "
                    "one; remove it if the run goes on from here",
                    CheckpointWarning,
                )
            self._clean()
        self._last = step
        self._saving = save_in(
            group, self.folder(step), tree, asynchronous=True, overwrite=False, format=self.format, progress=progress,
            step=step, metrics=metrics,
        )  # fmt: skip
        return self._saving

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, then remove those that are not kept.

        Raises:
          CheckpointError: it could not be written, unless its own ``wait`` has said so.
        """
        saving, self._saving = self._saving, None
        if saving is not None and not saving.has_told_failure:
            saving.wait()
            self._remove_old()

    wait_until_finished = close = wait

    def _remove_old(self) -> None:
        if WORLD.rank != 0 or self.keep is None:
            return
        steps = self.steps()
        best = self.best_steps()[: self.keep_best] if self.keep_best else ()
        kept = {*steps[-self.keep :], *best, self._last}  # the last saved one, even if there are later steps
        for step in steps:
            if step not in kept:
                with user_file("CheckpointManager: directory", self.folder(step), CheckpointError):
                    (self.folder(step) / NAME).unlink()  # without its index, the folder is no longer a checkpoint
                shutil.rmtree(self.folder(step), ignore_errors=True)

    def _clean(self) -> None:
        """Once, before the first checkpoint, remove unfinished ones of earlier runs; those that were renamed but not
        replaced get their names back.

        Not when it is made: a manager that only reads must not touch what another run is writing.
        """
        if self._is_clean:
            return
        with user_file("CheckpointManager: directory", self.directory, CheckpointError):
            for path in {*self.directory.iterdir()} - IN_WORK:
                new = self.directory / path.name.removesuffix(REPLACED)
                if new != path and not new.exists() and (path / NAME).is_file():
                    path.rename(new)
                elif (new != path or WRITING in path.name or _is_unfinished(path)) and _is_ours(path):
                    shutil.rmtree(path, ignore_errors=True)
        self._is_clean = True

    # --- restoring ------------------------------------------------------------------------------------------
    def restore(self, step: int | None = None, like: Any = None, *, verify: bool = True) -> Any:
        """Restore the tree of a step, by default the latest that is intact; warns if later ones are damaged.

        Args:
          step: the step, or None.
          like, verify: as in :func:`restore`.

        Raises:
          CheckpointError: there is no checkpoint, it is damaged, or its tree differs from ``like``.
        """
        self.wait()
        if step is not None:
            return restore(self.folder(step), like, verify=verify)
        for candidate in reversed(self.steps()):
            try:
                return restore(self.folder(candidate), like, verify=verify)
            except CheckpointDamagedError as error:
                warn(f"step {candidate} is passed over: {error}", CheckpointWarning)
        raise CheckpointError(f"there is no good checkpoint in {self.directory}; save(step, tree) makes one")

    def __repr__(self) -> str:
        return f"CheckpointManager({str(self.directory)!r}, steps={self.steps()})"


def _is_unfinished(path: Path) -> bool:
    """Whether a folder has the name of a step, but no index."""
    return _STEP.fullmatch(path.name) is not None and not (path / NAME).is_file()


def _is_ours(path: Path) -> bool:
    """Whether it is a folder that only contains files of checkpoints; other programs use such names too."""
    return path.is_dir() and not path.is_symlink() and all(_PARTS.fullmatch(p.name) for p in path.iterdir())
