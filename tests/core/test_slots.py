"""Slots: what is supplied late says so until it is."""

import copy

import pytest

from meshwright.core.slots import Slot
from meshwright.ir.tracing import EVALUATE
from meshwright.ir.varying import CAST
from meshwright.numpy.methods import NAMESPACE
from meshwright.runtime.array import CONVERSIONS
from meshwright.runtime.eager import SHARDED
from meshwright.transforms.jaxprs import TRANSFORMS


def test_an_empty_slot_says_who_fills_it():
    slot = Slot("the answer", "meshwright.later")
    with pytest.raises(RuntimeError, match=r"the answer is supplied by meshwright.later: import meshwright"):
        slot.value()
    with pytest.raises(AttributeError):
        slot.other  # noqa: B018
    assert slot.fill(len) is len and slot.value([1]) == 1
    slot.fill(len)
    with pytest.raises(RuntimeError, match="the answer is supplied twice"):
        slot.fill(max)
    assert copy.copy(slot).value is len


def test_all_slots_are_filled_by_whom_they_name():
    import importlib

    for slot in (EVALUATE, CAST, NAMESPACE, CONVERSIONS, SHARDED, *TRANSFORMS.makers.values()):
        importlib.import_module(slot.by)
        assert slot.filled, slot.what
