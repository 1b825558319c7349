"""Run the public array API suite (``data-apis/array-api-tests``) on ``meshwright.numpy``, and on others beside it.

The suite is not on PyPI: ``ARRAY_API_TESTS`` names a checkout of it. All its tests run, extensions too, with 64-bit
types on, 20 examples a test, and nothing skipped or expected to fail. Hypothesis's limit on the time of one example is
off, since it judges the machine.

    python tests/conformance/run_suite.py --beside jax.numpy
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

SUITE = "https://github.com/data-apis/array-api-tests"
COMMIT = "55fcc60"
OPTIONS = ("--max-examples=20", "--disable-deadline", "-q", "--tb=short", "-W", "ignore", "-p", "no:cacheprovider")

HOW_TO_GET_IT = f"""the array API suite is not here: ARRAY_API_TESTS {{problem}}.
It is not on PyPI; get it with

    git clone {SUITE} array-api-tests
    cd array-api-tests && git checkout {COMMIT} && git submodule update --init
    {sys.executable} -m pip install -r requirements.txt

and run this again with ARRAY_API_TESTS=<that folder>."""


@dataclass(frozen=True)
class Outcome:
    """What came of one run of the suite."""

    module: str
    seconds: float
    total: int
    skipped: int
    failed: tuple[str, ...]

    @property
    def passed(self) -> int:
        return self.total - self.skipped - len(self.failed)

    def __str__(self) -> str:
        rest = f"{len(self.failed):3d} failed, {self.skipped:2d} skipped"
        return f"{self.module:18s} {self.passed:5d} of {self.total} passed, {rest}, {self.seconds:6.1f} s"


def suite_folder() -> Path:
    """The checkout that ``ARRAY_API_TESTS`` names; ends the program, saying how to get it, where there is none."""
    given = os.environ.get("ARRAY_API_TESTS", "")
    folder = Path(given)
    if not given:
        sys.exit(HOW_TO_GET_IT.format(problem="is not set"))
    if not (folder / "array_api_tests" / "__init__.py").is_file():
        sys.exit(HOW_TO_GET_IT.format(problem=f"names {given}, which has no array_api_tests/"))
    if not any((folder / "array-api").iterdir() if (folder / "array-api").is_dir() else ()):
        sys.exit(HOW_TO_GET_IT.format(problem=f"names {given}, whose submodule array-api is empty"))
    return folder.resolve()


def run(module: str, folder: Path, only: list[str]) -> Outcome:
    """Run the suite on a module in a process of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.xml"
        settings = {
            "ARRAY_API_TESTS_MODULE": module, "ARRAY_API_TESTS_VERSION": "2024.12", "MESHWRIGHT_ENABLE_X64": "1",
            "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu", "HYPOTHESIS_STORAGE_DIRECTORY": scratch,
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "pytest", *(only or ["array_api_tests"]), *OPTIONS, f"--junitxml={report}"]
        start = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env={**os.environ, **settings}, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        if not report.is_file() or done.returncode not in (0, 1):
            sys.exit(f"the suite did not run on {module} (exit {done.returncode}):\n{done.stdout[-3000:]}{done.stderr}")
        return outcome(module, seconds, ET.parse(report).getroot())


def outcome(module: str, seconds: float, report: ET.Element) -> Outcome:
    """Read a JUnit report."""
    cases = list(report.iter("testcase"))
    failed = tuple(
        f"{c.get('classname')}::{c.get('name')}"
        for c in cases
        if c.find("failure") is not None or c.find("error") is not None
    )
    skipped = sum(c.find("skipped") is not None for c in cases)
    return Outcome(module, seconds, len(cases), skipped, failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--beside", action="append", default=[], metavar="MODULE", help="another module, e.g. jax.numpy"
    )
    parser.add_argument("--at-least", type=int, default=1330, help="fewer tests passed are a failure (default 1330)")
    parser.add_argument("only", nargs="*", help="files or tests of the suite, instead of all")
    options = parser.parse_args()
    folder = suite_folder()
    ours = run("meshwright.numpy", folder, options.only)
    print(ours, flush=True)
    for name in ours.failed:
        print("  failed:", name)
    for module in options.beside:
        print(run(module, folder, options.only), flush=True)
    if not options.only and ours.passed < options.at_least:
        sys.exit(f"meshwright.numpy passes {ours.passed} tests, {options.at_least} are wanted")


if __name__ == "__main__":
    main()
