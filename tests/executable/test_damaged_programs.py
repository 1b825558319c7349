"""Damaged programs, shardings and meshes are refused with errors of our tree, or mean something: no crash, no hang.

``make fuzz`` tries 20,000 (``tests/long_runs.py``).
"""

from __future__ import annotations

import os
import random
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from damage import damaged, in_every_form, texts
from damaged_files import use_file

import meshwright as mw
from meshwright.cli.programs import parse_mesh
from meshwright.core.config import config
from meshwright.errors import MeshwrightError
from meshwright.sharding import parse_hlo_sharding

#: the case at work, for the one that ends the process
LAST = Path(os.environ.get("MESHWRIGHT_FUZZ_LAST", os.devnull))
#: seconds that reading may take, and a case, on a busy machine
READING, LIMIT = 5, 40


@cache
def corpus() -> tuple[list[str | bytes], list[str]]:
    programs = [form for text in texts() for form in in_every_form(text)]
    return programs, [p for p in programs if isinstance(p, str)]


class TooLong(Exception):
    """A case that does not end."""


@contextmanager
def limited() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def use(data: str | bytes) -> bool:
    """Whether a program can be loaded; what can is printed, and asked what it is."""
    try:
        program = mw.load(data)
    except MeshwrightError:
        return False
    for look in (repr, str, lambda p: p.as_text(), lambda p: p.mesh, lambda p: p.in_shardings,
                 lambda p: p.as_text("stablehlo"), lambda p: p.as_text("hlo")):  # fmt: skip
        try:
            look(program)
        except MeshwrightError:
            continue
    return True


def check(case: int) -> bool:
    programs, others = corpus()
    rng = random.Random(case)
    data = damaged(rng.choice(others if rng.random() < 0.5 else programs), rng.choice(others), rng)
    LAST.write_bytes(data if isinstance(data, bytes) else data.encode(errors="surrogatepass"))
    try:
        with limited(), warnings.catch_warnings(), config.override("load_seconds", READING):
            warnings.simplefilter("ignore")
            return use(data)
    except Exception as error:
        raise AssertionError(f"case {case}: {type(error).__name__}: {error}\n{data!r:.3000}") from error


SHARDINGS = (
    "{devices=[4,1,2]<=[8] last_tile_dim_replicate}", "{devices=[2,2,2]0,1,2,3,4,5,6,7 last_tile_dims={manual}}",
    "{devices=[2,4]<=[4,2]T(1,0) metadata={op_name=\"a\"}}", "{{replicated}, {maximal device=3}, {manual}}",
    "{unknown shard_as 3}", "{devices=[2,2,2]<=[2,2,2]T(2,0,1) last_tile_dims={unreduced}}",
)  # fmt: skip
MESH_TEXTS = ("data=4,model=2", "x=8", "a=2, b=2, c=2")


def check_text(case: int) -> None:
    rng = random.Random(case)
    texts, read = rng.choice(((SHARDINGS, parse_hlo_sharding), (MESH_TEXTS, parse_mesh)))
    text = str(damaged(rng.choice(texts), rng.choice(texts), rng))
    try:
        with limited():
            str(read(text))
    except MeshwrightError:
        pass
    except Exception as error:
        raise AssertionError(f"{text!r}: {type(error).__name__}: {error}") from error


def check_file(case: int) -> bool:
    try:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return use_file(random.Random(case))
    except MeshwrightError:
        return False
    except Exception as error:
        raise AssertionError(f"case {case}: {type(error).__name__}: {error}") from error


def found_in(case: int) -> str:
    """What damage number ``case``, of a program, a file or a short text, does that it should not; "" if nothing."""
    try:
        (check_text if case % 10 == 0 else check_file if case % 10 < 3 else check)(case)
    except AssertionError as error:
        return str(error)
    return ""


def test_damaged_files():
    assert 5 < sum(map(check_file, range(100))) < 95


def test_damaged_shardings_and_meshes():
    for case in range(4000):
        check_text(case)


def test_a_few_damaged_programs():
    assert 0 < sum(map(check, range(160))) < 150
