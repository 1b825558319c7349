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


def test_caches_of_programs_that_torch_traces_twice():
    """Torch does so where a forward writes. A cache computes something while it is made, which is no part of the
    program."""
    import torch
    import transformers

    class Embedded(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids, image):
            embedded = self.model.get_input_embeddings()(ids).clone()
            embedded[:, :2] = image
            return self.model(inputs_embeds=embedded)

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(0)
    module = Embedded(transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=64)).eval())
    ids, image = torch.arange(12).reshape(2, 6), torch.randn(2, 2, 32)
    model, want = mw.from_torch(module, (ids, image)), module(ids, image)
    y = model(model.params, ids.numpy(), image.numpy())
    np.testing.assert_allclose(y["logits"], want.logits.detach(), atol=1e-5)
    (kind,) = set(y) - {"logits"}
    np.testing.assert_allclose(y[kind]["key_cache"][1], want[kind].layers[1].keys.detach(), atol=1e-5)


def test_encoders_and_decoders_return_pairs_of_caches():
    import torch
    import transformers

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "vocab_size": 64}
    module = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes)).eval()
    ids = torch.arange(12).reshape(2, 6)
    given = {"input_ids": ids, "decoder_input_ids": ids[:, :4]}
    model, want = mw.from_torch(module, kwargs=given), module(**given)
    y = model(model.params, **{name: x.numpy() for name, x in given.items()})
    kind = next(name for name in want if "cache" in name or name == "past_key_values")
    np.testing.assert_allclose(y["logits"], want.logits.detach(), atol=1e-5)
    assert y[kind]["self_attention_cache"]["key_cache"][0].shape == (2, 4, 4, 8)
