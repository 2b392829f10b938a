"""What a rule costs: training tokens, tokens generated in evaluations, FLOPs and seconds, pilots included."""

from __future__ import annotations

import math
from dataclasses import dataclass

from regrow.planning.rule import Needs
from regrow.records.results import Cost

TRAIN_FLOPS = 6
"""FLOPs per weight and trained token: forward 2, backward 4. A LoRA heal saves the 2 of the frozen weights' gradients,
and gradient checkpointing spends them on a second forward pass."""
READ_FLOPS = 2
"""FLOPs per weight and token that passes through a model once."""
STUDY_NEW_TOKENS = (256, 128, 384, 256, 64, 0)
"""Most tokens generated per item and capability in the study's suite."""


@dataclass(frozen=True)
class Workload:
    """What a dev evaluation and a machine are like; NaN where unknown, and then the cost is NaN too.

    ``new_tokens`` and ``prompt_tokens`` are per item, one number a capability; the defaults are upper bounds for new
    tokens (answers usually end earlier) and a prompt of 256. ``parameters`` is the size of the pruned model. Rates are
    tokens per second on the user's machine.
    """

    dev_items: int = 60
    new_tokens: tuple[float, ...] = STUDY_NEW_TOKENS
    prompt_tokens: float = 256.0
    parameters: float = math.nan
    training_rate: float = math.nan
    generation_rate: float = math.nan
    reading_rate: float = math.nan

    @property
    def generated(self) -> int:
        """Return the tokens that one dev evaluation generates."""
        return round(self.dev_items * sum(self.new_tokens))

    @property
    def read(self) -> int:
        """Return the prompt tokens that one dev evaluation reads."""
        return round(self.dev_items * self.prompt_tokens * len(self.new_tokens))


@dataclass(frozen=True)
class RuleCost:
    """``before`` the heal (pilots, small runs, evaluations), the ``heal`` itself, and both together."""

    before: Cost
    heal: Cost

    @property
    def total(self) -> Cost:
        return Cost(
            wall_seconds=self.before.wall_seconds + self.heal.wall_seconds,
            training_tokens=self.before.training_tokens + self.heal.training_tokens,
            prompt_tokens=self.before.prompt_tokens + self.heal.prompt_tokens,
            generated_tokens=self.before.generated_tokens + self.heal.generated_tokens,
            flops=self.before.flops + self.heal.flops,
        )


def cost_of(needs: Needs, budget: float, workload: Workload) -> RuleCost:
    """Return what a rule costs at a healing budget; the final test evaluation, the same for all, is not counted."""
    evaluations = len(needs.pilots) + needs.evaluations
    return RuleCost(
        before=_cost(
            workload,
            trained=needs.training_tokens,
            generated=evaluations * workload.generated,
            read=evaluations * workload.read + needs.read_tokens,
        ),
        heal=_cost(workload, trained=round(budget), generated=0, read=0),
    )


def matched_budget(needs: Needs, budget: float) -> float:
    """Return the healing budget that spends on training what the rule spends with its pilots: the token-matched
    control (4.48M for the planner at 1M)."""
    return budget + needs.training_tokens


def _cost(workload: Workload, *, trained: int, generated: int, read: int) -> Cost:
    seconds = _time(trained, workload.training_rate) + _time(generated, workload.generation_rate)
    seconds += _time(read, workload.reading_rate)
    flops = _times(TRAIN_FLOPS * trained + READ_FLOPS * (generated + read), workload.parameters)
    return Cost(
        wall_seconds=seconds, training_tokens=trained, prompt_tokens=read, generated_tokens=generated, flops=flops
    )


def _time(tokens: int, rate: float) -> float:
    """Return seconds; nothing to do takes none, whatever the rate."""
    return tokens / rate if tokens else 0.0


def _times(count: int, parameters: float) -> float:
    return count * parameters if count else 0.0
