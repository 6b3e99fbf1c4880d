"""scalelab for Python: events of your own training scripts, and a client of the service.

`scalelab.run` and `scalelab.events` need the standard library only. `scalelab.Client` needs the extra "client" of the wheel:
`pip install "$(echo /usr/share/scalelab/python/scalelab-*.whl)[client]"`.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from scalelab.events import Run, run

if TYPE_CHECKING:
    from scalelab.client import Client, Progress, Study
    from scalelab.errors import ScalelabError

__all__ = ["Client", "Progress", "Run", "ScalelabError", "Study", "run"]

# Names that are imported at their first use, so that `import scalelab` does not need grpcio.
_LATER = {"Client": "client", "Progress": "client", "Study": "client", "ScalelabError": "errors"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'scalelab' has no attribute '{name}'")
    return getattr(importlib.import_module("scalelab." + _LATER[name]), name)
