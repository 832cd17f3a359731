"""The demonstration engine's parts: block pool, scheduler, incidents and the /metrics text.

No network here."""
