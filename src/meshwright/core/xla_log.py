"""XLA's log: without the lines of its client, where the environment asks for none of its own.

The first of ``jaxlib``'s libraries that is loaded reads this, so that it is imported before all of them.
"""

from __future__ import annotations

import os

#: errors only
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
