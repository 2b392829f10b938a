"""The embedded suite: items of this project for models too small for the benchmarks, and prompts to heal on.

Three examples as chat turns before each question, about 100 to 270 tokens a prompt; 60 dev items, 120 test items and
360 healing prompts a capability, no question in two splits. Everything is made by templates
and small word lists of this project from fixed hashes, so the items are the same everywhere; the tests hold their
fingerprint. Graded so that a healthy model of 135 M parameters gets most of them right and a damaged one does not: the
scores say nothing about models that are much larger.
"""

from __future__ import annotations

from regrow.capabilities.function_calling import FunctionCalling
from regrow.capabilities.general import OpenAnswer
from regrow.capabilities.instruction_following import InstructionFollowing
from regrow.capabilities.knowledge import Knowledge
from regrow.capabilities.math import Mathematics
from regrow.capabilities.mini import (
    function_calling,
    general,
    instruction_following,
    knowledge,
    math,
    safety,
    structured_output,
)
from regrow.capabilities.safety import SafetyRefusal
from regrow.capabilities.scoring import Benchmark
from regrow.capabilities.structured_output import StructuredOutput
from regrow.protocols import Capability, Item


def capabilities() -> list[Capability]:
    """Return the six capabilities on the embedded items, in the order of every table."""
    return [
        Benchmark(StructuredOutput(), structured_output.items, max_new_tokens=56),
        Benchmark(FunctionCalling(), function_calling.items, max_new_tokens=48),
        Benchmark(InstructionFollowing(), instruction_following.items, max_new_tokens=40),
        Benchmark(Mathematics(), math.items, max_new_tokens=40),
        Benchmark(SafetyRefusal(), safety.items, max_new_tokens=40),
        Benchmark(Knowledge(), knowledge.items, max_new_tokens=0),
    ]


def heal_capabilities() -> list[Capability]:
    """Return what the six healing pools are made with: the five generative capabilities and "general". ``grade`` of
    each says whether a teacher's answer may become a target (score 1)."""
    generative = [capability for capability in capabilities() if capability.kind == "generative"]
    return [*generative, Benchmark(OpenAnswer(), general.items, max_new_tokens=56)]


def heal_pools() -> dict[str, list[Item]]:
    """Return the healing prompts of each pool by its name (five capabilities and "general")."""
    return {capability.name: list(capability.items("heal")) for capability in heal_capabilities()}
