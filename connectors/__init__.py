"""Everything that touches the world: HTTP, Prometheus, files, DuckDB. Returns frozen records or raises ConnectorError."""
