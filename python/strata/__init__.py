"""Train and evaluate Strata's classifier, and read its logs.

- `train`: from snapshots (`strata features`) to a model that `strata record` loads;
- `evaluate`: how good a model is, from the data plane's decisions;
- `compare`: presets side by side;
- `strata.log`: logs in DuckDB.

Each is imported on first use, so that reading a log does not load a
machine-learning library.
"""

import importlib
from typing import Any

_HOMES = {
    "train": "strata.training",
    "evaluate": "strata.evaluation",
    "compare": "strata.presets",
}
__all__ = ["compare", "evaluate", "train"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'strata' has no attribute '{name}'")
