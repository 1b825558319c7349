"""Random numbers: pure functions of a key. Same keys, bits and values as ``jax.random``."""

from meshwright.random.continuous import (
    cauchy as cauchy,
)
from meshwright.random.continuous import (
    exponential as exponential,
)
from meshwright.random.continuous import (
    gumbel as gumbel,
)
from meshwright.random.continuous import (
    laplace as laplace,
)
from meshwright.random.continuous import (
    logistic as logistic,
)
from meshwright.random.continuous import (
    normal as normal,
)
from meshwright.random.continuous import (
    rademacher as rademacher,
)
from meshwright.random.continuous import (
    truncated_normal as truncated_normal,
)
from meshwright.random.continuous import (
    uniform as uniform,
)
from meshwright.random.discrete import bernoulli as bernoulli
from meshwright.random.discrete import categorical as categorical
from meshwright.random.discrete import geometric as geometric
from meshwright.random.discrete import randint as randint
from meshwright.random.keys import PRNGKey as PRNGKey
from meshwright.random.keys import bits as bits
from meshwright.random.keys import fold_in as fold_in
from meshwright.random.keys import key as key
from meshwright.random.keys import key_data as key_data
from meshwright.random.keys import split as split
from meshwright.random.shuffling import choice as choice
from meshwright.random.shuffling import permutation as permutation
from meshwright.random.shuffling import shuffle as shuffle
