"""Bundled facts (models, accelerators, formats, engine releases) and their loaders. Each row keeps its
source.
"""

from capacity.catalog.models import (
    PublishedCount,
    find_model_id,
    model_config,
    model_facts,
    model_ids,
    model_spec,
    published_count,
)

__all__ = [
    "PublishedCount",
    "find_model_id",
    "model_config",
    "model_facts",
    "model_ids",
    "model_spec",
    "published_count",
]
