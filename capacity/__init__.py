"""The pure domain of Waterline: bytes, blocks, steps and waits. No I/O beyond bundled tables, no clock, no threads."""
