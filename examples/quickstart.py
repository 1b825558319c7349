"""The program on the README's first screen."""

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding
from meshwright import PartitionSpec as P
from meshwright.inspect.picture import picture_of

mw.config.update("num_devices", 8)  # virtual devices: they share this machine


def layer(x, w1, w2):  # written for one device
    hidden = mnp.maximum(x @ w1, 0)
    return hidden @ w2


mesh = mw.make_mesh((4, 2), ("data", "model"))
x, w1, w2 = mnp.ones((128, 512)), mnp.ones((512, 2048)), mnp.ones((2048, 512))
shardings = tuple(NamedSharding(mesh, spec) for spec in (P("data"), P(None, "model"), P("model")))
sharded = mw.jit(layer, in_shardings=shardings)

y = sharded(x, w1, w2)
print(picture_of(y.shape, y.sharding))

part = sharded.lower(x, w1, w2).partition()
print(part.jaxpr)
print(part.explain())
print(part.verify(x, w1, w2))
