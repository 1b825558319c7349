"""Forks, pickles and deep copies: of every public function, and of what programs go through on their way."""

import copy
import pickle
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax

X = np.arange(4, dtype=np.float32)
MODULES = (
    mw, mw.numpy, mw.numpy.linalg, mw.numpy.fft, mw.lax, mw.nn, mw.random, mw.optim, mw.tree, mw.tree_util, mw.image,
)  # fmt: skip


@mw.jit
def decorated(x):
    return mnp.sin(x) * 2


def scanned(x):
    return lax.scan(lambda c, a: (c + mnp.sin(a), c * a), 0.0, x)


def _mesh():
    return mw.make_mesh((2,), ("x",))


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_public_names(module):
    for name in dir(module):
        value = getattr(module, name)
        if name.startswith("_") or isinstance(value, ModuleType) or value is mw.config:
            continue
        again = pickle.loads(pickle.dumps(value))
        assert again is value or again == value or type(again) is type(value), name
        copy.deepcopy(value)


STAGES = {
    "decorated": lambda: decorated,
    "jitted": lambda: mw.jit(mnp.sin, inline=True),
    "traced": lambda: decorated.trace(X),
    "lowered": lambda: decorated.lower(X),
    "compiled": lambda: decorated.lower(X).compile(),
    "partitioned": lambda: decorated.lower(X).partition(_mesh()),
    "loaded": lambda: mw.load(decorated.lower(X).as_text()),
    "jaxpr": lambda: mw.make_jaxpr(scanned)(X),
    "nested": lambda: mw.make_jaxpr(lambda x: decorated(decorated(x)))(X),
    "derivative": lambda: mw.make_jaxpr(mw.grad(lambda x: scanned(x)[1].sum()))(X),
    "aval": lambda: mw.typeof(X),
    "type": lambda: mw.ShapeDtypeStruct((2, 3), "float32", weak_type=True),
    "sharding": lambda: mw.NamedSharding(_mesh(), mw.P("x", None)),
    "mesh": _mesh,
    "explanation": lambda: decorated.lower(X).partition(_mesh()).explain(),
}


def _use(value):
    """What a copy is compared by."""
    if callable(value) and not isinstance(value, type(mw.P())):
        return np.asarray(value(X)).tolist()
    if isinstance(value, mw.PartitionedProgram):
        return np.asarray(value.executable([X])[0]).tolist(), value.as_text()
    return str(value)


@pytest.mark.parametrize("name", STAGES)
def test_stages(name):
    value = STAGES[name]()
    before = _use(value)
    for again in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value), copy.copy(value)):
        assert type(again) is type(value)
        assert _use(again) == before


def test_a_decorated_function_is_found_by_its_name():
    assert pickle.loads(pickle.dumps(decorated)) is decorated


FORK = """
import os, signal
import numpy as np, meshwright as mw, meshwright.numpy as mnp
if USED:
    x = mnp.ones(3) + 1
    f = mw.jit(lambda x: x * 2)
    f(x)
uses = {"op": lambda: mnp.sin(x), "jit": lambda: f(x), "new": lambda: mw.jit(lambda x: x - 1)(np.ones(3)),
        "array": lambda: mnp.asarray(np.ones(3)), "read": lambda: np.asarray(x),
        "trace": lambda: mw.make_jaxpr(mnp.sin)(1.0)}
for name, use in uses.items() if USED else [("first", lambda: mnp.ones(3) + 1)]:
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            use()
            print(name, "works", flush=True)
        except mw.errors.DeviceError as error:
            print(name, "spawn" in str(error), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("used", [True, False])
def test_forks_say_that_they_cannot_run(used):
    program = FORK.replace("USED", str(used))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    found = dict(line.split() for line in done.stdout.splitlines())
    want = {"op": "True", "jit": "True", "new": "True", "array": "True", "read": "True", "trace": "works"}
    assert found == (want if used else {"first": "works"}), done.stderr


def test_names_of_core():
    jaxpr = mw.make_jaxpr(lambda x: 3 * x)(1.0)
    assert isinstance(jaxpr, mw.core.ClosedJaxpr) and isinstance(jaxpr.jaxpr, mw.core.Jaxpr)
    np.testing.assert_allclose(mw.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, 2.0)[0], 6)
    np.testing.assert_allclose(mw.grad(lambda x: mw.core.jaxpr_as_fun(jaxpr)(x)[0])(2.0), 3)
    with pytest.raises(TypeError, match="takes 1 array"):
        mw.core.jaxpr_as_fun(jaxpr)(1.0, 2.0)
    assert mw.core.ShapedArray((2,), np.dtype("float32")) == mw.typeof(np.ones(2, np.float32))
    seen = []
    mw.jit(lambda x: seen.append(isinstance(x, mw.core.Tracer)) or x)(1.0)
    assert seen == [True]
    assert {"Tracer", "Trace", "jaxpr_as_fun"} <= set(dir(mw.core))


def test_errors_are_what_jax_users_catch():
    import jax

    for name in dir(jax.errors):
        theirs, ours = getattr(jax.errors, name), getattr(mw.errors, name, None)
        if name.startswith("JAX") or not isinstance(theirs, type) or name in MISSING:
            continue
        assert ours is not None and issubclass(ours, mw.errors.MeshwrightError), name
        for base in (TypeError, IndexError, RuntimeError):
            assert issubclass(ours, base) or not issubclass(theirs, base), (name, base)


#: of dynamic shapes, and of a checker of jaxprs, which raises ``VerifierError``
MISSING = ("InconclusiveDimensionOperation", "JaxprTypeError")


def test_types_change_by_name():
    spec = mw.ShapeDtypeStruct((2, 3), "float32")
    changed = spec.update(shape=(4,), dtype="int32", weak_type=True, sharding=mw.NamedSharding(_mesh(), mw.P("x")))
    assert (changed.shape, changed.dtype, changed.weak_type) == ((4,), np.dtype("int32"), True)
    assert changed.sharding.spec == mw.P("x") and spec.update() == spec and "weak_type=True" in repr(changed)
    with pytest.raises(TypeError, match="no property 'size'"):
        spec.update(size=3)
