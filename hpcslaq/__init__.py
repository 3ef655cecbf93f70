"""hpcslaq: train many models on shared ranks, and give the workers where they help most.

The package root only offers what a user of finished models needs; everything else
is reached through the command line or the subpackages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcslaq.models import load_model

__all__ = ["__version__", "load_model"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import `load_model` on first use, so that `import hpcslaq` stays instant."""
    if name == "load_model":
        from hpcslaq.models import load_model

        return load_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
