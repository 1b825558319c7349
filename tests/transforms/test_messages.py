"""What errors say: the function with its line, the argument with its path, types, and what to do."""

import functools

import numpy as np
import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import errors, lax
from meshwright.core.signature import described

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def widens(c, x=None):
    return {**c, "b": c["b"].astype("float16")}, x


def loses(c, x=None):
    return {"a": c["a"]}, x


def pair(x):
    return x, {"k": x * 2}


def no_pair(c, x):
    return [c, x, x]


def line(f):
    return f"{f.__name__} (test_messages.py:{f.__code__.co_firstlineno})"


def test_what_functions_are_called():
    assert described(pair) == line(pair) == described(functools.partial(pair)) == described(mw.jit(pair))
    assert described(mnp.sin) == "sin" and described(len) == "len"
    assert described(functools.wraps(pair)(lambda *a: pair(*a))) == line(pair)


# --- loops and branches -------------------------------------------------------------------------------------
CARRY = {"a": mnp.zeros(3), "b": mnp.ones(2)}
LOOPS = {
    "scan": lambda f: lax.scan(f, CARRY, X),
    "while_loop": lambda f: lax.while_loop(lambda c: True, lambda c: f(c)[0], CARRY),
    "fori_loop": lambda f: lax.fori_loop(0, 3, lambda i, c: f(c)[0], CARRY),
    "fori_loop, traced": lambda f: mw.jit(lambda n: lax.fori_loop(0, n, lambda i, c: f(c)[0], CARRY))(3),
}


@pytest.mark.parametrize("name", LOOPS)
def test_carries_that_change(refuses, name):
    body = "widens" if name == "scan" else "<lambda>"
    place = f"body {body} (test_messages.py:"
    loop = name.partition(",")[0] + ": the carry"
    with refuses(errors.ShapeError, loop, place, "carry['b'] goes in as f32[2] and comes out as f16[2]", "float32"):
        LOOPS[name](widens)
    with refuses(TypeError, loop, place.replace("widens", "loses"), "{'a': *, 'b': *}", "only going in: carry['b']"):
        LOOPS[name](loses)


def test_carries_of_other_containers(refuses):
    with refuses(TypeError, "comes out as [*, *]", "at the top: a tuple of 2 against a list of 2"):
        lax.scan(lambda c, x: ([c[0], c[1]], x), (1.0, 2.0), X)


def test_functions_of_control_flow(refuses):
    with refuses(TypeError, "cond true_fun", "3"):
        lax.cond(True, 3, pair, 1.0)
    with refuses(TypeError, "switch branch 1", "None"):
        lax.switch(0, [pair, None], 1.0)
    with refuses(TypeError, "while_loop: cond_fun must return a bool scalar, it returned (*, {'k': *})", line(pair)):
        lax.while_loop(pair, lambda x: x, 1.0)
    with refuses(TypeError, f"scan: {line(no_pair)} must return a pair (carry, y)", "[*, *, *]", "(carry, None)"):
        lax.scan(no_pair, 1.0, X)


def test_branches_that_differ(refuses):
    def other(x):
        return x, {"k": x, "l": x}

    with refuses(TypeError, f"true_fun {line(pair)} returns (*, {{'k': *}})", line(other), "at [1]", "'k', 'l'"):
        lax.cond(True, pair, other, X)
    with refuses(errors.ShapeError, "output[1]['k']", f"branch 0 {line(pair)}", "branch 1 <lambda> (test_messages.py"):
        lax.switch(0, [pair, lambda x: (x, {"k": x[0]})], X)


# --- derivatives --------------------------------------------------------------------------------------------
def test_tangents(refuses):
    primals = ({"w": X, "n": 3},)
    function, none = lambda p: p["w"] * p["n"], np.zeros((), mw.float0)
    for name, run in {
        "jvp": lambda t: mw.jvp(function, primals, (t,)),
        "linearize": lambda t: mw.linearize(function, *primals)[1](t),
    }.items():
        where = f"{name} of {line(function)}"
        with refuses(TypeError, where, "tangents[0]['w'] has type f32[3]", "primals[0]['w'] has type f32[2,3]"):
            run({"w": X[0], "n": none})
        with refuses(TypeError, where, "tangents[0]['w'] has type f16[2,3]"):
            run({"w": X.astype("float16"), "n": none})
        with refuses(TypeError, where, "tangents[0]['n'] has type i32[]", "numpy.zeros((), float0)"):
            run({"w": X, "n": 0})
        with refuses(TypeError, where, "({'w': *},)", "at [0]", "keys 'n', 'w' against a dict with keys 'w'"):
            run({"w": X})


