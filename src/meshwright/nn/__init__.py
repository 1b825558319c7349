"""Neural-network functions: pure, of arrays, without a framework around them."""

from meshwright.nn import initializers as initializers
from meshwright.nn.activations import (
    celu as celu,
)
from meshwright.nn.activations import (
    elu as elu,
)
from meshwright.nn.activations import (
    gelu as gelu,
)
from meshwright.nn.activations import (
    glu as glu,
)
from meshwright.nn.activations import (
    hard_sigmoid as hard_sigmoid,
)
from meshwright.nn.activations import (
    hard_silu as hard_silu,
)
from meshwright.nn.activations import (
    hard_swish as hard_swish,
)
from meshwright.nn.activations import (
    hard_tanh as hard_tanh,
)
from meshwright.nn.activations import (
    leaky_relu as leaky_relu,
)
from meshwright.nn.activations import (
    log_sigmoid as log_sigmoid,
)
from meshwright.nn.activations import (
    mish as mish,
)
from meshwright.nn.activations import (
    relu as relu,
)
from meshwright.nn.activations import (
    relu6 as relu6,
)
from meshwright.nn.activations import (
    selu as selu,
)
from meshwright.nn.activations import (
    sigmoid as sigmoid,
)
from meshwright.nn.activations import (
    silu as silu,
)
from meshwright.nn.activations import (
    soft_sign as soft_sign,
)
from meshwright.nn.activations import (
    softplus as softplus,
)
from meshwright.nn.activations import (
    squareplus as squareplus,
)
from meshwright.nn.activations import (
    swish as swish,
)
from meshwright.nn.activations import (
    tanh as tanh,
)
from meshwright.nn.attention import causal_mask as causal_mask
from meshwright.nn.attention import dot_product_attention as dot_product_attention
from meshwright.nn.layers import (
    avg_pool as avg_pool,
)
from meshwright.nn.layers import (
    conv as conv,
)
from meshwright.nn.layers import (
    conv_transpose as conv_transpose,
)
from meshwright.nn.layers import (
    dense as dense,
)
from meshwright.nn.layers import (
    dropout as dropout,
)
from meshwright.nn.layers import (
    embed as embed,
)
from meshwright.nn.layers import (
    max_pool as max_pool,
)
from meshwright.nn.layers import (
    one_hot as one_hot,
)
from meshwright.nn.losses import (
    accuracy as accuracy,
)
from meshwright.nn.losses import (
    huber_loss as huber_loss,
)
from meshwright.nn.losses import (
    mae as mae,
)
from meshwright.nn.losses import (
    mse as mse,
)
from meshwright.nn.losses import (
    sigmoid_binary_cross_entropy as sigmoid_binary_cross_entropy,
)
from meshwright.nn.losses import (
    softmax_cross_entropy as softmax_cross_entropy,
)
from meshwright.nn.losses import (
    softmax_cross_entropy_with_integer_labels as softmax_cross_entropy_with_integer_labels,
)
from meshwright.nn.losses import (
    squared_error as squared_error,
)
from meshwright.nn.normalization import (
    batch_norm as batch_norm,
)
from meshwright.nn.normalization import (
    batch_norm_stats as batch_norm_stats,
)
from meshwright.nn.normalization import (
    group_norm as group_norm,
)
from meshwright.nn.normalization import (
    layer_norm as layer_norm,
)
from meshwright.nn.normalization import (
    log_softmax as log_softmax,
)
from meshwright.nn.normalization import (
    logsumexp as logsumexp,
)
from meshwright.nn.normalization import (
    rms_norm as rms_norm,
)
from meshwright.nn.normalization import (
    softmax as softmax,
)
from meshwright.nn.normalization import (
    standardize as standardize,
)
