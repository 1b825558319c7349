"""What the interfaces say when they refuse a call, word for word.

``python tests/api/messages/test_refusals.py`` writes the files anew; read what changed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import refused_calls as calls

from meshwright import errors

HERE = Path(__file__).parent
#: words that tell the user what to do, or what is possible
REMEDY = re.compile(
    r"\b(apply|attributes are|begins?|bring|call|can address|choose|compiled?|constrain|convert|copy|ends?|expected|"
    r"export|"
    r"give|has|leave|make|makes|move|must|name|needs|open|order|pad|partition|partitioned|pass|put|read|reduce|reshape|"
    r"reshard|set|split|take|there are|there is|use|works?|write)\b"
)


def said(call: calls.Call) -> str:
    """The type and the text of what a call raises; of our own lines without their numbers."""
    try:
        call()
    except Exception as error:
        text = re.sub(r"refused_calls\.py:\d+", "refused_calls.py", f"{type(error).__name__}: {error}")
        return re.sub(r"0x[0-9a-f]+", "0x", text)
    return "nothing is refused"


def written(interface: str) -> str:
    """All that an interface says, as it is written down."""
    cases = calls.INTERFACES[interface].items()
    return "\n".join(f"# {case}\n{said(call)}\n" for case, call in cases)


def read(interface: str) -> dict[str, str]:
    found = re.split(r"^# (.*)\n", (HERE / f"{interface}.txt").read_text(), flags=re.MULTILINE)
    return {case: text.strip() for case, text in zip(found[1::2], found[2::2])}


@pytest.mark.parametrize("interface", calls.INTERFACES)
def test_what_is_said(interface):
    golden = read(interface)
    assert list(golden) == list(calls.INTERFACES[interface])
    wrong = [case for case, call in calls.INTERFACES[interface].items() if said(call) != golden[case]]
    assert {case: said(calls.INTERFACES[interface][case]) for case in wrong} == {case: golden[case] for case in wrong}


@pytest.mark.parametrize("interface", calls.INTERFACES)
def test_what_is_said_is_of_our_tree_and_says_what_to_do(interface):
    for case, text in read(interface).items():
        kind, _, message = text.partition(": ")
        assert issubclass(getattr(errors, kind), errors.MeshwrightError), case
        assert REMEDY.search(message) and len(message) > 30, f"{case}: {message}"
        assert "0x" not in message and "Traceback" not in message, case


if __name__ == "__main__":
    for name in calls.INTERFACES:
        (HERE / f"{name}.txt").write_text(written(name))
