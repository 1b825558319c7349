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


def _diffusers(model, inputs, **options):
    def make():
        import diffusers

        return getattr(diffusers, model)(**options), (), inputs()

    return make


def _denoised(size=16):
    return {"sample": torch.randn(4, 4, size, size), "timestep": torch.tensor([1, 5, 9, 2]), "return_dict": False}


_CLIP_TEXT = {**_ENCODER, "eos_token_id": 63}
_BLOCKS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8, "sample_size": 16}
_MOE = {**_GROUPED, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}

MODELS |= {
    "resnet50": _vision("resnet50"),
    "wide_resnet50_2": _vision("wide_resnet50_2"),
    "mobilenet_v2": _vision("mobilenet_v2"),
    "efficientnet_v2_s": _vision("efficientnet_v2_s"),
    "swin_v2_t": _vision("swin_v2_t"),
    "densenet121": _vision("densenet121"),
    "regnet_y_400mf": _vision("regnet_y_400mf"),
    "shufflenet_v2": _vision("shufflenet_v2_x0_5"),
    "squeezenet": _vision("squeezenet1_1", 64),
    "vit_b": _transformers("ViTModel", "ViTConfig", _pixels, patch_size=4, qkv_bias=False, **_VIT),
    "convnext_v2": _transformers(
        "ConvNextV2Model", "ConvNextV2Config", _pixels, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], image_size=32
    ),
    "gpt_neo": _transformers(
        "GPTNeoForCausalLM", "GPTNeoConfig", hidden_size=32, num_layers=2, num_heads=4, vocab_size=64,
        attention_types=[[["global", "local"], 1]], max_position_embeddings=64, window_size=8,
    ),
    "gptj": _transformers("GPTJForCausalLM", "GPTJConfig", n_layer=2, n_head=4, n_embd=32, rotary_dim=4, vocab_size=64),
    "falcon": _transformers("FalconForCausalLM", "FalconConfig", **_SMALL, alibi=False),
    "qwen3": _transformers("Qwen3ForCausalLM", "Qwen3Config", head_dim=8, **_GROUPED),
    "qwen3_moe": _transformers("Qwen3MoeForCausalLM", "Qwen3MoeConfig", head_dim=8, **_MOE),
    "gemma2": _transformers("Gemma2ForCausalLM", "Gemma2Config", head_dim=8, **_GROUPED),
    "phi3": _transformers("Phi3ForCausalLM", "Phi3Config", **_GROUPED),
    "olmo": _transformers("OlmoForCausalLM", "OlmoConfig", **_GROUPED),
    "mamba2": _transformers(
        "Mamba2ForCausalLM", "Mamba2Config", hidden_size=32, num_hidden_layers=2, vocab_size=64, num_heads=8,
        head_dim=8, state_size=8, n_groups=2, chunk_size=4,
    ),
    "albert": _transformers("AlbertForMaskedLM", "AlbertConfig", embedding_size=16, **_ENCODER),
    "deberta_v1": _transformers("DebertaForMaskedLM", "DebertaConfig", **_ENCODER),
    "mpnet": _transformers("MPNetForMaskedLM", "MPNetConfig", **_ENCODER),
    "t5_gated": _transformers(
        "T5ForConditionalGeneration", "T5Config", _seq2seq, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4,
        vocab_size=64, feed_forward_proj="gated-gelu",
    ),
    "pegasus": _transformers("PegasusForConditionalGeneration", "PegasusConfig", _seq2seq, **_BART),
    "clip_text": _transformers("CLIPTextModel", "CLIPTextConfig", **_CLIP_TEXT),
    "clip_vision": _transformers("CLIPVisionModel", "CLIPVisionConfig", _pixels, patch_size=8, **_VIT),
    "sam_vision": _transformers(
        "SamVisionModel", "SamVisionConfig", _pixels, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        mlp_dim=48, image_size=32, patch_size=4, output_channels=16, window_size=4, global_attn_indexes=[1],
    ),
    "unet": _diffusers(
        "UNet2DModel", _denoised, in_channels=4, out_channels=4, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8, **_BLOCKS,
    ),
    "unet_conditioned": _diffusers(
        "UNet2DConditionModel", lambda: {**_denoised(), "encoder_hidden_states": torch.randn(4, 6, 24)}, in_channels=4,
        out_channels=4, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=24, attention_head_dim=8, **_BLOCKS,
    ),
    "dit": _diffusers(
        "DiTTransformer2DModel",
        lambda: {
            "hidden_states": torch.randn(4, 4, 16, 16), "timestep": torch.tensor([1, 5, 9, 2]),
            "class_labels": torch.tensor([0, 3, 1, 2]), "return_dict": False,
        },
        num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, sample_size=16,
        num_embeds_ada_norm=10,
    ),
}  # fmt: skip


def _first(out):
    """The first result of floats, in whatever tree."""
    if isinstance(out, dict):
        out = list(out.values())
    while isinstance(out, (tuple, list)):
        out = out[0]
    return out


#: whose gradients in float32 depend on rounding, at the thresholds of their activations: compared in float64
_WIDE = {"squeezenet", "swin_v2_t", "wide_resnet50_2"}


def precision(name):
    """The context that a model is measured in."""
    return mw.enable_x64(name in _WIDE)


def measured(name):
    """Largest differences from torch: of the result, of the gradients by the largest; and the partitioned program."""
    torch.manual_seed(0)
    module, args, kwargs = MODELS[name]()
    module.eval()
    if name in _WIDE:
        module, args = module.double(), tuple(a.double() for a in args)
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
    # On the model's own weights: deep networks of drawn ones amplify rounding beyond what tells it from a mistake.
    return part, part.verify(model.params, *arrays)


def main(names):
    warnings.simplefilter("ignore")
    mw.config.update("num_devices", 8)
    print(f"{'model':20} {'forward':>9} {'gradient':>9} {'collectives':>11} {'verified':>9} {'seconds':>8}", flush=True)
    for name in names or MODELS:
        with precision(name):
            report(name)


def report(name):
    """The row of a model."""
    start = time.time()
    try:
        model, forward, gradient, arrays, named = measured(name)
        row = f"{forward:9.1e} {gradient:9.1e}"
    except Exception as error:
        print(f"{name:20} {type(error).__name__}: {str(error)[:300]}", flush=True)
        return
    try:
        part, _ = partitioned(model, arrays, named)
        row += f" {len(part.collectives):11} {'yes':>9}"
    except Exception as error:
        row += f" {type(error).__name__}: {str(error)[:300]}"
    print(f"{name:20} {row} {time.time() - start:8.1f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
