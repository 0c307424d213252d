"""Gates: where they may sit, how they decide, how they are attached, and what they decided."""

from dynamicgate.gating.attach import gate_, ungate_
from dynamicgate.gating.config import GateConfig
from dynamicgate.gating.gate import Decision, Gate
from dynamicgate.gating.patterns import register_pattern
from dynamicgate.gating.recording import Usage, named_gates, usage
from dynamicgate.gating.roles import Roles
from dynamicgate.gating.sites import Site, find_sites, why_not_sites

__all__ = [
    "Decision",
    "Gate",
    "GateConfig",
    "Roles",
    "Site",
    "Usage",
    "find_sites",
    "gate_",
    "named_gates",
    "register_pattern",
    "ungate_",
    "usage",
    "why_not_sites",
]
