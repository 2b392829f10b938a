"""Evaluation end to end on tiny models: items, subsets, resuming, perplexity, cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from regrow.capabilities.engines.in_process import TransformersEngine
from regrow.capabilities.evaluate import Evaluation, chosen_items, evaluate
from regrow.capabilities.generation import Answer, Request, generate
from regrow.capabilities.perplexity import perplexity_of
from regrow.capabilities.rates import THE_SCORE
from regrow.capabilities.safety import SafetyRefusal
from regrow.data.chat import render_chat, stop_texts_of
from regrow.errors import DataError, ModelError
from regrow.models.load import LoadedModel
from regrow.protocols import Grade, Item, SilentWatcher
from regrow.records.fingerprint import text_fingerprint
from regrow.records.results import ItemScore, Split
from regrow.records.specs import EvalSpec
from tests.capabilities.toys import Choice, HasSign, LongestChoice, TwoKinds, loaded_toy

TEXT = "The tide comes in twice a day, and twice it goes.\nNobody on the pier has ever asked it why. " * 8
SPEC = EvalSpec(batch_size=4)


def suite_of(loaded: LoadedModel) -> list[Any]:
    """Return capabilities that the model neither fails nor masters."""
    probe = HasSign("")
    texts = [answer.text for answer in answers_to(loaded, probe)]
    sign = next(sign for sign in sorted(set("".join(texts))) if 0 < sum(sign in text for text in texts) < len(texts))
    return [HasSign(sign), Choice(), TwoKinds(sign), LongestChoice()]


def answers_to(loaded: LoadedModel, capability: Any) -> list[Any]:
    prompts = [
        render_chat(loaded.tokenizer, item.messages, add_generation_prompt=True) for item in capability.items("test")
    ]
    return generate(loaded, [Request(prompt, capability.max_new_tokens) for prompt in prompts])


def without_times(items: list[ItemScore]) -> list[ItemScore]:
    return [item.model_copy(update={"seconds": 0.0}) for item in items]


def measured(loaded: LoadedModel, spec: EvalSpec = SPEC, **options: Any) -> Evaluation:
    return evaluate(loaded, suite_of(loaded), spec, text=TEXT, **options)


def test_every_item_is_graded_as_its_capability_says() -> None:
    loaded = loaded_toy()
    result = measured(loaded)
    names = list(dict.fromkeys(item.capability for item in result.items))
    assert names == ["has_sign", "choice", "two_kinds", "longest_choice", "perplexity"]
    capability = suite_of(loaded)[0]
    answers = answers_to(loaded, capability)
    graded = [item for item in result.items if item.capability == "has_sign"]
    assert [item.item_id for item in graded] == [item.item_id for item in capability.items("test")]
    assert 0 < sum(item.score for item in graded) < len(graded)
    for item, asked, answer in zip(graded, capability.items("test"), answers, strict=True):
        prompt = render_chat(loaded.tokenizer, asked.messages, add_generation_prompt=True)
        assert item.prompt_sha256 == text_fingerprint(prompt)
        assert item.score == capability.grade(asked, answer.text).score
        assert answer.text.startswith(item.response)
        assert item.prompt_tokens == len(prompt.replace("<eos>", "x"))
        assert 0 < item.generated_tokens <= capability.max_new_tokens
        assert item.seconds > 0 and item.split == "test"
        stopped = item.details["stopped"]
        assert stopped == ("decided" if item.score and answer.text != item.response else stopped)
        expected = {"question": asked.messages[-1]["content"], "at": float(asked.gold["at"]), "stopped": stopped}
        assert item.details == expected and stopped in ("decided", "eos", "length")


def test_choices_are_graded_by_the_capabilitys_own_rule_where_it_has_one() -> None:
    result = measured(loaded_toy())
    own = [item for item in result.items if item.capability == "longest_choice"]
    assert {item.response for item in own} == {"maybe"}
    assert {(item.details["choice"], item.details["confidence"]) for item in own} == {(3.0, 0.5)}
    plain = [item for item in result.items if item.capability == "choice"]
    for item in plain:
        assert item.score == float(item.response == "yes") and item.details["choice"] in (0.0, 1.0, 2.0, 3.0)


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_grades_are_the_same_without_early_leave(family: str) -> None:
    loaded = loaded_toy(family)
    fast, slow = measured(loaded), measured(loaded, SPEC.model_copy(update={"fast_stop": False}))
    assert [item.score for item in fast.items] == pytest.approx([item.score for item in slow.items], abs=1e-6)
    assert fast.cost.generated_tokens < slow.cost.generated_tokens


def test_perplexity_is_kept_window_by_window() -> None:
    loaded = loaded_toy()
    result = measured(loaded)
    direct = perplexity_of(loaded, TEXT, window_tokens=512)
    windows = [item for item in result.items if item.capability == "perplexity"]
    assert [item.item_id for item in windows] == ["window-0000", "window-0001"]
    tokens = [float(item.details["tokens"] or 0) for item in windows]
    assert tokens == [window.tokens for window in direct.windows]
    total = sum(item.score * count for item, count in zip(windows, tokens, strict=True))
    found = {measurement.name: measurement for measurement in result.measurements}
    assert found["perplexity"].value == pytest.approx(math.exp(total / sum(tokens)), rel=1e-6)
    assert found["perplexity_low"].value <= found["perplexity"].value <= found["perplexity_high"].value
    assert found["word_perplexity"].value == pytest.approx(direct.per_word, rel=1e-6)
    assert found["perplexity_tokens"].value == sum(tokens)


def test_no_perplexity_unless_asked_for() -> None:
    result = measured(loaded_toy(), SPEC.model_copy(update={"perplexity": False}))
    assert result.measurements == ()
    assert "perplexity" not in {item.capability for item in result.items}


def test_a_text_that_cannot_be_measured_is_nan_with_a_reason() -> None:
    loaded = loaded_toy()
    result = evaluate(loaded, [], SPEC, text="a")
    assert result.items == []
    assert math.isnan(result.measurements[0].value) and "too short" in result.measurements[0].reason


def test_the_bundled_text_is_the_default() -> None:
    result = evaluate(loaded_toy(), [], SPEC)
    assert len(result.items) > 5
    assert math.isfinite(result.measurements[0].value)


def test_cost_counts_tokens_run_and_not_prompts_times_prefix() -> None:
    loaded = loaded_toy()
    suite = [HasSign("~", count=10)]
    result = evaluate(loaded, suite, EvalSpec(perplexity=False, batch_size=10))
    assert result.cost.prompt_tokens == sum(item.prompt_tokens for item in result.items)
    assert result.cost.generated_tokens == sum(item.generated_tokens for item in result.items)
    assert result.cost.wall_seconds > 0 and result.cost.cpu_seconds > 0
    assert result.cost.peak_memory_bytes > 50e6
    weights = sum(weight.numel() for weight in loaded.model.parameters())
    run = result.cost.flops / (2 * weights)
    # The prefix of more than 60 tokens that ten prompts share has been run once.
    assert run < result.cost.prompt_tokens + result.cost.generated_tokens
    assert run > result.cost.generated_tokens


class Recorder:
    """Keeps what a watcher is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def begin(self, task: str, total: float | None = None, unit: str = "") -> None:
        self.told.append(("begin", total))

    def advance(self, done: float, **facts: Any) -> None:
        self.told.append(("advance", done))

    def end(self, summary: str = "") -> None:
        self.told.append(("end", None))

    def note(self, text: str) -> None:
        self.told.append(("note", text))


