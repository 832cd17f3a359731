"""Widget groups, charts and formatting shared by the pages."""
