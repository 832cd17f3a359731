"""Why a forecast is an extrapolation, and by how much that widens its interval.

Source: what the public points do not cover (docs/performance.md). Left out: the forecast (predict.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from capacity.performance.coefficients import release_key
from capacity.performance.records import Deployment
from capacity.units import GIB

WIDER = {
    "release": 1.25,
    "pipeline": 1.5,
    "domain": 1.5,
    "speculative": 1.5,
    "host": 1.5,
    "length": 1.3,
    "load": 1.3,
}
LONGEST_MEASURED = 33_000.0


def extrapolation(
    deployment: Deployment, reasons: Sequence[str], running: float, length: float, largest: float, rows: int
) -> tuple[float, list[str], list[str]]:
    found, warnings, wider = [r for r in reasons if r], [], 1.0
    layout = deployment.layout
    unnamed = deployment.release is not None and not release_key(deployment.release)
    if unnamed and not any("never measured" in r for r in found):
        found.append(
            f"release {deployment.release!r} names no version, so it cannot be told from those measured"
        )
    if any("release" in r for r in found):
        wider *= WIDER["release"]
    if layout.pipeline > 1:
        wider *= WIDER["pipeline"]
        found.append("pipeline parallel: no measured point; stages are taken as even and always busy")
    if layout.tensor > layout.link_domain:
        wider *= WIDER["domain"]
        found.append(
            f"tensor parallel {layout.tensor} leaves the link domain of {layout.link_domain} GPUs: counted as "
            f"{layout.effective_tensor} ranks, since no clean measured point exists"
        )
    if deployment.speculative_tokens:
        wider *= WIDER["speculative"]
        if deployment.acceptance is None:
            warnings.append(
                "speculative decoding without speculative_acceptance: its cost is counted and no gain"
            )
        found.append("speculative decoding: no measured point with a known acceptance")
    if deployment.host_bytes:
        wider *= WIDER["host"]
        found.append(
            f"{deployment.host_bytes / GIB:,.1f} GiB of weights per GPU in host memory: no measured point; they are read over "
            "PCIe in every step"
        )
    if length > LONGEST_MEASURED:
        wider *= WIDER["length"]
        found.append(f"requests of {length:,.0f} tokens; measured ones end near {LONGEST_MEASURED:,.0f}")
    if rows and running > 2 * largest > 0:
        wider *= WIDER["load"]
        found.append(f"{running:,.0f} running requests; measured ones end at {largest:,.0f}")
    return wider, found, warnings
