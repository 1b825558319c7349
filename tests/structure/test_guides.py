"""The code in the guides runs."""

import re
from pathlib import Path

import pytest

from meshwright.ir.op import REGISTRY

DOCS = Path(__file__).parents[2] / "docs"


def blocks_of(guide):
    return re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.M | re.S)


@pytest.mark.parametrize("guide", sorted(filter(blocks_of, DOCS.glob("*.md"))), ids=lambda path: path.stem)
def test_python_in_a_guide_runs(guide):
    scope: dict[str, object] = {"__name__": guide.stem}
    before = dict(REGISTRY)
    try:
        for block in blocks_of(guide):
            exec(compile(block, str(guide), "exec"), scope)
    finally:  # ops of the guide go, those of ours that it is the first to import stay
        REGISTRY.update(before)
        for name in [name for name, op in REGISTRY.items() if op.__module__ == guide.stem]:
            del REGISTRY[name]


FOLDERS = (
    "api benchmarks core docs examples hardware interop ir lax lowering numpy ops runtime sharding spmd src stablehlo "
    "targets tests transforms verification"
)
PATH = re.compile(rf"`((?:{FOLDERS.replace(' ', '|')})/[\w/.]*)`")


def test_guides_name_files_that_are_there():
    root = DOCS.parent
    missing = []
    for guide in (*DOCS.glob("*.md"), root / "CONTRIBUTING.md", root / "README.md"):
        for name in PATH.findall(guide.read_text()):
            if not any((base / name).exists() for base in (root, root / "src" / "meshwright")):
                missing.append(f"{guide.name}: {name}")
    assert not missing, missing
