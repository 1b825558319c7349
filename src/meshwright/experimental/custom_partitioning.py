"""``jax.experimental.custom_partitioning``: functions with user-defined partitioning."""

from meshwright.api.custom_partitioning import custom_partitioning
from meshwright.core.absent import absent as _absent
from meshwright.sharding.rule_text import BATCHING, ArrayMapping, CompoundFactor, SdyShardingRule
from meshwright.sharding.rule_text import parse_sharding_rule as str_to_sdy_sharding_rule

__all__ = [
    "BATCHING", "ArrayMapping", "CompoundFactor", "SdyShardingRule", "custom_partitioning", "str_to_sdy_sharding_rule",
]  # fmt: skip

__getattr__ = _absent("experimental.custom_partitioning")
