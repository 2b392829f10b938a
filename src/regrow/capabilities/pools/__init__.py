"""The six healing pools of the full suite: prompts from sources that share nothing with the benchmarks' items.

One pool for each generative capability and one of general instructions, about 1,300 prompts each; the unpruned model
answers them (teacher.py), and only answers that show the skill become targets.
"""

from __future__ import annotations

from pathlib import Path

from regrow.capabilities.function_calling import KnownCall
from regrow.capabilities.general import OpenAnswer
from regrow.capabilities.instruction_following import InstructionFollowing
from regrow.capabilities.math import Mathematics
from regrow.capabilities.pool_prompts import PoolPrompts
from regrow.capabilities.pools.prompts import Sources
from regrow.capabilities.safety import SafetyRefusal
from regrow.capabilities.structured_output import StructuredOutput
from regrow.protocols import Capability


def heal_capabilities(data: Path | None = None) -> list[Capability]:
    """Return what the pools are made with: "heal" items are the prompts, ``grade`` says which answers show the skill.

    ``data``: the local data folder (None: the one REGROW_DATA names, else the hub). Each is a PoolPrompts, which also
    tells where its prompts come from and how many were left out and why.
    """
    sources = Sources(data)
    return [
        PoolPrompts(StructuredOutput(), sources.structured_output, max_new_tokens=256),
        PoolPrompts(KnownCall(), sources.function_calling, max_new_tokens=128),
        PoolPrompts(InstructionFollowing(), sources.instruction_following, max_new_tokens=384),
        PoolPrompts(Mathematics(), sources.math, max_new_tokens=320),
        PoolPrompts(SafetyRefusal(), sources.safety, max_new_tokens=192),
        PoolPrompts(OpenAnswer(), sources.general, max_new_tokens=320),
    ]