def test_cotangents(refuses):
    for pull, name in ((mw.vjp(pair, X)[1], "vjp"), (mw.linear_transpose(pair, X), "linear_transpose")):
        where = f"{name} of {line(pair)}"
        with refuses(TypeError, where, "cotangent[1]['k'] has type f32[3]", "output[1]['k'] has type f32[2,3]"):
            pull((X, {"k": X[0]}))
        with refuses(TypeError, where, "(*, *)", "(*, {'k': *})", "at [1]: a dict with keys 'k' against a leaf"):
            pull((X, X))
        with refuses(TypeError, where, "at [0]: a leaf against a list of 2"):
            pull(([X, X], {"k": X}))
    with refuses(TypeError, "cotangent has type c64[]", "output has type f32[]"):
        mw.vjp(lambda x: 2 * x, np.float32(1))[1](1j)
    with refuses(TypeError, "cotangent has type i32[]", "output has type f32[]"):
        mw.vjp(lambda x: 2 * x, np.float32(1))[1](1)


def test_gradients(refuses):
    with refuses(TypeError, "grad", line(pair), "(*, {'k': *})", "has_aux=True"):
        mw.grad(pair)(1.0)
    with refuses(TypeError, "grad: argument x['a'] of", line(pair), "'text'"):
        mw.grad(pair)({"a": "text"})
    for derivative in (mw.grad, mw.jacfwd, mw.jacrev):
        with refuses(TypeError, "argnums must be an int or a sequence of ints", "'x'"):
            derivative(pair, argnums="x")(1.0)
        with refuses(TypeError, "argnums", "[0, 'x']"):
            derivative(pair, argnums=[0, "x"])(1.0)
    with refuses(TypeError, f"checkpoint of {line(pair)}", "argument x", "'text'"):
        mw.checkpoint(pair)("text")


def rules(fwd, bwd):
    f = mw.custom_vjp(lambda x, p: p["k"] * x)
    f.defvjp(fwd, bwd)
    return mw.vjp(f, 2.0, {"k": 3.0})[1](1.0)


def test_rules_that_return_something_else(refuses):
    keep = lambda x, p: (p["k"] * x, None)  # noqa: E731
    with refuses(TypeError, "custom_vjp <lambda>", "argument x", "{'a': *}", "at the top: a leaf against a dict"):
        rules(keep, lambda r, ct: ({"a": ct}, {"k": ct}))
    with refuses(TypeError, "custom_vjp <lambda>", "argument p", "{'l': *}", "keys 'k' against a dict with keys 'l'"):
        rules(keep, lambda r, ct: (ct, {"l": ct}))
    with refuses(TypeError, "forward rule returns output of type f32[2]", "the function f32[]"):
        rules(lambda x, p: (mnp.ones(2), None), lambda r, ct: (ct, None))
    with refuses(TypeError, "forward rule returns output structure (*, *)", "the function *"):
        rules(lambda x, p: ((x, x), None), lambda r, ct: (ct, None))
    # None stands for a whole argument, and for a leaf
    assert [float(x) for x in mw.tree.leaves(rules(keep, lambda r, ct: (ct * 5, None)))] == [5.0, 0.0]
    assert [float(x) for x in mw.tree.leaves(rules(keep, lambda r, ct: (None, {"k": ct * 7})))] == [0.0, 7.0]
    assert [float(x) for x in mw.tree.leaves(rules(keep, lambda r, ct: (ct, {"k": None})))] == [1.0, 0.0]


# --- vmap and conversions -----------------------------------------------------------------------------------
def test_results_and_arguments_of_vmap(refuses):
    where = f"vmap of {line(pair)}"
    with refuses(ValueError, where, "result[1]['k']", "out_axes is None", "differs along the mapped axis"):
        mw.vmap(pair, out_axes=(0, None))(X)
    with refuses(ValueError, where, "result[0]", "axis 4", "2 dimensions"):
        mw.vmap(pair, out_axes=4)(X)
    with refuses(TypeError, where, "argument x[1]", "'text'"):
        mw.vmap(pair)([X, "text"])
    with refuses(TypeError, "vmap of <lambda>", "result['a'] is no array", "'text'"):
        mw.vmap(lambda x: {"a": "text", "b": x})(X)


def test_traced_values_name_the_function_they_are_arguments_of(refuses):
    def takes(n):
        return list(range(n))

    with refuses(errors.TracerIntegerConversionError, f"from argument n of {line(takes)}", "static_argnums"):
        mw.jit(takes)(3)


def test_sizes_that_are_traced(refuses):
    def counts(n):
        return mnp.arange(n)

    with refuses(
        errors.ConcretizationTypeError, "arange: stop", f"from argument n of {line(counts)}", "static_argnums"
    ):
        mw.jit(counts)(3)


