# ruff: noqa: E501
"""Every function of the library that holds a loop ends for every argument: invalid, infinite, NaN, of any sign."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright

ROOT = Path(meshwright.__file__).parent
#: who may bind loops, and why these end
BOUNDED = {
    "api/control_flow.py": "the users' loops",
    "api/measuring.py": "a loop of a thousand steps",
    "ops/control/scan.py": "as many steps as there are slices",
    "ops/control/while_loop.py": "the op itself",
    "ops/control/reading.py": "the loops of programs that are read",
    "ops/elementwise/expanded.py": "a counter",
    "ops/special/incomplete_gamma.py": "as many steps as there are nodes",
    "ops/linalg/lu.py": "as many steps as there are pivots",
    "lax/polar.py": "a counter",
    "lowering/kernel_gradients.py": "a counter",
    "numpy/integers.py": "Euclid's algorithm: remainders fall",
    "numpy/linalg/powers.py": "a fixed number of squarings",
    "numpy/searching.py": "halving",
    "numpy/ufuncs.py": "as many steps as there are elements",
    "ode.py": "each step comes nearer to the next time, or is shorter than the one before, and none too short to be seen",
    "random/counts.py": "a counter",
    "scipy/linalg/functions.py": "as many steps as there are columns",
    "scipy/optimize.py": "a counter",
    "scipy/sparse/linalg.py": "at most maxiter steps",
}


def test_loops_are_where_it_is_known_why_they_end() -> None:
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if node.func.id in ("while_loop", "fori_loop", "While"):
                    found.add(path.relative_to(ROOT).as_posix())
    transformations = {p for p in found if p.startswith(("spmd/", "transforms/"))}
    assert found - transformations <= set(BOUNDED), found - transformations - set(BOUNDED)


PROGRAM = """
import itertools, sys, numpy as np, meshwright as mw
import meshwright.numpy as mnp
from meshwright import lax, nn, random
from meshwright.scipy import special, stats
SPECIAL = np.array([0.0, -0.0, 0.5, 1.0, -1.0, -2.5, 3.0, 30.0, 1e30, -1e30, 1e-30, np.inf, -np.inf, np.nan], np.float32)
INTEGERS = np.array([0, 1, -1, 2, -128, 127, 90, 35], np.int8)
KEY = random.key(0)
PARTS, EVERY = sys.argv[1].split(","), int(sys.argv[2])

def grid(n, values=SPECIAL):
    return [np.ravel(x) for x in np.meshgrid(*[values] * n, indexing="ij")]

