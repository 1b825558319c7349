"""Model-agnostic meta-learning (Finn et al. 2017): a network learns to fit any sine wave from ten points in one step.

Run it with ``python examples/maml.py [steps]``. The outer gradient differentiates the inner one: second derivatives,
under ``vmap`` over tasks. The tasks are split over all eight devices of a mesh, which exchange only the gradient.
"""

import sys

import numpy as np

import meshwright as mw
import meshwright.numpy as mnp
from meshwright import NamedSharding, nn, optim, random
from meshwright import PartitionSpec as P

WIDTH, TASKS, SHOTS, INNER_RATE = 40, 32, 10, 0.03
TUNE = optim.adam(5e-3)


def init(key):
    """The weights and biases of three layers."""
    sizes = ((1, WIDTH), (WIDTH, WIDTH), (WIDTH, 1))
    he = nn.initializers.he_normal()
    return [(he(k, s), mnp.zeros(s[1])) for k, s in zip(random.split(key, 3), sizes)]


def network(params, x):
    """The network's values at ``x``, of shape ``(points, 1)``."""
    *hidden, (kernel, bias) = params
    for w, b in hidden:
        x = nn.tanh(nn.dense(x, w, b))
    return nn.dense(x, kernel, bias)


def task_loss(params, x, y):
    """The mean squared error on a task's points."""
    return nn.mse(network(params, x), y)


def adapt(params, x, y, steps=1):
    """The parameters after ``steps`` of gradient descent on a task's points."""
    for _ in range(steps):
        grads = mw.grad(task_loss)(params, x, y)
        params = mw.tree.map(lambda p, g: p - INNER_RATE * g, params, grads)
    return params


def meta_loss(params, x, y, x_new, y_new):
    """The mean loss on new points of each task, after one step on its old ones."""
    losses = mw.vmap(lambda *task: task_loss(adapt(params, *task[:2]), *task[2:]))(x, y, x_new, y_new)
    return losses.mean()


def step(params, state, *tasks):
    """One step of Adam on the meta-loss."""
    value, grads = mw.value_and_grad(meta_loss)(params, *tasks)
    return value, *TUNE.update(grads, state, params)


def sines(rng, tasks=TASKS):
    """Points of random sine waves: ``x, y, x_new, y_new``, each ``(tasks, points, 1)``."""
    height, phase = rng.uniform(0.1, 5.0, (tasks, 1, 1)), rng.uniform(0, np.pi, (tasks, 1, 1))
    xs = [rng.uniform(-5, 5, (tasks, SHOTS, 1)) for _ in range(2)]
    return [np.asarray(v, np.float32) for x in xs for v in (x, height * np.sin(x - phase))]


def main(steps=1500):
    """Train, adapt to new tasks, then print what a step sends."""
    mesh = mw.make_mesh((8,), ("tasks",))
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("tasks"))
    params = mw.device_put(init(random.key(0)), whole)
    state = mw.device_put(TUNE.init(params), whole)
    run = mw.jit(step, in_shardings=(whole, whole, split, split, split, split), out_shardings=(None, whole, whole))
    rng = np.random.default_rng(0)
    for count in range(1, steps + 1):
        tasks = sines(rng)
        value, params, state = run(params, state, *tasks)
        if count == 1 or count % 500 == 0 or count == steps:
            print(f"step {count}: loss after one inner step {float(value):.3f}")
    x, y, x_new, y_new = sines(np.random.default_rng(1), 200)
    for inner in (0, 1, 5):
        losses = mw.jit(mw.vmap(lambda x, y, a, b, n=inner: task_loss(adapt(params, x, y, n), a, b)))(
            x, y, x_new, y_new
        )
        print(f"new tasks, {inner} inner steps: loss {float(losses.mean()):.3f}")
    part = run.lower(params, state, *tasks).partition()
    print("\n".join(part.explain().splitlines()[:4]))
    worst = max(d.relative for d in part.verify(params, state, *tasks))
    print(f"bytes sent a step: {part.bytes_sent:,}; largest relative difference to one device: {worst:.1e}")
    return float(value)


if __name__ == "__main__":
    mw.config.update("num_devices", 8)
    main(*map(int, sys.argv[1:]))
