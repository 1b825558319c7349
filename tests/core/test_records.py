"""``dataclass`` of ``core.records``: as the standard library's."""

import copy
import dataclasses
import pickle
from dataclasses import field
from functools import cached_property

import pytest

from meshwright.core import records


@pytest.fixture(params=[dataclasses.dataclass, records.dataclass], ids=["standard", "ours"])
def dataclass(request):
    return request.param


@records.dataclass(frozen=True)
class Pickled:
    x: int
    y: tuple = ()


def kinds(dataclass):
    @dataclass(frozen=True)
    class Base:
        a: int
        b: str = "b"

    @dataclass(frozen=True)
    class Derived(Base):
        c: list = field(default_factory=list, compare=False)
        d: int = field(default=4, repr=False)
        e: int = field(default=5, kw_only=True)
        f: int = field(init=False, default=6)

        def __post_init__(self):
            object.__setattr__(self, "f", self.a + 1)

        @cached_property
        def twice(self):
            return 2 * self.a

    @dataclass
    class Open:
        a: int
        b: dict = field(default_factory=dict)

    @dataclass(frozen=True, eq=False, repr=False)
    class Own:
        a: int

        def __init__(self, a):
            object.__setattr__(self, "a", a)

        def __repr__(self):
            return "own"

    @dataclass(frozen=True)
    class Hashed:
        a: list

        def __hash__(self):
            return 7

    return Base, Derived, Open, Own, Hashed


def test_values(dataclass):
    Base, Derived, Open, Own, Hashed = kinds(dataclass)
    x = Derived(1, c=[2])
    assert repr(x).endswith("Derived(a=1, b='b', c=[2], e=5, f=2)")
    assert x == Derived(1) and x != Derived(2) and x != Base(1) and hash(x) == hash(Derived(1)) != hash(Derived(1, d=3))
    assert x.twice == 2 and Derived(1).c is not Derived(1).c and dataclasses.replace(x, b="c", e=0).b == "c"
    assert dataclasses.astuple(x) == (1, "b", [2], 4, 5, 2) and Derived.__match_args__ == ("a", "b", "c", "d")
    assert [f.name for f in dataclasses.fields(Derived)] == list("abcdef") and copy.deepcopy(x) == x
    y = Open(1)
    y.a = 3
    assert y == Open(3) and Open.__hash__ is None and repr(Own(1)) == "own" and Own(1) != Own(1)
    assert hash(Hashed([1])) == 7 and Hashed([1]) == Hashed([1])


def test_mistakes(dataclass):
    Base, Derived, *_ = kinds(dataclass)
    for wrong in (lambda: Base(), lambda: Base(1, "b", 3), lambda: Base(1, z=3), lambda: Derived(1, "b", [], 4, 5)):
        with pytest.raises(TypeError, match="__init__"):
            wrong()
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'a'"):
        Base(1).a = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'a'"):
        del Base(1).a
    with pytest.raises(TypeError, match="non-default argument 'b' follows default argument"):

        @dataclass
        class Wrong:
            a: int = 1
            b: int

    class Plain(Base):
        pass

    plain = Plain(1)
    plain.more = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.a = 3
    assert plain.more == 3 and plain == Plain(1) and plain != Base(1)


def test_pickles():
    assert pickle.loads(pickle.dumps(Pickled(1, (2,)))) == Pickled(1, (2,))


@pytest.mark.parametrize("other", [dataclasses.dataclass, records.dataclass])
def test_either_inherits_from_the_other(dataclass, other):
    Base, _, Open, *_ = kinds(dataclass)

    @other(frozen=True)
    class Further(Base):
        z: int = 3

    assert Further(1, z=2) == Further(1, "b", 2) != Further(1) and hash(Further(1)) == hash(Further(1))
    for frozen, base in ((True, Open), (False, Base), (False, Further)):
        with pytest.raises(TypeError, match="inherit"):
            other(frozen=frozen)(type("Wrong", (base,), {"__annotations__": {}}))
    assert Base.__dataclass_params__.frozen and not Open.__dataclass_params__.frozen
