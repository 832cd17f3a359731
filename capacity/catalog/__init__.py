"""Bundled facts (models, accelerators, formats, engine releases) and their loaders. Each row keeps its source."""
