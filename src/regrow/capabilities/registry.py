"""The six capabilities by name, in the order in which every table shows them."""

from __future__ import annotations

from regrow.capabilities.scoring import Scorer
from regrow.registry import Registry

CAPABILITIES: Registry[type[Scorer]] = Registry("capability", entry_point_group="regrow.capabilities")

_HERE = "regrow.capabilities"
CAPABILITIES.declare(
    "structured_output", f"{_HERE}.structured_output:StructuredOutput", summary="JSON that conforms to a schema"
)
CAPABILITIES.declare(
    "function_calling", f"{_HERE}.function_calling:FunctionCalling", summary="the right call with the right arguments"
)
CAPABILITIES.declare(
    "instruction_following",
    f"{_HERE}.instruction_following:InstructionFollowing",
    summary="constraints that a program can verify",
)
CAPABILITIES.declare("math", f"{_HERE}.math:Mathematics", summary="the exact final number")
CAPABILITIES.declare("safety", f"{_HERE}.safety:SafetyRefusal", summary="refuses the unsafe, answers the benign")
CAPABILITIES.declare("knowledge", f"{_HERE}.knowledge:Knowledge", summary="the right answer is the likeliest one")
