"""Numbers as people type them: thousands separators and the suffixes of vLLM's own flags.

Source: vLLM's arg parser: k, m, g are powers of 1,000; K, M, G of 1,024. Left out: JSON, where a number is a number.
"""

from __future__ import annotations

import re
from typing import Any

SUFFIX = {"k": 1e3, "m": 1e6, "g": 1e9, "K": 1024, "M": 1024**2, "G": 1024**3}


def number(text: str) -> Any:
    """A typed number; the text itself when it is none.

    >>> number("8,192"), number("8k"), number("8K"), number("0.9"), number("many")
    (8192, 8000, 8192, 0.9, 'many')
    """
    plain = re.sub(r"[\s_,]", "", text)
    suffix = 1.0
    if plain and plain[-1] in SUFFIX and re.fullmatch(r"[-+]?[\d.]+", plain[:-1]):
        suffix, plain = SUFFIX[plain[-1]], plain[:-1]
    if len(plain) > 400:
        return text
    try:
        value = int(plain) if re.fullmatch(r"[-+]?\d+", plain) else float(plain)
    except ValueError:
        return text
    if suffix != 1.0:
        value = value * suffix
        return int(value) if value == int(value) else value
    return value