def test_progress_is_told_and_capabilities_are_handed_over_when_finished() -> None:
    loaded = loaded_toy()
    watch, finished = Recorder(), []
    result = measured(loaded, watch=watch, on_finished=finished.append)
    assert sorted(scores[0].capability for scores in finished) == sorted({item.capability for item in result.items})
    by_name = {scores[0].capability: scores for scores in finished}
    for name, scores in by_name.items():
        assert scores == [item for item in result.items if item.capability == name]
    assert watch.told[0] == ("begin", 31.0)
    assert ("advance", 31) in watch.told and watch.told[-1] == ("end", None)
    kinds = [kind for kind, _ in watch.told]
    assert kinds.count("begin") == kinds.count("end") == 4


def test_finished_items_are_not_asked_again() -> None:
    loaded = loaded_toy()
    whole = measured(loaded)
    before = [item for item in whole.items if item.capability in ("has_sign", "choice")]
    marked = [item.model_copy(update={"seconds": -1.0}) for item in before]
    watch = Recorder()
    again = measured(loaded, resume_from=marked, watch=watch)
    assert without_times(again.items) == without_times(whole.items)
    assert all(item.seconds == -1.0 for item in again.items if item.capability in ("has_sign", "choice"))
    assert watch.told[0] == ("begin", 21)


