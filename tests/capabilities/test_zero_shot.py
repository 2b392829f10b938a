"""Zero-shot sets and the bridge: lm-evaluation-harness, with its own backend, on the same items of the real data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regrow.capabilities.evaluate import evaluate
from regrow.capabilities.zero_shot import TASKS, capabilities
from regrow.errors import DataError
from regrow.models.load import LoadedModel
from regrow.records.specs import EvalSpec
from tests.capabilities.toys import loaded_toy

pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")

COUNT = 4


def shortened(shared: Path, folder: Path, name: str, count: int) -> Path:
    """Return a data folder with the first records of one set."""
    from tests.capabilities.harness_tasks import FILES

    _, records, _ = FILES[name]
    target = folder / records
    target.parent.mkdir(parents=True)
    lines = (shared / records).read_text("utf-8").splitlines()[:count]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def compared(loaded: LoadedModel, name: str, shared: Path, tmp_path: Path, count: int) -> None:
    from regrow.capabilities.harness.adapter import RegrowLM
    from tests.capabilities.harness_tasks import harness_task, hf_backend, measure

    data = shortened(shared, tmp_path / "data", name, count)
    (capability,) = capabilities(data, [name])
    ours = evaluate(loaded, [capability], EvalSpec(suite="zero-shot", perplexity=False, batch_size=4)).items
    task = harness_task(name, shared, tmp_path, count)
    theirs = measure(hf_backend(loaded), task)
    bridged = measure(RegrowLM(loaded, batch_size=4), harness_task(name, shared, tmp_path, count))
    samples = theirs["samples"][f"{name}_local"]
    assert len(ours) == len(samples) == count
    for item, sample in zip(ours, samples, strict=True):
        likelihoods = [float(response[0][0]) for response in sample["resps"]]
        found = [item.details[f"logprob_{at}"] for at in range(len(likelihoods))]
        # Of a long choice the harness itself is a few millionths off (benchmarks/evaluation.py --exact).
        assert found == pytest.approx(likelihoods, abs=1e-3, rel=1e-5)
        assert item.score == sample["acc"]
        assert item.details["acc_norm"] == sample.get("acc_norm", item.details["acc_norm"])
    for sample, same in zip(samples, bridged["samples"][f"{name}_local"], strict=True):
        assert same["arguments"] == sample["arguments"]
        for one, other in zip(sample["resps"], same["resps"], strict=True):
            assert float(other[0][0]) == pytest.approx(float(one[0][0]), abs=1e-3, rel=1e-5)
            assert bool(other[0][1]) == bool(one[0][1])
        assert same["acc"] == sample["acc"]


def wide_toy() -> LoadedModel:
    """Return a tiny model whose context holds whole passages."""
    loaded = loaded_toy("llama")
    loaded.model.config.max_position_embeddings = 4096
    return loaded


@pytest.mark.shared
@pytest.mark.parametrize("name", list(TASKS))
def test_likelihoods_and_accuracies_are_the_harnesss(name: str, shared_data: Path, tmp_path: Path) -> None:
    compared(wide_toy(), name, shared_data, tmp_path, COUNT)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", list(TASKS))
def test_they_are_on_the_real_model(name: str, smollm2: LoadedModel, shared_data: Path, tmp_path: Path) -> None:
    compared(smollm2, name, shared_data, tmp_path, 3)


@pytest.mark.shared
def test_the_hubs_layout_of_hellaswag_makes_the_same_items(shared_data: Path, tmp_path: Path) -> None:
    row = {
        "ind": 4,
        "activity_label": "Removing ice from car",
        "ctx_a": "Then, the man writes over the snow [title] covering the window.",
        "ctx_b": "then",
        "endings": [" , the man adds  wax [substeps] to it.", "b", "c", "d"],
        "label": "3",
    }
    (tmp_path / "hellaswag").mkdir()
    (tmp_path / "hellaswag" / "validation.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    from lm_eval.tasks.hellaswag.utils import process_docs

    class Docs:
        def map(self, function: Any) -> Any:
            return function(row)

    wanted = process_docs(Docs())
    (item,) = capabilities(tmp_path, ["hellaswag"])[0].items("test")
    assert item.messages[0]["content"] == wanted["query"]
    assert [choice[1:] for choice in item.choices] == wanted["choices"] and item.gold["choice"] == wanted["gold"]


@pytest.mark.parametrize(
    "row",
    [
        {"question": "?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "C"},
        {"question": "?", "choices": {"text": ["a", "b"]}, "answerKey": "A"},
        {"question": "?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": ""},
    ],
)
def test_a_record_without_a_gold_is_named(row: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "arc_easy").mkdir()
    (tmp_path / "arc_easy" / "test.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="record 1 of"):
        capabilities(tmp_path, ["arc_easy"])[0].items("test")


PIQA = {"goal": "g", "sol1": "a", "sol2": "b", "label": 0}
ARC = {"question": "?", "answerKey": "A"}
BROKEN = [
    ("piqa", "validation", {**PIQA, "sol1": 5}, "5 stands for a text"),
    ("piqa", "validation", {**PIQA, "sol1": "  "}, "has no 'sol1'"),
    ("piqa", "validation", {**PIQA, "label": 0.9}, "has no gold"),
    ("hellaswag", "validation", {"query": None, "choices": ["a", "b"], "gold": 0}, "None stands for a text"),
    ("hellaswag", "validation", {"query": "q", "choices": "abcd", "gold": 0}, "the choices are str, not a list"),
    ("hellaswag", "validation", {"query": "q", "choices": ["a", None], "gold": 0}, "None stands for a text"),
    ("winogrande", "validation", {"sentence": "no gap", "option1": "a", "option2": "b", "answer": "1"}, "has no gap"),
    ("arc_easy", "test", {**ARC, "choices": {"text": ["a"], "label": ["A", "B"]}}, "2 labels"),
    ("arc_easy", "test", {**ARC, "choices": {"text": ["a"], "label": ["A"]}}, "nothing to choose"),
    (
        "openbookqa",
        "test",
        {"question_stem": "?", "choices": {"text": [7, "b"], "label": ["A", "B"]}, "answerKey": "A"},
        "7 stands for a text",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "part", "row", "says"), BROKEN)
def test_a_record_of_another_form_is_named(
    name: str, part: str, row: dict[str, Any], says: str, tmp_path: Path
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / f"{part}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="record 1 of") as caught:
        capabilities(tmp_path, [name])[0].items("test")
    assert says in str(caught.value)


def test_the_folder_of_one_data_set_is_not_the_one_meant(tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    with pytest.raises(DataError, match="seems to be one data set") as caught:
        capabilities(tmp_path / "gsm8k", ["piqa"])[0].items("test")
    assert caught.value.hint == f"--data {tmp_path.resolve()}"
