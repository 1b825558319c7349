"""A GPT-style transformer, written for one device, learns five sonnets character by character on a 2×4 mesh.

Run it with ``python examples/gpt.py [steps]``. Batches are split over ``data``, heads and wide layers over ``model``,
as in Megatron-LM (Shoeybi et al. 2019).
"""

import pathlib
import sys

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, nn, random
from meshwright import PartitionSpec as P

LAYERS, WIDTH, HEADS, LENGTH, BATCH = 2, 64, 4, 48, 16
TEXT = (pathlib.Path(__file__).parent / "data" / "sonnets.txt").read_text()
ALPHABET = sorted(set(TEXT))


def init(key):
    """The parameters, by name."""
    keys = iter(random.split(key, 6 * LAYERS + 3))
    normal = nn.initializers.normal(0.02)

    def block():
        shapes = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "out": (WIDTH, WIDTH)}
        shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
        weights = {name: normal(next(keys), shape) for name, shape in shapes.items()}
        return weights | {"ln1": mnp.ones(WIDTH), "ln2": mnp.ones(WIDTH)}

    return {
        "embed": normal(next(keys), (len(ALPHABET), WIDTH)),
        "position": normal(next(keys), (LENGTH, WIDTH)),
        "blocks": [block() for _ in range(LAYERS)],
        "ln": mnp.ones(WIDTH),
        "head": normal(next(keys), (WIDTH, len(ALPHABET))),
    }


def forward(params, tokens):
    """Logits ``(batch, length, alphabet)`` for tokens ``(batch, length)``."""
    batch, length = tokens.shape
    x = params["embed"][tokens] + params["position"][:length]
    for p in params["blocks"]:
        h = nn.layer_norm(x, p["ln1"])
        q, k, v = ((h @ p[n]).reshape(batch, length, HEADS, WIDTH // HEADS) for n in "qkv")
        mixed = nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.reshape(batch, length, WIDTH) @ p["out"]
        x = x + nn.gelu(nn.layer_norm(x, p["ln2"]) @ p["up"]) @ p["down"]
    return nn.layer_norm(x, params["ln"]) @ params["head"]


def loss(params, tokens, targets):
    """Mean cross entropy of the next character."""
    return nn.softmax_cross_entropy_with_integer_labels(forward(params, tokens), targets).mean()


def step(params, mean, square, tokens, targets, count):
    """One step of Adam."""
    value, grads = mw.value_and_grad(loss)(params, tokens, targets)
    mean = mw.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = mw.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, grads)
    rate = 3e-3 * mnp.sqrt(1 - 0.99**count) / (1 - 0.9**count)
    params = mw.tree.map(lambda p, m, s: p - rate * m / (mnp.sqrt(s) + 1e-8), params, mean, square)
    return value, params, mean, square


def placements(mesh):
    """The shardings of parameters and batches."""

    def on(*spec):
        return NamedSharding(mesh, P(*spec))

    columns, rows, whole = on(None, "model"), on("model"), on()
    block = dict.fromkeys(("q", "k", "v", "up"), columns) | dict.fromkeys(("out", "down"), rows)
    block |= {"ln1": whole, "ln2": whole}
    weights = {"embed": whole, "position": whole, "blocks": [block] * LAYERS, "ln": whole, "head": whole}
    return weights, on("data")


def batches(rng):
    """An endless sequence of random pieces of the text, each with the same piece one character later."""
    codes = np.array([ALPHABET.index(c) for c in TEXT], np.int32)
    while True:
        starts = rng.integers(0, len(codes) - LENGTH - 1, BATCH)
        yield (np.stack([codes[s + shift : s + shift + LENGTH] for s in starts]) for shift in (0, 1))


def main(steps=300):
    """Train, then print what a step sends."""
    mesh = mw.make_mesh((2, 4), ("data", "model"))
    weights, batch = placements(mesh)
    params = mw.device_put(init(random.key(0)), weights)
    zeros = mw.tree.map(lambda p: np.zeros(p.shape, p.dtype), params)
    mean, square = mw.device_put(zeros, weights), mw.device_put(mw.tree.map(np.copy, zeros), weights)
    run = mw.jit(
        step,
        in_shardings=(weights, weights, weights, batch, batch, None),
        out_shardings=(None, weights, weights, weights),
        donate_argnums=(0, 1, 2),
    )
    data = batches(np.random.default_rng(0))
    for count in range(1, steps + 1):
        tokens, targets = next(data)
        value, params, mean, square = run(params, mean, square, tokens, targets, np.float32(count))
        if count == 1 or count % 100 == 0 or count == steps:
            print(f"step {count}: loss {float(value):.3f}")
    part = run.lower(params, mean, square, tokens, targets, np.float32(1)).partition()
    print("\n".join(part.explain().splitlines()[:7]))
    worst = max(d.relative for d in part.verify(params, mean, square, tokens, targets, np.float32(count)))
    print(f"bytes sent a step: {part.bytes_sent:,}; largest relative difference to one device: {worst:.1e}")
    return float(value)


if __name__ == "__main__":
    mw.config.update("num_devices", 8)
    main(*map(int, sys.argv[1:]))
