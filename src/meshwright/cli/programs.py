"""``meshwright partition FILE``, ``explain FILE`` and others: partitioning programs from files."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from meshwright.api.compare import our_figures, xla_figures
from meshwright.api.load import ImportedProgram, load
from meshwright.api.partitioned import PartitionedProgram
from meshwright.core.words import counted
from meshwright.errors import ArgumentError, MeshError, MeshwrightWarning
from meshwright.lowering.pipeline import whole_pipeline
from meshwright.sharding import AbstractMesh
from meshwright.spmd.report import Collective, human_bytes
from meshwright.spmd.steptime.report import human_seconds

_COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    TextColumn("{task.fields[tries]} tried"),
    TimeElapsedColumn(),
)
TEXTS = ("jaxpr", "stablehlo", "hlo")

File = Annotated[
    Path,
    typer.Argument(help="HLO text or proto, StableHLO text or bytecode, or a portable artifact; - is standard input"),
]
MeshOption = Annotated[str, typer.Option("--mesh", help="axes and sizes, such as data=4,model=2")]
MachineOption = Annotated[str, typer.Option("--machine", help="hardware to plan for, such as v5e:2x4 or h100:8")]
DevicesOption = Annotated[int, typer.Option("--devices", min=0, help="number of devices, on one axis")]


def partition(
    file: File,
    mesh: MeshOption = "",
    devices: DevicesOption = 0,
    verify: Annotated[bool, typer.Option("--verify", help="run it against the unpartitioned program")] = False,
    text: Annotated[str, typer.Option("--text", help=f"print the per-device program: {', '.join(TEXTS)}")] = "",
    combine_bytes: Annotated[
        int, typer.Option("--combine-bytes", min=0, help="send small collectives together, in buckets of so many bytes")
    ] = 0,
    machine: MachineOption = "",
    times: Annotated[bool, typer.Option("--time", help="print what a run takes, and what binds each part")] = False,
) -> None:
    """Partition a program; print the communication, work and memory of its devices, and the time of a run."""
    if text and text not in TEXTS:
        raise ArgumentError(f"--text: expected {', '.join(TEXTS)}, got {text!r}")
    # Only the program's text goes to standard output, so that it can be piped.
    console = Console(stderr=bool(text), highlight=False)
    start = time.perf_counter()
    program, part = partitioned(file, mesh, devices, console, combine_bytes, machine)
    collectives = part.collectives
    elapsed = time.perf_counter() - start
    axes = " × ".join(f"{name}={size}" for name, size in part.mesh.shape.items())
    console.print(f"[bold]{program.name}[/bold] on mesh {axes}: read and partitioned in {elapsed:.2f} s")
    console.print(_summary(part, collectives))
    for note in (*program.notes, *part.notes):
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    if times:
        console.print(str(part.time()), markup=False, soft_wrap=True)
    if verify:
        verified = part.verify()
        console.print(f"{verified.headline}, in {verified.seconds:.1f} s", markup=False, soft_wrap=True)
    if text:
        typer.echo(part.as_text(text))


def explain(
    file: File,
    mesh: MeshOption = "",
    devices: DevicesOption = 0,
    suggest: Annotated[bool, typer.Option(help="try which annotation would remove each collective")] = True,
    seconds: Annotated[float, typer.Option(min=0, help="time to try annotations")] = 20.0,
) -> None:
    """Partition a program; for each collective, say what it sends, why it exists, and what would remove it."""
    console = Console(stderr=True, highlight=False)
    _, part = partitioned(file, mesh, devices, console)
    with Progress(*_COLUMNS, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("trying annotations", total=None, tries=0)

        def progress(done: int, count: int, tries: int) -> None:
            bar.update(task, completed=done, total=count, tries=tries)

        explanation = part.explain(suggest, seconds=seconds, tries=sys.maxsize, progress=progress)
    typer.echo(explanation)


def passes() -> None:
    """List the passes that a program goes through, in order (MESHWRIGHT_DUMP_IR=FOLDER writes the program after
    each)."""
    typer.echo(whole_pipeline())


def compare(file: File, machine: MachineOption = "") -> None:
    """Partition a program here and with XLA's partitioner (GSPMD or Shardy), and compare the results."""
    console = Console(highlight=False)
    source = contents(file)
    program = load(source)
    _require_devices(program, "compare one whose arguments have some")
    mesh = _on_machine(program, None, 0, machine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MeshwrightWarning)
        ours, theirs = our_figures(program, mesh=mesh), xla_figures(source, program, mesh)
    table = Table("", "Meshwright", "XLA", box=None, padding=(0, 2, 0, 0))
    on = f" on {machine}" if machine else ""
    for kind in sorted({*ours.kinds, *theirs.kinds}):
        cells = (f"{count} ({sent:,})" for count, sent in (f.kinds.get(kind, (0, 0)) for f in (ours, theirs)))
        table.add_row(kind, *cells)
    table.add_row("bytes sent by a device", f"{ours.bytes_sent:,}", f"{theirs.bytes_sent:,}", style="bold")
    table.add_row(f"memory of a device{on}", human_bytes(ours.memory_bytes), human_bytes(theirs.memory_bytes))
    both = ours, theirs
    table.add_row("arithmetic of a device, of its part", *(_known(f.redundancy, "{:.2f}".format) for f in both))
    table.add_row(f"time of a run, modelled{on}", *(_known(f.run_seconds, human_seconds) for f in both), style="bold")
    table.add_row("time of planning", f"{ours.seconds:.2f} s", f"{theirs.seconds:.2f} s, with compiling")
    console.print(
        f"[bold]{program.name}[/bold] for {counted(program.num_partitions, 'device')}: collectives, and their bytes"
    )
    console.print(table)
    if theirs.note:
        console.print(f"note: {theirs.note}", markup=False, soft_wrap=True)


