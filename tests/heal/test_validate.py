"""Requests that are refused without a model, and predictions before the first update."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from regrow.data.pools import Example, Pool
from regrow.errors import ConfigError, DataError
from regrow.heal.gradients import GradientMaker
from regrow.heal.memory import choose_checkpointing, kept_bytes, optimizer_bytes
from regrow.heal.objective import objective_of
from regrow.heal.plan import plan_heal
from regrow.heal.predict import predict
from regrow.heal.validate import validate
from regrow.records.checkpoint import BridgeFacts, CheckpointFacts
from regrow.records.specs import HealSpec
from tests.conftest import tiny_tokenizer
from tests.heal.samples import sample_model, sample_pools, sample_spec

PRUNED = CheckpointFacts(source="tiny", unpruned_blocks=30, removed_blocks=(13, 14))
REPAIRED = PRUNED.model_copy(update={"bridges": (BridgeFacts(after_block=12, method="lra", spans=(13, 14)),)})
POOLS = ("math", "safety", "general")


def ask(**changes: Any) -> HealSpec:
    return HealSpec(**{"tokens": 60_000, **changes})


@pytest.mark.parametrize(
    "scope", ["all-lora", "cut-lora", "last-k", "partial", "bridges", "all-lora+bridges", "last-k+bridges", "full"]
)
@pytest.mark.parametrize("loss", ["response-cross-entropy", "response-cross-entropy+0.5*distillation"])
def test_what_can_be_done_is_let_through(scope: str, loss: str) -> None:
    validate(ask(scope=scope, loss=loss), facts=REPAIRED, pools=POOLS)


@pytest.mark.parametrize(
    ("changes", "facts", "said"),
    [
        ({"scope": "all-lra"}, PRUNED, "unknown scope"),
        ({"loss": "hinge"}, PRUNED, "unknown loss"),
        ({"scope": "cut-lora"}, PRUNED.model_copy(update={"removed_blocks": ()}), "trains nothing"),
        ({"scope": "cut-lora"}, None, "trains nothing"),
        ({"scope": "bridges"}, PRUNED, "has no bridge"),
        ({"scope": "all-lora+bridges"}, PRUNED, "'all-lora.bridges' has no bridge to train"),
        ({"scope": "partial+bridges", "last_blocks": 29}, REPAIRED, "the model has 28 blocks"),
        ({"scope": "last-k", "last_blocks": 29}, PRUNED, "the model has 28 blocks"),
        ({"tokens": 45}, PRUNED, "cannot fill one update of 16"),
        ({"loss": "hidden-states"}, None, "no cut to look at"),
        ({"loss": "hidden-states", "scope": "last-k"}, PRUNED, "trains nothing under the scope 'last-k'"),
        ({"base_format": "nf4", "scope": "last-k"}, PRUNED, "cannot hold"),
        ({"mixture": "math=1,sums=2"}, PRUNED, "sums"),
        ({"mixture": "math=0"}, PRUNED, "no pool any tokens"),
    ],
)
def test_what_cannot_is_refused(changes: dict[str, Any], facts: CheckpointFacts | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        validate(ask(**changes), facts=facts, pools=POOLS)
    assert caught.value.hint


def test_hidden_states_reach_the_last_blocks_when_the_cut_is_there() -> None:
    late = PRUNED.model_copy(update={"removed_blocks": (27, 28)})
    validate(ask(loss="hidden-states", scope="last-k", last_blocks=3), facts=late)
    with pytest.raises(ConfigError, match="below the last 1 blocks"):
        validate(ask(loss="hidden-states", scope="last-k", last_blocks=1), facts=late)


def test_numbers_that_are_no_numbers() -> None:
    from regrow.records.specs import build

    for value in (math.inf, math.nan, -1.0, 0.0):
        with pytest.raises(ConfigError, match="learning_rate"):
            build(HealSpec, {"tokens": 1, "learning_rate": value})


def test_pools_that_do_not_do() -> None:
    tokenizer = tiny_tokenizer()
    with pytest.raises(DataError, match="no usable example"):
        plan_heal([Pool("math", ())], ask(), tokenizer)
    silent = Pool("math", (Example("math", "1", "[user] 1+1", ""),))
    with pytest.raises(DataError, match="dropped: 1 no response"):
        plan_heal([silent], ask(), tokenizer)
    long = Pool("math", (Example("math", "1", "p" * 600, "2"),))
    with pytest.raises(DataError, match="dropped: 1 longer than 512 tokens"):
        plan_heal([long], ask(), tokenizer)
    with pytest.raises(DataError, match=r"would be used [\d.]+ times \(limit: 50\)"):
        plan_heal(sample_pools(2), ask(tokens=200_000), tokenizer)


def test_kept_bytes_of_a_product_are_its_input() -> None:
    layer = torch.nn.Linear(64, 32)
    x = torch.randn(100, 64)

    def run() -> torch.Tensor:
        return (layer(x) ** 2).sum()

    # The input of the product (a storage of its own), and its output for the square; the weight does not count.
    assert kept_bytes(run, layer.parameters()) == 4 * (100 * 64 + 100 * 32)
    assert optimizer_bytes(layer.parameters()) == 12 * (64 * 32 + 32)


def test_recomputing_keeps_less_and_is_chosen_when_memory_is_short() -> None:
    def kept(recompute: bool) -> int:
        loaded = sample_model()
        spec = sample_spec(sequences_per_update=8)
        objective = objective_of("response-cross-entropy")
        maker = GradientMaker(
            loaded.model, objective, spec, torch.float32, packed=True, gradient_checkpointing=recompute
        )
        examples = plan_heal(sample_pools(), spec, loaded.tokenizer).update(0)
        (batch,) = maker.cut(examples)
        with maker.ready():
            return kept_bytes(lambda: maker.loss_of(0, 0, batch, 1, False)[0], loaded.model.parameters())

    assert kept(True) < 0.5 * kept(False)
    cpu = torch.device("cpu")
    assert choose_checkpointing("auto", lambda: 10**15, cpu)
    assert not choose_checkpointing("auto", lambda: 10**6, cpu)
    assert choose_checkpointing(True, lambda: 0, cpu)
    assert not choose_checkpointing(False, lambda: 10**15, cpu)


def test_a_prediction_leaves_the_model_as_it_was() -> None:
    for scope in ("all-lora", "last-k", "full"):
        loaded = sample_model()
        before = {name: weight.detach().clone() for name, weight in loaded.model.named_parameters()}
        plan, told = predict(loaded, sample_pools(), sample_spec(scope=scope, last_blocks=1))
        after = dict(loaded.model.named_parameters())
        assert before.keys() == after.keys()
        assert all(torch.equal(weight, after[name]) for name, weight in before.items())
        assert all(weight.grad is None and weight.requires_grad for weight in after.values())
        assert told.seconds > 0
        assert told.tokens_per_second == pytest.approx(plan.tokens / told.seconds)
        assert told.computed_tokens < plan.tokens


def test_nothing_of_the_refusals_needs_torch_users(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = (
        "import sys; from regrow.heal.loss_expression import terms_of; terms_of('response-cross-entropy');"
        "from regrow.heal.registry import SCOPES; SCOPES.entry('all-lora');"
        "assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
