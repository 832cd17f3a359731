"""What all sessions of one process share: nothing about a visitor, only the settling of the interpreter.

Streamlit collects garbage after every run; freezing what the imports left behind keeps that short.
"""

from __future__ import annotations

import gc
from functools import lru_cache


@lru_cache(maxsize=1)
def settle() -> bool:
    """Once per process, after the imports: move what lives for ever out of the collector's sight."""
    gc.collect()
    gc.freeze()
    return True
