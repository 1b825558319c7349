"""A variational autoencoder (Kingma and Welling 2014) learns the handwritten digits on a 2×4 mesh.

Run it with ``python examples/vae.py [steps]``. Batches are split over ``data``, the wide layers over ``model``. Noise
is drawn where it is used, and each device draws its own part of it. At the end, new digits are sampled from the prior.
"""

import sys

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, nn, optim, random
from meshwright import PartitionSpec as P
from meshwright.cli.digits import load_digits

PIXELS, WIDTH, LATENT, BATCH = 64, 256, 16, 128


class Dense(nn.Module):
    """A matrix and a bias."""

    kernel: mw.Array
    bias: mw.Array

    @classmethod
    def init(cls, key, inputs, outputs):
        return cls(nn.initializers.glorot_normal()(key, (inputs, outputs)), mnp.zeros(outputs))

    def __call__(self, x):
        return nn.dense(x, self.kernel, self.bias)


class VAE(nn.Module):
    """Encoder and decoder: images to the mean and log-variance of a normal latent, and latents to logits of pixels."""

    encoder: Dense
    to_latent: Dense
    from_latent: Dense
    decoder: Dense

    @classmethod
    def init(cls, key):
        sizes = ((PIXELS, WIDTH), (WIDTH, 2 * LATENT), (LATENT, WIDTH), (WIDTH, PIXELS))
        return cls(*(Dense.init(k, *s) for k, s in zip(random.split(key, 4), sizes)))

    def encode(self, images):
        return mnp.split(self.to_latent(nn.silu(self.encoder(images))), 2, axis=-1)

    def decode(self, latents):
        return self.decoder(nn.silu(self.from_latent(latents)))


def loss(model, images, key):
    """The negative evidence lower bound, in nats per image."""
    mean, logvar = model.encode(images)
    latents = mean + mnp.exp(logvar / 2) * random.normal(key, mean.shape)
    reconstruction = nn.sigmoid_binary_cross_entropy(model.decode(latents), images).sum(-1)
    divergence = 0.5 * (mnp.exp(logvar) + mean**2 - 1 - logvar).sum(-1)
    return (reconstruction + divergence).mean()


TUNE = optim.adam(optim.warmup_cosine(3e-3, 20, 600, end=3e-4))


def step(model, state, images, key):
    """One step of Adam."""
    value, grads = mw.value_and_grad(loss)(model, images, key)
    return value, *TUNE.update(optim.clip_by_global_norm(grads, 10.0), state, model)


def placements(mesh):
    """The shardings of parameters, optimizer state and batches."""

    def on(*spec):
        return NamedSharding(mesh, P(*spec))

    wide, narrow = Dense(on(None, "model"), on("model")), Dense(on("model"), on())
    model = VAE(wide, narrow, wide, narrow)
    return model, {"step": on(), "mean": model, "square": model}, on("data")


def picture(rows):
    """Images of 8×8 pixels side by side, as text."""
    shades = np.array(list(" .:-=+*#%@"))
    grey = np.clip(rows * 9.99, 0, 9).astype(int).reshape(-1, 8, 8)
    return "\n".join("  ".join("".join(shades[image[y]]) for image in grey) for y in range(8))


def main(steps=400):
    """Train, draw digits, then print what a step sends."""
    mesh = mw.make_mesh((2, 4), ("data", "model"))
    placed, states, batch = placements(mesh)
    key = random.key(0)
    model = mw.device_put(VAE.init(key), placed)
    state = mw.device_put(TUNE.init(model), states)
    run = mw.jit(
        step, in_shardings=(placed, states, batch, None), out_shardings=(None, placed, states), donate_argnums=(0, 1)
    )
    images = load_digits()[0].reshape(-1, PIXELS)
    rng = np.random.default_rng(0)
    for count in range(1, steps + 1):
        chosen = images[rng.integers(0, len(images), BATCH)]
        value, model, state = run(model, state, chosen, random.fold_in(key, count))
        if count == 1 or count % 100 == 0 or count == steps:
            print(f"step {count}: loss {float(value):.2f} nats an image")
    drawn = mw.jit(lambda m, z: nn.sigmoid(m.decode(z)))(model, random.normal(random.key(1), (8, LATENT)))
    print(picture(np.asarray(drawn)))
    part = run.lower(model, state, chosen, key).partition()
    print("\n".join(part.explain().splitlines()[:4]))
    worst = max(d.relative for d in part.verify(model, state, chosen, key))
    print(f"bytes sent a step: {part.bytes_sent:,}; largest relative difference to one device: {worst:.1e}")
    return float(value)


if __name__ == "__main__":
    mw.config.update("num_devices", 8)
    main(*map(int, sys.argv[1:]))
