"""Runs the code cells of a notebook in one namespace, as a new kernel would."""

import json
import sys
from pathlib import Path


def main(path: str) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    cells = [c for c in json.loads(Path(path).read_text())["cells"] if c["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        exec(compile("".join(cell["source"]), f"{Path(path).name} cell {number}", "exec"), names)


if __name__ == "__main__":
    main(sys.argv[1])
