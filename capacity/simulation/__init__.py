"""A discrete-event simulation of continuous batching on a paged block pool."""