def test_an_item_with_another_prompt_is_asked_again() -> None:
    loaded = loaded_toy()
    whole = measured(loaded)
    stale = [item.model_copy(update={"prompt_sha256": "0" * 64, "score": 0.5}) for item in whole.items]
    again = measured(loaded, resume_from=stale)
    assert without_times(again.items) == without_times(whole.items)


@pytest.mark.parametrize("count", [1, 4, 9])
def test_subsets_are_seeded_nested_and_in_order(count: int) -> None:
    capability = HasSign("x")
    chosen = [item.item_id for item in chosen_items(capability, "test", count, seed=3)]
    assert len(chosen) == count
    every = [item.item_id for item in capability.items("test")]
    assert chosen == sorted(chosen, key=every.index)
    assert chosen == [item.item_id for item in chosen_items(capability, "test", count, seed=3)]
    larger = [item.item_id for item in chosen_items(capability, "test", count + 1, seed=3)]
    assert set(chosen) < set(larger)
    draws = {tuple(item.item_id for item in chosen_items(capability, "test", 4, seed=seed)) for seed in range(6)}
    assert len(draws) > 1
    assert [item.item_id for item in chosen_items(capability, "test", None, seed=3)] == every
    assert [item.item_id for item in chosen_items(capability, "test", 99, seed=3)] == every


def test_subsets_balance_the_kinds() -> None:
    for seed in range(5):
        kinds = [item.gold["kind"] for item in chosen_items(TwoKinds("x"), "test", 6, seed=seed)]
        assert kinds.count("a") == kinds.count("b") == 3


def test_two_items_with_one_id_are_refused() -> None:
    class Twice(HasSign):
        def items(self, split: Any) -> list[Item]:
            return [*super().items(split), super().items(split)[0]]

    with pytest.raises(DataError, match="has_sign-test-0"):
        evaluate(loaded_toy(), [Twice("x")], SPEC)


def test_a_tokenizer_without_template_uses_the_fallback_and_stops_at_its_headings() -> None:
    loaded = loaded_toy()
    loaded.tokenizer.chat_template = None
    assert stop_texts_of(loaded.tokenizer)
    result = evaluate(loaded, [HasSign("x")], EvalSpec(perplexity=False))
    assert len(result.items) == 10


def test_the_order_of_the_suite_does_not_change_a_grade() -> None:
    loaded = loaded_toy()
    forward = measured(loaded, SPEC.model_copy(update={"perplexity": False}))
    turned = evaluate(loaded, suite_of(loaded)[::-1], EvalSpec(perplexity=False, batch_size=7))
    by_id = {(item.capability, item.item_id): item.score for item in turned.items}
    assert by_id == {(item.capability, item.item_id): item.score for item in forward.items}


@pytest.mark.slow
def test_smollm2_on_the_mini_suite_with_and_without_early_leave(smollm2: LoadedModel) -> None:
    from regrow.capabilities.suites import suite

    spec = EvalSpec(items=6, batch_size=8, perplexity=False)
    fast = evaluate(smollm2, suite("mini"), spec)
    slow = evaluate(smollm2, suite("mini"), spec.model_copy(update={"fast_stop": False}))
    assert len(fast.items) == 36
    assert [item.score for item in fast.items] == [item.score for item in slow.items]
    assert [item.parsed for item in fast.items] == [item.parsed for item in slow.items]
    assert fast.cost.generated_tokens <= slow.cost.generated_tokens
    by_name = {
        capability.name: capability.summarise([item for item in fast.items if item.capability == capability.name])
        for capability in suite("mini")
    }
    # A healthy model is far from a broken one, whatever the six items that were drawn.
    assert sum(numbers["score"] for numbers in by_name.values()) / 6 > 0.4
    knowledge = [item for item in fast.items if item.capability == "knowledge"]
    assert all(0 < float(item.details["confidence"] or 0) <= 1 and item.response for item in knowledge)


