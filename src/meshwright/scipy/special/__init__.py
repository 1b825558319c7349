"""Special functions, with the names of ``jax.scipy.special``."""

from meshwright.core.absent import absent as _absent
from meshwright.numpy.stages import give_stages as _give_stages
from meshwright.scipy.special.bessel import i0, i0e, i1, i1e
from meshwright.scipy.special.entropies import (
    boxcox,
    boxcox1p,
    entr,
    expit,
    kl_div,
    log_softmax,
    logit,
    logsumexp,
    rel_entr,
    softmax,
    xlog1py,
    xlogy,
)
from meshwright.scipy.special.gammas import (
    bernoulli,
    beta,
    betainc,
    betaln,
    comb,
    digamma,
    factorial,
    gamma,
    gammainc,
    gammaincc,
    gammaln,
    gammasgn,
    loggamma,
    multigammaln,
    poch,
    polygamma,
    zeta,
)
from meshwright.scipy.special.integrals import exp1, expi, expn, fresnel, sici, spence
from meshwright.scipy.special.normal import (
    dawsn,
    erf,
    erfc,
    erfcx,
    erfinv,
    log_ndtr,
    ndtr,
    ndtri,
    owens_t,
)

__all__ = [
    "bernoulli", "beta", "betainc", "betaln", "boxcox", "boxcox1p", "comb", "dawsn", "digamma", "entr", "erf", "erfc",
    "erfcx", "erfinv", "exp1", "expi", "expit", "expn", "factorial", "fresnel", "gamma", "gammainc", "gammaincc",
    "gammaln", "gammasgn", "i0", "i0e", "i1", "i1e", "kl_div", "log_ndtr", "log_softmax", "loggamma", "logit",
    "logsumexp", "multigammaln", "ndtr", "ndtri", "owens_t", "poch", "polygamma", "rel_entr", "sici", "softmax",
    "spence", "xlog1py", "xlogy", "zeta",
]  # fmt: skip

_give_stages(globals())

__getattr__ = _absent("scipy.special")