CASES = {
    "gamma": {n: (lambda f: lambda: f(*grid(2)))(f) for n, f in [
        ("igamma", lax.igamma), ("igammac", lax.igammac), ("igamma_grad_a", lax.igamma_grad_a),
        ("random_gamma_grad", lax.random_gamma_grad), ("gammainc", special.gammainc), ("gammaincc", special.gammaincc),
        ("slope of gammainc", lambda a, x: mw.grad(lambda a, x: special.gammainc(a, x).sum(), (0, 1))(a, x)),
        ("gamma.cdf", stats.gamma.cdf), ("chi2.cdf", stats.chi2.cdf), ("chi2.sf", stats.chi2.sf), ("poisson.cdf", stats.poisson.cdf),
        ("expn", lambda n, x: special.expn(mnp.clip(n, -5, 5).astype("int32"), x)), ("expn float", special.expn), ("zeta", lax.zeta),
        ("polygamma", lax.polygamma), ("owens_t", special.owens_t), ("poch", special.poch), ("comb", special.comb),
    ]},
    "beta": {n: (lambda f: lambda: f(*grid(3)))(f) for n, f in [
        ("betainc", lax.betainc), ("special.betainc", special.betainc), ("beta.cdf", stats.beta.cdf),
        ("slope of betainc", lambda a, b, x: mw.grad(lambda x: special.betainc(a, b, x).sum())(x)),
    ]},
    "one": {n: (lambda f: lambda: f(SPECIAL))(f) for n, f in [
        ("lgamma", lax.lgamma), ("digamma", lax.digamma), ("i0e", lax.bessel_i0e), ("i1e", lax.bessel_i1e), ("erf_inv", lax.erf_inv),
        ("expi", special.expi), ("exp1", special.exp1), ("sici", special.sici), ("fresnel", special.fresnel), ("dawsn", special.dawsn),
        ("erfcx", special.erfcx), ("spence", special.spence), ("bernoulli", lambda x: special.bernoulli(9)), ("ndtri", special.ndtri),
        ("gammasgn", special.gammasgn), ("multigammaln", lambda x: special.multigammaln(x, 3)), ("factorial", special.factorial),
    ]},
    "random": {n: (lambda f: lambda: f(SPECIAL))(f) for n, f in [
        ("gamma", lambda a: random.gamma(KEY, a)), ("loggamma", lambda a: random.loggamma(KEY, a)),
        ("beta", lambda a: random.beta(KEY, *grid(2))), ("chisquare", lambda a: random.chisquare(KEY, a)),
        ("dirichlet", lambda a: random.dirichlet(KEY, np.stack(grid(2), -1))), ("t", lambda a: random.t(KEY, a)),
        ("poisson", lambda a: random.poisson(KEY, a)), ("binomial", lambda a: random.binomial(KEY, *grid(2))),
        ("multinomial", lambda a: random.multinomial(KEY, a, np.stack([SPECIAL] * 2, -1))), ("f", lambda a: random.f(KEY, *grid(2))),
        ("generalized_normal", lambda a: random.generalized_normal(KEY, a, a.shape)), ("geometric", lambda a: random.geometric(KEY, a)),
        ("truncated_normal", lambda a: random.truncated_normal(KEY, *grid(2))), ("ball", lambda a: random.ball(KEY, 3, 0.5, (4,))),
        ("wald", lambda a: random.wald(KEY, a)), ("pareto", lambda a: random.pareto(KEY, a)),
        ("slope of gamma", lambda a: mw.grad(lambda a: random.gamma(KEY, a).sum())(a)),
        ("categorical", lambda a: random.categorical(KEY, a)), ("choice", lambda a: random.choice(KEY, 14, (5,), p=a)),
    ]},
    "others": {
        "gcd": lambda: mnp.gcd(*grid(2, INTEGERS)), "lcm": lambda: mnp.lcm(*grid(2, INTEGERS)),
        "searchsorted": lambda: mnp.searchsorted(SPECIAL, SPECIAL),
        **{f"{name} of {v}": (lambda f, v: lambda: f(np.full((3, 3), v, np.float32)))(f, v)
           for v in (np.inf, np.nan, 1e30, 0.0) for name, f in [
            ("expm", mnp.linalg.expm), ("qdwh", lambda a: lax.linalg.qdwh(a)), ("eigh", mnp.linalg.eigh), ("svd", mnp.linalg.svd),
            ("eigvals", mnp.linalg.eigvals), ("lu", lambda a: lax.linalg.lu(a)), ("matrix_power", lambda a: mnp.linalg.matrix_power(a, 5)),
        ]},
        **{f"minimize from {v}": (lambda v: lambda: __import__("meshwright.scipy.optimize").scipy.optimize.minimize(
            lambda x: (x ** 2).sum(), np.full(2, v, np.float32), method="BFGS"))(v) for v in (np.inf, np.nan, 1e30)},
    },
}
for part in PARTS:
    for name, f in list(CASES[part].items())[::EVERY]:
        print(name, flush=True)
        try:
            mw.block_until_ready(f())
        except mw.errors.MeshwrightError as error:
            print("   refused:", str(error)[:80])
print("all ended")
"""


@pytest.mark.slow
@pytest.mark.parametrize("part", ["gamma,one", "beta,random", "others"])
def test_every_function_ends(part: str) -> None:
    ends(part, 1)


def test_some_functions_end() -> None:
    ends("gamma,one,beta,random,others", 10)


def ends(part: str, every: int) -> None:
    """In a process of its own, since nothing stops a compiled program."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, part, str(every)], capture_output=True, text=True, timeout=400
        )
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout or b""
        last = (output.decode() if isinstance(output, bytes) else output).strip().splitlines()[-1:]
        pytest.fail(f"did not end: {last}")
    assert done.stdout.strip().endswith("all ended"), done.stdout[-500:] + done.stderr[-2000:]
