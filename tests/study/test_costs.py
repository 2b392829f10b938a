"""What a step used stands in its record: the same unit for reading, answering, fitting and training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regrow.capabilities.cost_meter import CostMeter
from regrow.capabilities.suites import healing_suite
from regrow.models.families import blocks_of, parameter_count
from regrow.models.load import load_model
from regrow.planning.cost import READ_FLOPS, TRAIN_FLOPS
from regrow.protocols import SilentWatcher
from regrow.records.checkpoint import read_facts
from regrow.records.specs import HealSpec, PruneSpec, RepairSpec
from regrow.records.store import read_evaluation
from regrow.records.study_runs import read_study
from regrow.study.execute import execute
from regrow.study.folder import StudyFolder
from regrow.study.runner import run
from regrow.study.stages.answer_tally import AnswerTally
from regrow.study.stages.heal import heal
from regrow.study.stages.pools import pools_cost, pools_of
from regrow.study.stages.prune import prune
from regrow.study.stages.rank import rank_blocks
from regrow.study.stages.repair import repair
from regrow.study.stages.work_meter import WorkMeter
from tests.conftest import tiny_model
from tests.study.tiny_study import begin, tiny_spec

TEXT = PruneSpec(remove="1", criterion="block-influence", calibration_tokens=1_024, chunk_tokens=128)


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2_moe"])
def test_a_whole_pass_costs_what_an_evaluation_charges_for_it(family: str) -> None:
    model = tiny_model(family)
    ids = torch.arange(3 * 7).reshape(3, 7) % 90
    with torch.no_grad(), WorkMeter(model) as work, CostMeter(model) as evaluation:
        model(input_ids=ids)
        model(input_ids=ids[:1])
    expected = READ_FLOPS * parameter_count(model) * 4 * 7
    assert work.flops == evaluation.cost(prompt_tokens=0, generated_tokens=0).flops == expected
    model(input_ids=ids)
    assert work.flops == expected, "what runs after the work is not counted"


def test_a_part_of_a_pass_counts_as_a_part_and_one_to_differentiate_three_times() -> None:
    model = tiny_model("llama")
    ids = torch.arange(8)[None]
    with torch.no_grad(), WorkMeter(model) as part:
        model.model(input_ids=ids)
    blocks = sum(parameter_count(block) for block in blocks_of(model))
    assert part.flops == READ_FLOPS * blocks * 8
    with WorkMeter(model) as trained:
        model(input_ids=ids, labels=ids).loss.backward()
    assert trained.flops == TRAIN_FLOPS * parameter_count(model) * 8


def test_ranking_and_cutting_count_what_they_read(model: Path, tmp_path: Path) -> None:
    loaded = load_model(str(model))
    blocks = sum(parameter_count(block) for block in blocks_of(loaded.model))
    ranking, _ = rank_blocks(
        str(model), ["block-influence"], TEXT, watch=SilentWatcher(), records_folder=tmp_path / "records"
    )
    assert ranking.cost is not None
    assert ranking.cost.prompt_tokens == 1_024 and ranking.cost.flops == READ_FLOPS * blocks * 1_024
    assert ranking.cost.wall_seconds > 0 and ranking.cost.peak_memory_bytes > 0
    again, _ = rank_blocks(
        str(model), ["block-influence"], TEXT, watch=SilentWatcher(), records_folder=tmp_path / "records"
    )
    assert again.cost is not None and again.cost.flops == 0, "the record was there"
    facts = prune(str(model), TEXT, tmp_path / "cut", watch=SilentWatcher())
    assert facts.steps[-1].cost is not None and facts.steps[-1].cost.flops == ranking.cost.flops
    named = prune(str(model), PruneSpec(blocks=(2,)), tmp_path / "named", watch=SilentWatcher())
    assert named.steps[-1].cost is not None and named.steps[-1].cost.flops == 0


def test_a_criterion_that_asks_the_model_more_often_costs_more(model: Path, tmp_path: Path) -> None:
    flops = {}
    for name in ("block-influence", "perplexity", "greedy-perplexity"):
        facts = prune(
            str(model),
            TEXT.model_copy(update={"criterion": name, "remove": "2"}),
            tmp_path / name,
            watch=SilentWatcher(),
        )
        assert facts.steps[-1].cost is not None
        flops[name] = facts.steps[-1].cost.flops
    assert flops["block-influence"] < flops["perplexity"] < flops["greedy-perplexity"]


def test_a_repair_reads_its_text_through_both_models(model: Path, tmp_path: Path) -> None:
    prune(str(model), PruneSpec(blocks=(2,)), tmp_path / "cut", watch=SilentWatcher())
    spec = RepairSpec(calibration_tokens=1_024, chunk_tokens=128)
    facts = repair(str(tmp_path / "cut"), spec, tmp_path / "out", watch=SilentWatcher())
    cost = facts.steps[-1].cost
    assert cost is not None and cost.prompt_tokens == 1_024 and cost.training_tokens == 0
    blocks = [parameter_count(block) for block in blocks_of(load_model(str(model)).model)]
    assert READ_FLOPS * sum(blocks[:4]) * 512 < cost.flops < 20 * READ_FLOPS * sum(blocks) * 1_024
    kept = read_facts(tmp_path / "out")
    assert kept is not None and kept.steps[-1].cost == cost


def test_a_distilling_heal_also_pays_for_its_teacher(model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "study"
    steps = begin(cut, tiny_spec(model))
    pools = cut / "pools" / next(step.id for step in steps if step.kind == "pools")
    prune(str(model), PruneSpec(blocks=(2,)), tmp_path / "cut", watch=SilentWatcher())
    sizes = [parameter_count(load_model(str(place)).model) for place in (tmp_path / "cut", model)]
    costs = {}
    for loss in ("response-cross-entropy", "distillation"):
        facts = heal(
            str(tmp_path / "cut"),
            HealSpec(tokens=200, loss=loss, sequences_per_update=2),
            tmp_path / loss,
            watch=SilentWatcher(),
            unpruned=str(model),
            pools_folder=pools,
            only_pools=["general"],
        )
        cost = facts.steps[-1].cost
        assert cost is not None and cost.training_tokens == facts.healing_tokens >= 200
        costs[loss] = cost.flops / cost.training_tokens
    assert costs == {
        "response-cross-entropy": TRAIN_FLOPS * sizes[0],
        "distillation": TRAIN_FLOPS * sizes[0] + READ_FLOPS * sizes[1],
    }


def test_a_teacher_answers_for_tokens_and_flops(model: Path, tmp_path: Path) -> None:
    general = next(one for one in healing_suite("mini") if one.name == "general")
    loaded = load_model(str(model))
    asked = len(general.items("heal"))

    def make(place: Path) -> None:
        pools_of(
            "mini",
            lambda: loaded,
            source=str(model),
            weights_sha256="",
            examples=10_000,
            watch=SilentWatcher(),
            folder=place,
            owned=True,
            only=["general"],
        )

    make(tmp_path / "pools")
    cost = pools_cost(tmp_path / "pools", ["general"])
    assert asked <= cost.generated_tokens <= asked * general.max_new_tokens
    assert cost.prompt_tokens > asked and cost.wall_seconds > 0 and cost.training_tokens == 0
    # Prefixes are shared, so less is run than is asked; each generated token but the last of an answer is run.
    assert READ_FLOPS * parameter_count(loaded.model) * (cost.generated_tokens - asked) < cost.flops
    make(tmp_path / "pools")
    assert pools_cost(tmp_path / "pools", ["general"]) == cost, "pools that are there are not answered again"
    assert pools_cost(tmp_path / "elsewhere", ["general"]).generated_tokens == 0


def test_answers_of_a_run_before_are_paid_for_too(model: Path, tmp_path: Path) -> None:
    from regrow.capabilities.generation import Answer, Request

    request = Request("a prompt", 8)
    with AnswerTally(tmp_path / "kept.jsonl") as first:
        first.keep(request, Answer("yes", 5, 2, 0.0, "eos"))
    with AnswerTally(tmp_path / "kept.jsonl") as second:
        assert second.find(request) is not None and second.find(Request("another", 8)) is None
        second.keep(Request("another", 8), Answer("no", 7, 3, 0.0, "eos"))
    assert (first.prompt_tokens, first.generated_tokens, first.found_tokens) == (5, 2, 0)
    assert (second.prompt_tokens, second.generated_tokens, second.found_tokens) == (12, 5, 7)


def test_every_record_of_a_study_says_what_it_used(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    cut = {"name": "tiny", "model": str(model), "remove": 1, "calibration": "bundled", "calibration_tokens": 1_024}
    steps = begin(folder, tiny_spec(model, families=[cut], repair={"calibration_tokens": 1_024, "chunk_tokens": 128}))
    assert run(folder, watch=SilentWatcher()).complete
    for step in steps:
        done = StudyFolder(folder).done(step.id)
        assert done is not None
        cost = done.cost
        assert cost.wall_seconds > 0 and cost.cpu_seconds > 0 and cost.peak_memory_bytes > 0, step.title
        assert cost.flops > 0 or step.kind == "pools", step.title  # these pools were written by hand
        assert (cost.training_tokens > 0) == (step.kind == "heal"), step.title
        if step.kind == "heal":
            record, _ = read_evaluation(folder / "runs" / step.id)
            assert record.cost == cost
            trained = TRAIN_FLOPS * cost.training_tokens * record.model.parameters
            assert trained < cost.flops
            (folder / "steps" / step.id / "done.json").unlink()
            assert execute(folder, step.id, watch=SilentWatcher()).cost == cost, "counted once, whenever it dies"
    healed = next(one for one in read_study(folder).runs if one.coordinates.stage == "healed")
    assert healed.record.cost.training_tokens >= 200


def test_the_pools_of_a_study_say_what_they_used_and_load_the_model_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []

    def load(source: str, **options: Any) -> Any:
        loads.append(source)
        return load_model(source, **options)

    monkeypatch.setattr("regrow.study.execute.load_model", load)
    steps = begin(tmp_path, tiny_spec(model, capabilities=["knowledge", "math"], pool_examples=1), pools=False)
    (pools,) = [step for step in steps if step.kind == "pools"]
    assert len(pools.request["pools"]) == 2
    cost = execute(tmp_path, pools.id, watch=SilentWatcher()).cost
    assert cost.generated_tokens > 0 and cost.flops > 0 and len(loads) == 1