def _known(figure: float | None, shown: Callable[[float], str]) -> str:
    return "not known" if figure is None else shown(figure)


def contents(file: Path) -> Path | bytes:
    """The source to load: a file, or for ``-`` the bytes of standard input."""
    return sys.stdin.buffer.read() if file == Path("-") else file


def partitioned(
    file: Path, mesh: str, devices: int, console: Console, combine_bytes: int = 0, machine: str = ""
) -> tuple[ImportedProgram, PartitionedProgram]:
    """Load and partition the program in a file, printing warnings.

    Raises:
      ArgumentError: the mesh cannot be parsed, both a mesh and a number of devices are given, or the machine is
        unknown.
      MeshError: the machine has another number of devices, or neither the program nor an option gives a number of
        devices.
    """
    if mesh and devices:
        raise ArgumentError(f"give either --mesh {mesh} or --devices {devices}, not both")
    chosen = parse_mesh(mesh) if mesh else None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MeshwrightWarning)
        program = load(contents(file))
        if chosen is None and not devices:
            _require_devices(program, "pass --mesh data=4,model=2 or --devices 8")
        chosen = _on_machine(program, chosen, devices, machine)
        part = program.partition(chosen, None if machine else devices or None, combine_bytes=combine_bytes)
    for warning in caught:
        console.print(f"warning: {warning.message}", markup=False, style="yellow", soft_wrap=True)
    return program, part


def _require_devices(program: ImportedProgram, remedy: str) -> None:
    if program.mesh is None and program.num_partitions == 1:
        raise MeshError(f"{program.name!r} has no shardings, so it says nothing of devices; {remedy}")


def _on_machine(program: ImportedProgram, mesh: AbstractMesh | None, devices: int, machine: str) -> AbstractMesh | None:
    """The mesh for a program, on the named machine; ``mesh`` if none is named."""
    bound = program.bound(mesh, devices or None).mesh if machine else None
    return mesh if bound is None else bound.abstract_mesh.on(machine)


def parse_mesh(text: str) -> AbstractMesh:
    """Parse a mesh such as ``"data=4,model=2"``.

    Raises:
      ArgumentError: another form.
    """
    axes = [entry.partition("=") for entry in text.split(",")]
    if not all(name.strip() and size.strip().isdecimal() for name, _, size in axes):
        raise ArgumentError(f"--mesh: expected axes and sizes such as data=4,model=2, got {text!r}")
    return AbstractMesh([int(size) for *_, size in axes], [name.strip() for name, *_ in axes])


def _summary(part: PartitionedProgram, collectives: list[Collective]) -> Table:
    table = Table("", "count", "bytes sent", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for kind in sorted({c.kind for c in collectives}):
        mine = [c for c in collectives if c.kind == kind]
        table.add_row(kind, str(len(mine)), f"{sum(c.bytes_sent for c in mine):,}")
    table.add_row("all collectives", str(len(collectives)), f"{part.bytes_sent:,}", style="bold")
    table.add_row("peak memory of a device", "", human_bytes(part.peak_bytes))
    table.add_row("arithmetic of a device, of its part", "", f"{part.work.redundancy:.2f}")
    table.add_row(f"time of a run on {part.time().where}", "", human_seconds(part.time().seconds))
    return table
