"""The memory bill of one GPU: weights, activation, graphs, non-torch memory, the rest, and what remains for KV.

Source: vLLM's profiling code release by release, and public start-up logs (docs/memory.md). Left out: the KV layout
(kv_cache), what other processes take after start-up.
"""

from capacity.memory.bill import Basis, MemoryBill, Term, memory_bill
from capacity.memory.runner import ModelRunner, model_runner

__all__ = ["Basis", "MemoryBill", "ModelRunner", "Term", "memory_bill", "model_runner"]