def test_the_truth_of_several_values(refuses):
    with refuses(TypeError, "bool()", "(2, 3)", ".any()", ".all()"):
        bool(mnp.asarray(X))


TREE = {"a": np.arange(2, dtype=np.float32), "b": (np.float32(1), np.ones((2, 2), np.float32))}

#: what a backward rule returns for arguments x: f32[3] and tree, and what the error says
WRONG_COTANGENTS = {
    "text": (("no", None), "cotangent of argument x is no array: expected an array or a number, got 'no' of type str"),
    "an object in a tree": ((None, {**TREE, "b": (object(), None)}), "argument tree['b'][0] is no array"),
    "text in a tree": ((None, {**TREE, "a": "no"}), "argument tree['a'] is no array"),
    "objects of NumPy": ((np.array([None, 1, 2]), None), "argument x is no array: NumPy value of dtype object"),
    "a function": ((np.sin, None), "argument x is no array"),
    "nothing": (None, "for each of the 2 differentiable arguments (x, tree), got None"),
    "one of two": ((1.0,), "for each of the 2 differentiable arguments (x, tree), got (*,)"),
    "no tuple": (np.ones(3), "for each of the 2 differentiable arguments (x, tree), got a value of type ndarray"),
    "another shape": ((np.ones(4, np.float32), None), "cotangent of type f32[4] for argument x of type f32[3]"),
    "another shape in a tree": (
        (None, {**TREE, "b": (np.ones(2, np.float32), None)}), "f32[2] for argument tree['b'][0] of type f32[]",
    ),
    "integers": ((np.ones(3, np.int32), None), "cotangent of type i32[3] for argument x of type f32[3]"),
    "bools": ((np.ones(3, bool), None), "cotangent of type bool[3] for argument x of type f32[3]"),
    "complex": ((np.ones(3, np.complex64), None), "cotangent of type c64[3] for argument x of type f32[3]"),
    "another structure": ((None, {"a": None}), "cotangent of argument tree has structure {'a': *}"),
    "a tuple for an array": (((None, None), None), "cotangent of argument x has structure (*, *)"),
}  # fmt: skip


def backward_returns(cotangents):
    @mw.custom_vjp
    def scaled(factor, x, tree):
        return factor * x.sum() + tree["a"].sum()

    static = mw.custom_vjp(scaled.fun, nondiff_argnums=(0,))
    static.defvjp(lambda factor, x, tree: (scaled.fun(factor, x, tree), None), lambda factor, res, g: cotangents)
    return lambda x: mw.grad(static, (1, 2))(2, x, TREE)


@pytest.mark.parametrize("name", WRONG_COTANGENTS)
def test_wrong_cotangents(name, refuses):
    cotangents, message = WRONG_COTANGENTS[name]
    run, x = backward_returns(cotangents), np.ones(3, np.float32)
    for call in (run, mw.jit(run), lambda x: mw.vmap(run)(np.stack([x, x]))):
        with refuses((TypeError, ValueError), "custom_vjp scaled: the backward rule", message):
            call(x)


def test_wrong_results_of_forward_rules(refuses):
    def returns(out, residuals):
        f = mw.custom_vjp(lambda x: {"y": x})
        f.defvjp(lambda x: (out, residuals), lambda res, g: (g["y"],))
        return lambda: mw.grad(lambda x: f(x)["y"])(1.0)

    for out, residuals, message in (
        ({"y": "no"}, None, "returns output['y'], which is no array"),
        ({"y": 1.0}, [1, "no"], "returns residuals[1], which is no array"),
        ({"y": np.ones(3)}, None, "returns output['y'] of type f32[3], the function f32[]"),
    ):
        run = returns(out, residuals)
        for call in (run, mw.jit(run)):
            with refuses((TypeError, ValueError), "custom_vjp <lambda>: the forward rule", message):
                call()


def test_wrong_tangents(refuses):
    def returns(out, tangent):
        f = mw.custom_jvp(lambda x: (x, x))
        f.defjvp(lambda primals, tangents: (out, tangent))
        return lambda: mw.jvp(f, (1.0,), (1.0,))

    for out, tangent, message in (
        (("no", 1.0), (1.0, 1.0), "the rule returned output[0], which is no array"),
        ((1.0, 1.0), (1.0, "no"), "the rule returned the tangent of output[1], which is no array"),
        ((1.0, 1.0), (1.0, np.ones(3)), "the rule returned the tangent of output[1] of type f32[3]"),
        ((1.0, 1.0), None, "the rule returned structures (*, *) and None"),
        (1.0, None, "the rule returned structures * and None"),
    ):
        run = returns(out, tangent)
        for call in (run, mw.jit(run)):
            with refuses((TypeError, ValueError), "custom_jvp <lambda>", message):
                call()
