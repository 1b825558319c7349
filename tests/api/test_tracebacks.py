"""Errors show the user's frames, and ours only when asked for."""

import traceback

import pytest

import meshwright as mw
import meshwright.numpy as mnp
from meshwright.errors import MeshwrightError

X = mnp.ones((2, 3))


def wrong(x):
    return mnp.dot(x, mnp.ones((7, 3))).sum()


@mw.custom_vjp
def with_wrong_rule(x):
    return x.sum()


with_wrong_rule.defvjp(lambda x: (with_wrong_rule(x), x), lambda x, ct: (wrong(x),))


CALLS = {
    "jit": lambda: mw.jit(wrong)(X),
    "lower": lambda: mw.jit(wrong).lower(X),
    "grad": lambda: mw.grad(wrong)(X),
    "jit of grad": lambda: mw.jit(mw.grad(wrong))(X),
    "vmap": lambda: mw.vmap(wrong)(X),
    "jit of vmap of grad": lambda: mw.jit(mw.vmap(mw.grad(wrong)))(X),
    "jvp": lambda: mw.jvp(wrong, (X,), (X,)),
    "vjp": lambda: mw.vjp(wrong, X),
    "linearize": lambda: mw.linearize(wrong, X),
    "make_jaxpr": lambda: mw.make_jaxpr(wrong)(X),
    "eval_shape": lambda: mw.eval_shape(wrong, X),
    "scan": lambda: mw.lax.scan(lambda c, x: (c, wrong(x)), 0, X),
    "cond": lambda: mw.lax.cond(True, wrong, wrong, X),
    "checkpoint": lambda: mw.checkpoint(wrong)(X),
    "shard_map": lambda: mw.shard_map(wrong, mesh=mw.make_mesh((1,), ("d",)), in_specs=mw.P(), out_specs=mw.P())(X),
    "custom_vjp": lambda: mw.grad(with_wrong_rule)(X),
    "associative_scan": lambda: mw.lax.associative_scan(lambda x, y: wrong(x), X),
    "partition": lambda: mw.jit(wrong).lower(X).partition(),
    "jacfwd": lambda: mw.jacfwd(wrong)(X),
}


def caught(call):
    with pytest.raises(MeshwrightError) as info:
        call()
    error = info.value
    functions = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return error, [
        code for code in functions if "meshwright/" in code.co_filename and "/tests/" not in code.co_filename
    ]


@pytest.mark.parametrize("name", sorted(CALLS))
def test_at_most_the_entered_function_of_ours_is_shown(name):
    with mw.config.override("traceback_filtering", "auto"):
        error, own = caught(CALLS[name])
    assert len(own) <= 1, own
    assert any(frame.f_code is wrong.__code__ for frame, _ in traceback.walk_tb(error.__traceback__))
    assert any("MESHWRIGHT_TRACEBACK_FILTERING=off" in note for note in error.__notes__)
    assert len(error.__notes__) == 1


def test_all_is_shown_when_asked_for():
    with mw.config.override("traceback_filtering", "off"):
        error, own = caught(CALLS["jit of grad"])
    assert len(own) > 5 and not hasattr(error, "__notes__")


def test_the_note_can_be_left_out():
    with mw.config.override("traceback_filtering", "quiet_remove_frames"):
        error, own = caught(CALLS["jit of grad"])
    assert len(own) <= 1 and not hasattr(error, "__notes__")


def test_the_user_s_own_exceptions_keep_their_frames_and_causes():
    def helper():
        raise KeyError("inner")

    def f(x):
        try:
            helper()
        except KeyError as error:
            raise ValueError("outer") from error

    with mw.config.override("traceback_filtering", "auto"), pytest.raises(ValueError, match="outer") as info:
        mw.jit(mw.grad(f))(1.0)
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(info.value.__traceback__)]
    assert names[-1] == "f" and isinstance(info.value.__cause__, KeyError)
    assert [frame.f_code.co_name for frame, _ in traceback.walk_tb(info.value.__cause__.__traceback__)] == [
        "f",
        "helper",
    ]