@pytest.mark.slow
@pytest.mark.shared
def test_smollm2_on_the_full_suite_with_and_without_early_leave(smollm2: LoadedModel, shared_data: Path) -> None:
    from regrow.capabilities.suites import suite

    pytest.importorskip("lm_eval")
    sets = suite("full", data=shared_data)
    for each in sets:
        each.max_new_tokens = min(each.max_new_tokens, 96)
    spec = EvalSpec(items=3, perplexity=False)
    fast = evaluate(smollm2, sets, spec)
    slow = evaluate(smollm2, sets, spec.model_copy(update={"fast_stop": False}))
    assert len(fast.items) == 18
    assert [(item.score, item.parsed) for item in fast.items] == [(item.score, item.parsed) for item in slow.items]
    for early, whole in zip(fast.items, slow.items, strict=True):
        assert whole.response.startswith(early.response) or early.details["stopped"] == "decided"
    left = [item for item in fast.items if item.details.get("stopped") == "decided"]
    assert left and fast.cost.generated_tokens < slow.cost.generated_tokens


class Interrupted(BaseException):
    """What a test does in place of Ctrl-C."""


class InterruptingRecorder(Recorder):
    """Interrupts at the first advance of the task numbered ``task``, after ``after`` units."""

    def __init__(self, task: int, after: float = 0) -> None:
        super().__init__()
        self.task, self.after = task, after

    def advance(self, done: float, **facts: Any) -> None:
        super().advance(done, **facts)
        if sum(kind == "begin" for kind, _ in self.told) == self.task and done >= self.after:
            raise Interrupted


def test_interrupted_work_is_not_told_as_done() -> None:
    watch = InterruptingRecorder(task=1)
    with pytest.raises(Interrupted):
        evaluate(loaded_toy(), [], SPEC, text=TEXT, watch=watch)
    assert [kind for kind, _ in watch.told] == ["begin", "advance"]


@pytest.mark.parametrize("task", [1, 2])
def test_what_was_graded_before_an_interruption_is_handed_over_and_taken_up(task: int) -> None:
    loaded = loaded_toy()
    whole = measured(loaded)
    parts: dict[str, list[ItemScore]] = {}

    def keep(scores: list[ItemScore]) -> None:
        parts[scores[0].capability] = scores

    with pytest.raises(Interrupted):
        measured(loaded, watch=InterruptingRecorder(task, after=3), on_part=keep, on_finished=keep)
    kept = [score for scores in parts.values() for score in scores]
    assert 0 < len(kept) < len(whole.items)
    again = measured(loaded, resume_from=[item.model_copy(update={"seconds": -1.0}) for item in kept])
    assert without_times(again.items) == without_times(whole.items)
    assert sum(item.seconds == -1.0 for item in again.items) == len(kept)


def test_parts_are_handed_over_while_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    import regrow.capabilities.evaluate as module

    monkeypatch.setattr(module, "PART_SECONDS", 0.0)
    parts: list[list[ItemScore]] = []
    result = measured(loaded_toy(), on_part=parts.append)
    assert len(parts) > 10
    for part in parts:
        own = [item for item in result.items if item.capability == part[0].capability]
        ids = [item.item_id for item in own]
        assert [item.item_id for item in part] == [name for name in ids if name in {item.item_id for item in part}]
        assert len(part) < len(own)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_without_finite_probabilities_is_named(value: float) -> None:
    loaded = loaded_toy()
    loaded.model.lm_head.weight.data.fill_(value)
    with pytest.raises(ModelError, match="'qwen3' gives no finite probabilities") as caught:
        evaluate(loaded, [LongestChoice()], SPEC.model_copy(update={"perplexity": False}))
    assert "float32" in str(caught.value.hint)


