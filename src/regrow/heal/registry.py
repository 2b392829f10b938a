"""Every scope and every loss by name; nothing is imported until it is used.

Facts of a scope: ``learning_rate`` (its peak rate unless another is asked for; those of ``bridges`` and ``full`` are
this project's choice, no paper's) and ``needs``.
"""

from __future__ import annotations

from typing import Any

from regrow.registry import Registry

SCOPES: Registry[Any] = Registry("scope", entry_point_group="regrow.scopes")
LOSSES: Registry[Any] = Registry("loss", entry_point_group="regrow.losses")


def _scope(name: str, function: str, summary: str, learning_rate: str, **facts: str) -> None:
    SCOPES.declare(name, f"regrow.heal.scopes:{function}", summary=summary, learning_rate=learning_rate, **facts)


_scope("all-lora", "all_lora", "LoRA on every linear layer of every block", "2e-4")
_scope(
    "cut-lora",
    "cut_lora",
    "LoRA on the kept blocks that border a removed span",
    "2e-4",
    needs="a pruned checkpoint with its regrow.json",
)
_scope("last-k", "last_k", "the last blocks and the final norm; the head is frozen", "2e-5")
_scope("partial", "partial", "the last blocks, the final norm and the head", "1e-5", paper="Navigation")
_scope("bridges", "bridges", "the repair operators alone", "1e-4", needs="a repaired checkpoint")
for _name, _function, _summary, _rate in (
    ("all-lora", "all_lora_and_bridges", "LoRA on every linear layer, and the repair operators", "2e-4"),
    ("last-k", "last_k_and_bridges", "the last blocks, the final norm and the repair operators", "2e-5"),
    ("partial", "partial_and_bridges", "the last blocks, the final norm, the head and the repair operators", "1e-5"),
):
    _scope(f"{_name}+bridges", _function, _summary, _rate, paper="SHIFT-LLM", needs="a repaired checkpoint")
_scope("full", "full", "every weight", "1e-5", shards="over processes (FSDP2)")


def _loss(name: str, function: str, summary: str, paper: str = "", **facts: str) -> None:
    LOSSES.declare(name, f"regrow.heal.losses:{function}", summary=summary, paper=paper, **facts)


_UNPRUNED = "the unpruned model"

_loss("response-cross-entropy", "response_cross_entropy", "cross-entropy of the response tokens and the end token")
_loss(
    "distillation",
    "distillation",
    "divergence from the unpruned model's next-token distribution, run beside the healed one",
    "1503.02531",
    needs=_UNPRUNED,
)
_loss(
    "distillation-top-k",
    "distillation_top_k",
    "the same over its k likeliest tokens, computed once a sequence and kept on disk",
    needs=f"{_UNPRUNED}, once",
)
_loss(
    "hidden-states",
    "hidden_states",
    "relative squared error of the stream behind each cut",
    needs=f"{_UNPRUNED}, a pruned checkpoint with its regrow.json",
)
