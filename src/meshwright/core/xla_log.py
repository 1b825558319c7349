"""Silences log lines of XLA's client, unless the environment sets a log level.

The first ``jaxlib`` library that is loaded reads the level, so this is imported before all of them.
"""

from __future__ import annotations

import os

#: errors only
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