def test_a_question_that_does_not_fit_the_context_scores_nothing_and_says_so() -> None:
    loaded = loaded_toy()
    capability = HasSign("e")
    chats = [each.messages for each in capability.items("test")]
    prompts = [render_chat(loaded.tokenizer, chat, add_generation_prompt=True) for chat in chats]
    lengths = [len(loaded.tokenizer(prompt).input_ids) for prompt in prompts]
    loaded.model.config.max_position_embeddings = sorted(lengths)[4] + 1
    watch = Recorder()
    result = evaluate(loaded, [capability], SPEC.model_copy(update={"perplexity": False}), watch=watch)
    for item, length in zip(result.items, lengths, strict=True):
        fits = length <= sorted(lengths)[4]
        assert ("fault" in item.details) != fits
        if not fits:
            assert item.score == 0 and item.response == "" and "context holds" in str(item.details["fault"])
    notes = [text for kind, text in watch.told if kind == "note"]
    assert len(notes) == 1 and f"{sum(length > sorted(lengths)[4] for length in lengths)} items" in notes[0]


def test_choices_that_do_not_fit_the_context_score_nothing_and_say_so() -> None:
    loaded = loaded_toy()
    loaded.model.config.max_position_embeddings = 40
    told: list[str] = []

    class Notes(SilentWatcher):
        def note(self, text: str) -> None:
            told.append(text)

    result = evaluate(loaded, [Choice()], EvalSpec(perplexity=False), watch=Notes())
    assert len(result.items) == len(Choice().items("test"))
    for item in result.items:
        assert item.score == 0 and "context holds 40" in str(item.details["fault"])
    assert told == [
        "note: 6 items of choice score 0, because their prompts are longer than the model's context of 40 tokens"
    ]


def test_an_item_that_was_never_asked_keeps_its_kind() -> None:
    loaded = loaded_toy()
    loaded.model.config.max_position_embeddings = 20
    (first, *_) = evaluate(loaded, [SafetyOfToys()], EvalSpec(perplexity=False)).items
    assert first.score == 0 and first.details["kind"] == "unsafe" and "context holds" in str(first.details["fault"])


class SafetyOfToys(TwoKinds):
    """Graded as safety is."""

    def __init__(self) -> None:
        super().__init__("x")

    def items(self, split: Split) -> Sequence[Item]:
        return [
            Item(each.capability, each.item_id, split, each.messages, {"kind": "unsafe"})
            for each in super().items(split)
        ]

    def grade(self, item: Item, response: str) -> Grade:
        return SafetyRefusal().grade(item, response)


def test_half_a_surrogate_pair_in_an_answer_can_be_written(tmp_path: Path) -> None:
    class Cut(TransformersEngine):
        def answer(self, questions: Any, **options: Any) -> Any:
            on_answer = options["on_answer"]
            for number, _ in enumerate(questions):
                on_answer(number, Answer("smile \ud83d", 1, 1, 0.0, "eos"))
            return []

    class Faulty(HasSign):
        def grade(self, item: Item, response: str) -> Grade:
            return Grade(0.0, details={"fault": "unexpected: \ud800"})

    loaded = loaded_toy()
    result = evaluate(loaded, [Faulty("x")], EvalSpec(perplexity=False), engine=Cut(loaded))
    for item in result.items:
        assert ItemScore.model_validate_json(item.model_dump_json()) == item
        assert item.response == "smile \ufffd" and item.details["fault"] == "unexpected: \ufffd"


def test_rates_beside_the_scores_are_measured() -> None:
    loaded = loaded_toy()
    result = evaluate(loaded, [Choice(), TwoKinds("x")], EvalSpec(perplexity=False))
    kept = {one.name: one for one in result.measurements}
    for capability in (Choice(), TwoKinds("x")):
        own = [item for item in result.items if item.capability == capability.name]
        expected = {f"{capability.name}.{k}": v for k, v in capability.summarise(own).items() if k not in THE_SCORE}
        for name, value in expected.items():
            assert kept[name].value == pytest.approx(value, nan_ok=True)
    assert "choice.score" not in kept
