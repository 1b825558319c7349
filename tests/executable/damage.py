"""Programs, damaged: whole ones in every form that can be loaded, and ways in which files go wrong."""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Callable, Iterator

from jaxlib import _jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from op_forms import Form
from test_device_collectives import all_reduce
from test_device_collectives import text as manual_region
from test_per_device_programs import all_reduce as all_reduce_alone
from test_per_device_programs import module as of_one_device

from meshwright.stablehlo.context import new_context
from meshwright.stablehlo.hlo import module_bytecode, to_hlo

_FORMS = {
    "test_every_moving_form": ("moving", "reshapes", "dynamic", "gathers", "scatters"),
    "test_every_op_form": ("regions", "orders"),
    "test_every_plain_form": ("elementwise", "structure"),
    "test_every_product_form": ("convolutions", "products", "norms"),
}
_SHARDED = """module @sharded attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<8x6xf32> {mhlo.sharding = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"}, %w: tensor<6x4xf32> {mhlo.sharding = "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}", tf.aliasing_output = 1 : i32}) -> (tensor<8x4xf32> {mhlo.sharding = "{devices=[2,2,2]0,1,2,3,4,5,6,7 last_tile_dims={replicated}}"}, tensor<6x4xf32>) {
    %c = stablehlo.constant dense<[[1.5, 2.0], [3.0, -4.25]]> : tensor<2x2xf32>
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
    %1 = stablehlo.custom_call @Sharding(%0) {backend_config = "unspecified_dims=[1]", mhlo.sharding = "{devices=[2,2,2]<=[8] last_tile_dim_replicate}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %2 = func.call @inner(%1, %c) : (tensor<8x4xf32>, tensor<2x2xf32>) -> tensor<8x4xf32>
    return %2, %w : tensor<8x4xf32>, tensor<6x4xf32>
  }
  func.func private @inner(%x: tensor<8x4xf32>, %c: tensor<2x2xf32>) -> tensor<8x4xf32> {
    %s = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{devices=[2,2,2]<=[8] last_tile_dim_replicate}"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
    %0 = stablehlo.custom_call @SPMDFullToShardShape(%s) {mhlo.sharding = "{manual}"} : (tensor<8x4xf32>) -> tensor<4x2xf32>
    %1 = stablehlo.custom_call @SPMDShardToFullShape(%0) {mhlo.sharding = "{devices=[2,2,2]<=[8] last_tile_dim_replicate}"} : (tensor<4x2xf32>) -> tensor<8x4xf32>
    return %1 : tensor<8x4xf32>
  }
}"""  # noqa: E501 -- lines of a program's text
_SHARDY = """module @shardy {
  sdy.mesh @mesh = <["x"=2, "y"=4], device_ids=[1, 0, 2, 3, 4, 5, 6, 7]>
  func.func @main(%x: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y":(1)2}, {?}p1]>}) -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}], replicated={"x"}>}) {
    %0 = sdy.sharding_constraint %x <@mesh, [{"x", ?}, {"y":(2)2}p2]> : tensor<8x6xf32>
    %1 = stablehlo.tanh %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}], unreduced={"x"}>]>} : tensor<8x6xf32> loc("tanh"("a.py":3:4))
    sdy.sharding_group %1 group_id = 3 : tensor<8x6xf32>
    %2 = sdy.propagation_barrier %1 allowed_direction = FORWARD : tensor<8x6xf32>
    return %2 : tensor<8x6xf32>
  }
}"""  # noqa: E501


def texts() -> Iterator[str]:
    """StableHLO of every operation in its forms, with shardings and with manual regions."""
    for module, makers in _FORMS.items():
        found = importlib.import_module(module)
        forms: list[Form] = [f for maker in makers for f in getattr(found, maker)()]
        yield from (f.text for f in forms)
    yield _SHARDED
    yield _SHARDY
    yield manual_region(all_reduce([[0, 1], [2, 3], [4, 5], [6, 7]]))
    yield of_one_device(all_reduce_alone([[0, 1, 2, 3]], "cross_replica"), "4x8", 4, 2)


def in_every_form(text: str) -> Iterator[str | bytes]:
    """A program as text (sugared, generic, with locations), bytecode, portable artifact, HLO text and proto."""
    module = ir.Module.parse(text, new_context())
    yield text
    yield module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True)
    yield module_bytecode(module)
    try:
        yield _jax.mlir.serialize_portable_artifact(module_bytecode(module), stablehlo.get_current_version(), False)
    except Exception:  # not all dialects have one
        pass
    try:
        computation = to_hlo(module)
    except Exception:  # nor does HLO have every operation
        return
    yield computation.as_hlo_text(True)
    yield computation.as_serialized_hlo_module_proto()


# --- ways to damage -----------------------------------------------------------------------------------------
_NUMBER = re.compile(r"(?<![\w.])-?\d+")
_TOKEN = re.compile(r"%?[\w.#@]+|\"[^\"\n]*\"|[^\w\s]")
NUMBERS = (
    "0", "-1", "1", "2", "3", "7", "127", "2147483647", "2147483648", "4294967296", "9223372036854775807",
    "9223372036854775808", "18446744073709551616", "-9223372036854775808", str(2**80), str(10**12), "1000000007",
)  # fmt: skip


def _replaced(text: str, pattern: re.Pattern[str], choose: Callable[[str], str], rng: random.Random) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return text
    at = rng.choice(found)
    return text[: at.start()] + choose(at[0]) + text[at.end() :]


def _token_of(text: str, rng: random.Random) -> str:
    found = _TOKEN.findall(text)
    return rng.choice(found) if found else ""


def damaged_text(text: str, other: str, rng: random.Random) -> str:
    """``text`` after one accident; ``other`` is a text whose parts may come in."""
    a, b = sorted(rng.randrange(len(text) + 1) for _ in range(2))
    b = min(b, a + rng.choice((1, 4, 30, 200)))
    lines = text.splitlines(keepends=True)
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(10):
        case 0:
            return text[:a] + chr(rng.randrange(1, 0x250)) + text[a + 1 :]
        case 1:
            return text[:a] + text[b:]
        case 2:
            return text[:b] + text[a:b] + text[b:]
        case 3 | 4:
            return _replaced(text, _NUMBER, lambda _: rng.choice(NUMBERS), rng)
        case 5:
            number = _NUMBER.findall(text)
            return _replaced(text, _NUMBER, lambda _: rng.choice(number), rng)
        case 6:
            return _replaced(text, _TOKEN, lambda _: _token_of(text, rng), rng)
        case 7:
            return _replaced(text, _TOKEN, lambda _: _token_of(other, rng), rng)
        case 8:
            lines[i], lines[j] = lines[j], lines[i]
            return "".join(lines)
        case _:
            return text[:a] if rng.random() < 0.2 else "".join([*lines[:i], lines[j], *lines[i:]])


def damaged_bytes(data: bytes, rng: random.Random) -> bytes:
    """``data`` after one accident."""
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    b = min(b, a + rng.choice((1, 2, 8, 64)))
    flipped = bytearray(data)
    flipped[min(a, len(data) - 1)] = rng.randrange(256)
    bit = bytearray(data)
    bit[min(a, len(data) - 1)] ^= 1 << rng.randrange(8)
    return rng.choice((bytes(flipped), bytes(bit), data[:a] + data[b:], data[:b] + data[a:b] + data[b:], data[:a]))


def damaged(data: str | bytes, other: str, rng: random.Random) -> str | bytes:
    """A program after one to three accidents."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not data:
            break
        data = damaged_text(data, other, rng) if isinstance(data, str) else damaged_bytes(data, rng)
    return data
