"""Says what to install where torch is missing; imported before what imports torch."""

from meshwright.interop.extras import require

require("torch")
