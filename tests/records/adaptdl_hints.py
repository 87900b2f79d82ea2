"""Hints that AdaptDL 0.2.11 gave in examples/adaptdl."""

from __future__ import annotations

from typing import Any

QUICK: dict[str, Any] = {
    "initBatchSize": 64,
    "localBszBounds": [32, 256],
    "globalBatchSize": None,
    "maxBatchSize": 1024,
    "maxProfiledReplicas": 1,
    "gradientAccumulation": False,
    "gradParams": {"norm": 0.0, "var": 0.5353198702232816},
    "perfParams": {
        "alpha_c": 0.007549622309835333,
        "beta_c": 0.00012441863493895932,
        "alpha_n": 1.1000000000000001e-08,
        "beta_n": 1.1000000000000001e-08,
        "alpha_r": 1e-08,
        "beta_r": 1e-08,
        "gamma": 1.000999108526572,
    },
}
"""One replica, of which AdaptDL does not know how it would talk to others."""

SLOW: dict[str, Any] = {
    **QUICK,
    "maxProfiledReplicas": 2,
    "gradParams": {"norm": 0.010044845890142309, "var": 0.1170456319602637},
    "perfParams": {
        "alpha_c": 0.01866073287151585,
        "beta_c": 2.1226964212688843e-06,
        "alpha_n": 0.027530440458128705,
        "beta_n": 1e-08,
        "alpha_r": 1e-08,
        "beta_r": 1e-08,
        "gamma": 1.0,
    },
}
"""The same with two replicas, on a machine with more to do than it can."""
BOUNDED: dict[str, Any] = {**SLOW, "maxBatchSize": 256}
"""The same if the script allows at most 256 images at once: two of up to four nodes are worth their cost then."""
