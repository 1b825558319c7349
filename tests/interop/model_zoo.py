"""Small configurations of known architectures, with random weights: what the slow test of models runs.

``python tests/interop/model_zoo.py [names…]`` prints a table: differences from torch of results and gradients,
and whether the program partitioned on 4×2 devices is verified.
"""

from __future__ import annotations

import sys
import time
import warnings

import numpy as np
import torch

import meshwright as mw

_IDS = torch.arange(24).reshape(2, 12) % 61
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
_CAUSAL = {**_SMALL, "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0}
_GROUPED = {**_CAUSAL, "num_key_value_heads": 2}


def _vision(name, size=32, **options):
    def make():
        import torchvision

        return getattr(torchvision.models, name)(num_classes=10, **options), (torch.randn(4, 3, size, size),), {}

    return make


def _transformers(model, config, inputs=None, **options):
    def make():
        import transformers

        made = getattr(transformers, config)(**options)
        given = {"input_ids": _IDS} if inputs is None else inputs() if callable(inputs) else inputs
        cached = {"use_cache": False} if hasattr(made, "use_cache") else {}
        return getattr(transformers, model)(made), (), {**given, **cached}

    return make


def _torch(make_module, *inputs):
    return lambda: (make_module(), inputs, {})


class Graph(torch.nn.Module):
    """Two layers of a graph network: features mixed over neighbours (Kipf and Welling 2017)."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x, edges):
        def mixed(h):
            return torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])

        return self.b(mixed(torch.relu(self.a(mixed(x)))))


def _pixels(size=32):
    return {"pixel_values": torch.randn(4, 3, size, size)}


def _seq2seq():
    return {"input_ids": _IDS, "decoder_input_ids": _IDS[:, :8]}


_ENCODER = {**_SMALL, "intermediate_size": 48, "max_position_embeddings": 64}
_BART = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
}  # fmt: skip
_WHISPER = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_mel_bins": 16,
    "max_source_positions": 20, "max_target_positions": 20, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
_VIT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32}

#: name to a function that makes (module, args, kwargs)
MODELS = {
    "resnet18": _vision("resnet18"),
    "mobilenet_v3_small": _vision("mobilenet_v3_small"),
    "efficientnet_b0": _vision("efficientnet_b0"),
    "convnext_tiny": _vision("convnext_tiny"),
    "swin_t": _vision("swin_t"),
    "vit": _transformers("ViTForImageClassification", "ViTConfig", _pixels, patch_size=8, **_VIT),
    "gpt2": _transformers("GPT2LMHeadModel", "GPT2Config", n_layer=2, n_head=4, n_embd=32, vocab_size=64),
    "llama": _transformers("LlamaForCausalLM", "LlamaConfig", **_GROUPED),
    "mistral": _transformers("MistralForCausalLM", "MistralConfig", **_GROUPED),
    "mixtral": _transformers("MixtralForCausalLM", "MixtralConfig", num_local_experts=4, **_GROUPED),
    "qwen2": _transformers("Qwen2ForCausalLM", "Qwen2Config", **_GROUPED),
    "gemma": _transformers("GemmaForCausalLM", "GemmaConfig", head_dim=8, **_GROUPED),
    "phi": _transformers("PhiForCausalLM", "PhiConfig", **_CAUSAL),
    "opt": _transformers(
        "OPTForCausalLM", "OPTConfig", ffn_dim=48, word_embed_proj_dim=32, **_SMALL, max_position_embeddings=64
    ),
    "bloom": _transformers("BloomForCausalLM", "BloomConfig", hidden_size=32, n_layer=2, n_head=4, vocab_size=64),
    "gpt_neox": _transformers("GPTNeoXForCausalLM", "GPTNeoXConfig", **_CAUSAL),
    "mamba": _transformers("MambaForCausalLM", "MambaConfig", hidden_size=32, num_hidden_layers=2, vocab_size=64),
    "bert": _transformers("BertForMaskedLM", "BertConfig", **_ENCODER),
    "roberta": _transformers("RobertaForMaskedLM", "RobertaConfig", **_ENCODER),
    "electra": _transformers("ElectraForMaskedLM", "ElectraConfig", embedding_size=16, **_ENCODER),
    "deberta": _transformers("DebertaV2ForMaskedLM", "DebertaV2Config", **_ENCODER),
    "distilbert": _transformers(
        "DistilBertForMaskedLM", "DistilBertConfig", dim=32, n_layers=2, n_heads=4, hidden_dim=48, vocab_size=64
    ),
    "t5": _transformers(
        "T5ForConditionalGeneration", "T5Config", _seq2seq, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4,
        vocab_size=64,
    ),
    "bart": _transformers("BartForConditionalGeneration", "BartConfig", _seq2seq, **_BART),
    "whisper": _transformers(
        "WhisperForConditionalGeneration", "WhisperConfig",
        lambda: {"input_features": torch.randn(2, 16, 40), "decoder_input_ids": _IDS[:, :8]}, **_WHISPER,
    ),
    "dinov2": _transformers("Dinov2Model", "Dinov2Config", _pixels, patch_size=8, mlp_ratio=2, **{
        k: v for k, v in _VIT.items() if k != "intermediate_size"
    }),
    "lstm": _torch(lambda: torch.nn.LSTM(6, 8, 2, bidirectional=True), torch.randn(5, 4, 6)),
    "gru": _torch(lambda: torch.nn.GRU(6, 8, 2, batch_first=True), torch.randn(4, 5, 6)),
    "encoder": _torch(
        lambda: torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2),
        torch.randn(4, 6, 16),
    ),
    "gcn": _torch(Graph, torch.randn(12, 8), torch.randint(0, 12, (2, 30))),
}  # fmt: skip


def _first(out):
    """The first result of floats, in whatever tree."""
    if isinstance(out, dict):
        out = list(out.values())
    while isinstance(out, (tuple, list)):
        out = out[0]
    return out


def measured(name):
    """Largest differences from torch: of the result, of the gradients by the largest; and the partitioned program."""
    torch.manual_seed(0)
    module, args, kwargs = MODELS[name]()
    module.eval()
    model = mw.from_torch(module, args, kwargs)
    arrays = [a.numpy() if isinstance(a, torch.Tensor) else a for a in args]
    named = {k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    loss = lambda p, *a: (lambda y: ((y * y).mean(), y))(_first(model(p, *a, **named)))  # noqa: E731
    step = mw.jit(mw.value_and_grad(loss, has_aux=True))
    (_, y), grads = step(model.params, *arrays)
    want = _first(module(*args, **kwargs))
    (want * want).mean().backward()
    largest = max((float(p.grad.abs().max()) for p in module.parameters() if p.grad is not None), default=1.0)
    off = [
        float(np.abs(np.asarray(grads[n]) - (0 if p.grad is None else p.grad.numpy())).max())
        for n, p in module.named_parameters()
        if n in grads and p.requires_grad
    ]
    scale = float(want.abs().max())
    return model, float(np.abs(np.asarray(y) - want.detach().numpy()).max()) / scale, max(off) / largest, arrays, named


def partitioned(model, arrays, named):
    """The forward, split over 4×2 devices: the batch by one axis, large matrices by the other."""
    mesh = mw.make_mesh((4, 2), ("data", "model"))

    def cut(p):
        spec = mw.P("model") if p.ndim > 1 and p.shape[0] % 2 == 0 else mw.P()
        return mw.NamedSharding(mesh, spec)

    by_batch = mw.NamedSharding(mesh, mw.P("data"))
    f = mw.jit(
        lambda p, *a: _first(model(p, *a, **named)),
        in_shardings=({n: cut(p) for n, p in model.params.items()}, *[by_batch] * len(arrays)),
    )
    part = f.lower(model.params, *arrays).partition()
    return part, part.verify()


def main(names):
    warnings.simplefilter("ignore")
    mw.config.update("num_devices", 8)
    print(f"{'model':20} {'forward':>9} {'gradient':>9} {'collectives':>11} {'verified':>9} {'seconds':>8}", flush=True)
    for name in names or MODELS:
        start = time.time()
        try:
            model, forward, gradient, arrays, named = measured(name)
            row = f"{forward:9.1e} {gradient:9.1e}"
        except Exception as error:
            print(f"{name:20} {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        try:
            part, _ = partitioned(model, arrays, named)
            row += f" {len(part.collectives):11} {'yes':>9}"
        except Exception as error:
            row += f" {type(error).__name__}: {str(error)[:300]}"
        print(f"{name:20} {row} {time.time() - start:8.1f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
