"""Known architectures, small, with random weights: values and gradients are torch's, also of the partitioned program.

``python tests/interop/model_zoo.py`` prints the table.
"""

import copy
import re

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
pytest.importorskip("transformers", reason="transformers is not installed: make test-torch")

import model_zoo

import meshwright as mw

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def torchvision_that_works():
    """A build for another torch cannot be imported, and transformers then neither."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return
    except RuntimeError as error:
        pytest.skip(f"torchvision does not fit this torch: {error}")


@pytest.mark.parametrize("name", model_zoo.MODELS)
def test_models_are_torchs_and_verified_on_4_by_2(name):
    with model_zoo.precision(name):
        model, forward, gradient, arrays, named = model_zoo.measured(name)
        part, _ = model_zoo.partitioned(model, arrays, named)
    assert forward < 1e-5 and gradient < 1e-5
    assert all(c.source.is_known for c in part.collectives)
    explained = re.split(r"\n +\d+\. ", str(part.explain()))[1:]
    named = re.compile(
        r"in the sharding of input \d+ \((p\[|args|kwargs|a)|in the products at \S+:\d+ .*, which devices"
    )
    assert all(named.search(e) for e in explained), explained


def test_language_models_return_caches_and_take_them():
    """As they are by default, without ``use_cache=False``: a prompt, then one token after it."""
    import torch
    import transformers

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=64)
    module = transformers.LlamaForCausalLM(config).eval()
    prompt, token = torch.arange(12).reshape(2, 6), torch.tensor([[7], [9]])
    with torch.no_grad():
        first = module(prompt)
        kind = next(name for name in first if name != "logits")  # its name differs between versions
        begin = mw.from_torch(module, (prompt,))
        y = begin(begin.params, prompt.numpy())
        go_on = mw.from_torch(module, (token,), kwargs={kind: copy.deepcopy(first[kind])})
        want = module(token, **{kind: first[kind]})
    z = go_on(go_on.params, token.numpy(), **{kind: y[kind]})
    np.testing.assert_allclose(z["logits"], want.logits, atol=1e-5)
    assert [k.shape for k in z[kind]["key_cache"]] == [(2, 2, 7, 8)] * 2
