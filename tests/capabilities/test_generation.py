"""Generation against transformers' own, token by token, on tiny models of many families."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regrow.capabilities.decoding_way import choose_way
from regrow.capabilities.generation import Answer, Request, _rows_of, generate
from regrow.capabilities.likelihood import choice_logprobs
from regrow.capabilities.model_call import ModelCall, end_ids, out_of_memory
from regrow.capabilities.plain_generation import generate_plainly
from regrow.capabilities.ragged_rows import RaggedRows
from regrow.data.chat import tokenise_prompt
from regrow.errors import ConfigError, DataError, ModelError
from regrow.models.bridges import AffineBridge, attach_bridge
from regrow.models.load import LoadedModel
from tests.conftest import tiny_model, tiny_tokenizer

NEW = 20

WAYS = {
    "llama": "ragged",
    "qwen3": "ragged",
    "olmo2": "ragged",
    "gpt_neox": "ragged",
    "gpt2": "ragged",
    "granite": "ragged",
    "qwen2_moe": "ragged",
    "gemma3": "copied",
    "gemma2": "copied",
    "mistral": "copied",
    "olmo3": "copied",
    "gpt_neo": "copied",
}


def prompts_of(seed: int = 0, count: int = 9) -> list[str]:
    """Return prompts of many lengths: most share 40 characters, some another 60, one stands alone."""
    draw = np.random.default_rng(seed)
    letters = [chr(code) for code in range(33, 120)]

    def text(length: int) -> str:
        return "".join(draw.choice(letters, length))

    first, second = text(40), text(60)
    mixed = [first + text(int(draw.integers(1, 30))) for _ in range(count - 5)]
    return [*mixed, *(second + text(int(draw.integers(1, 9))) for _ in range(4)), text(25)]


def with_livelier_ends(model: Any, tokenizer: Any, prompts: list[str]) -> frozenset[int]:
    """Make a token that the model does write an end token, and return all end tokens."""
    ids = tokenise_prompt(tokenizer, prompts[0])
    written = generate_plainly(model, [ids], max_new_tokens=NEW, end_ids=())[0]
    model.generation_config.eos_token_id = [2, written[NEW // 2]]
    return end_ids(model, tokenizer)


def one_by_one(
    model: Any, tokenizer: Any, prompts: list[str], ends: frozenset[int], new: int | list[int] = NEW
) -> list[list[int]]:
    lengths = new if isinstance(new, list) else [new] * len(prompts)
    return [
        generate_plainly(model, [tokenise_prompt(tokenizer, prompt)], max_new_tokens=length, end_ids=ends)[0]
        for prompt, length in zip(prompts, lengths, strict=True)
    ]


def without_end(ids: list[int], ends: frozenset[int]) -> tuple[int, ...]:
    return tuple(ids[:-1] if ids[-1] in ends else ids)


def loaded_tiny(family: str = "llama", **options: Any) -> LoadedModel:
    return LoadedModel(tiny_model(family, **options), tiny_tokenizer(), family)


@pytest.mark.parametrize("family", WAYS)
def test_answers_are_those_of_transformers(family: str) -> None:
    loaded = loaded_tiny(family)
    prompts = prompts_of()
    lengths = [NEW - index % 4 for index in range(len(prompts))]
    ends = with_livelier_ends(loaded.model, loaded.tokenizer, prompts)
    expected = one_by_one(loaded.model, loaded.tokenizer, prompts, ends, lengths)
    requests = [Request(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]
    answers = generate(loaded, requests, batch_size=5)
    assert [answer.token_ids for answer in answers] == [without_end(ids, ends) for ids in expected]
    assert [answer.generated_tokens for answer in answers] == [len(ids) for ids in expected]
    assert [answer.stopped for answer in answers] == ["eos" if ids[-1] in ends else "length" for ids in expected]
    assert [answer.prompt_tokens for answer in answers] == [len(prompt) for prompt in prompts]
    assert all(answer.text == loaded.tokenizer.decode(answer.token_ids, skip_special_tokens=True) for answer in answers)


@pytest.mark.parametrize("family", WAYS)
def test_way_of_each_family(family: str) -> None:
    call = ModelCall(tiny_model(family))
    with torch.no_grad():
        assert choose_way(call, list(range(3, 30)), longest=100) == WAYS[family]


def test_sliding_window_that_no_text_reaches_needs_no_padding() -> None:
    model = tiny_model("mistral")
    model.config.sliding_window = 40
    with torch.no_grad():
        assert choose_way(ModelCall(model), [5, 6, 7], longest=40) == "ragged"
        assert choose_way(ModelCall(model), [5, 6, 7], longest=41) == "copied"


def test_references_are_not_trivial() -> None:
    loaded = loaded_tiny()
    expected = one_by_one(loaded.model, loaded.tokenizer, prompts_of(), frozenset())
    assert len({token for ids in expected for token in ids}) > 10
    assert len({tuple(ids) for ids in expected}) == len(expected)


@cache
def answers_in_fours(family: str) -> list[Answer]:
    return generate(loaded_tiny(family), [Request(prompt, NEW) for prompt in prompts_of(1)], batch_size=4)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("batch_size", [1, 2, 9, 64])
def test_batch_size_and_order_do_not_matter(family: str, batch_size: int) -> None:
    loaded = loaded_tiny(family)
    prompts = prompts_of(1)
    reference = answers_in_fours(family)
    turned = generate(loaded, [Request(prompt, NEW) for prompt in reversed(prompts)], batch_size=batch_size)
    assert [answer.token_ids for answer in reversed(turned)] == [answer.token_ids for answer in reference]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_long_answers_move_the_columns(family: str) -> None:
    loaded = loaded_tiny(family)
    prompts = [prompt[-12:] for prompt in prompts_of(2)[:6]]
    lengths = [150 - 11 * index for index in range(len(prompts))]
    expected = one_by_one(loaded.model, loaded.tokenizer, prompts, end_ids(loaded.model, loaded.tokenizer), lengths)
    requests = [Request(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]
    answers = generate(loaded, requests, batch_size=2)
    ends = end_ids(loaded.model, loaded.tokenizer)
    assert [answer.token_ids for answer in answers] == [without_end(ids, ends) for ids in expected]


def test_identical_prompts_are_answered_alike() -> None:
    loaded = loaded_tiny()
    answers = generate(loaded, [Request("abcabc", NEW)] * 5, batch_size=3)
    assert len({answer.token_ids for answer in answers}) == 1


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_bridged_model_is_used_as_it_is(family: str) -> None:
    model = tiny_model(family)
    bridge = AffineBridge(32)
    with torch.no_grad():
        bridge.weight.normal_(0, 0.2)
        bridge.bias.normal_(0, 0.2)
    loaded = LoadedModel(model, tiny_tokenizer(), family)
    plain = generate(loaded, [Request(prompt, NEW) for prompt in prompts_of()])
    attach_bridge(model, 2, bridge)
    bridged = generate(loaded, [Request(prompt, NEW) for prompt in prompts_of()], batch_size=4)
    ends = end_ids(model, loaded.tokenizer)
    expected = one_by_one(model, loaded.tokenizer, prompts_of(), ends)
    assert [answer.token_ids for answer in bridged] == [without_end(ids, ends) for ids in expected]
    assert [answer.token_ids for answer in bridged] != [answer.token_ids for answer in plain]


def test_a_model_under_peft_is_used_as_it_is() -> None:
    from peft import LoraConfig, get_peft_model

    loaded = loaded_tiny()
    adapted = get_peft_model(loaded.model, LoraConfig(r=2, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.normal_(0, 0.3)
    adapted.train()
    answers = generate(
        LoadedModel(adapted, loaded.tokenizer, "tiny"), [Request(prompt, NEW) for prompt in prompts_of()]
    )
    assert adapted.training
    adapted.eval()
    ends = end_ids(adapted, loaded.tokenizer)
    expected = one_by_one(adapted, loaded.tokenizer, prompts_of(), ends)
    assert [answer.token_ids for answer in answers] == [without_end(ids, ends) for ids in expected]


def test_a_recurrent_model_is_answered_without_reuse() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "lfm2",
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        layer_types=["conv", "full_attention"] * 2,
        vocab_size=96,
        pad_token_id=0,
        eos_token_id=2,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    tokenizer = tiny_tokenizer()
    with torch.no_grad():
        assert choose_way(ModelCall(model), [5, 6, 7], longest=50) == "none"
    answers = generate(LoadedModel(model, tokenizer, "lfm2"), [Request(prompt, NEW) for prompt in prompts_of()])
    ends = end_ids(model, tokenizer)
    expected = one_by_one(model, tokenizer, prompts_of(), ends)
    assert [answer.token_ids for answer in answers] == [without_end(ids, ends) for ids in expected]


def test_a_decided_row_stops_at_the_first_token_that_decides() -> None:
    loaded = loaded_tiny()
    prompts = prompts_of()
    full = generate(loaded, [Request(prompt, NEW) for prompt in prompts])
    sign = full[0].text[7]

    def decided(text: str) -> bool:
        return sign in text

    requests = [Request(prompt, NEW, decided) for prompt in prompts]
    fast = generate(loaded, requests, batch_size=4)
    for early, whole in zip(fast, full, strict=True):
        if sign in whole.text:
            assert early.stopped == "decided"
            assert early.text == whole.text[: whole.text.index(sign) + 1]
            assert early.generated_tokens == len(early.token_ids) == len(early.text)
        else:
            assert (early.text, early.stopped) == (whole.text, whole.stopped)
    assert any(answer.stopped == "decided" for answer in fast)
    patient = generate(loaded, requests, batch_size=4, fast_stop=False)
    assert [answer.text for answer in patient] == [answer.text for answer in full]
    # What decides a grade is the same in both.
    assert [decided(answer.text) for answer in fast] == [decided(answer.text) for answer in patient]


def test_stop_texts_are_cut_off() -> None:
    loaded = loaded_tiny()
    prompts = prompts_of()
    full = generate(loaded, [Request(prompt, NEW) for prompt in prompts])
    stop = full[0].text[5:7]
    answers = generate(loaded, [Request(prompt, NEW, stop_texts=("never ", stop)) for prompt in prompts])
    for answer, whole in zip(answers, full, strict=True):
        assert answer.text == whole.text.split(stop)[0]
        if stop in whole.text:
            assert answer.stopped == "eos"
    assert answers[0].text == full[0].text[: full[0].text.index(stop)]


def test_a_stop_text_that_decoding_leaves_out_stops_too() -> None:
    tokenizer = loaded_tiny().tokenizer
    index, special = next(
        (index, token.content) for index, token in tokenizer.added_tokens_decoder.items() if token.special
    )
    (row,) = _rows_of(loaded_tiny(), [Request("ab", 9, stop_texts=(special,))], fast_stop=True)
    told = tokenizer("xy", add_special_tokens=False).input_ids
    assert [row.take(token, frozenset()) for token in [*told, index]] == [False] * len(told) + [True]
    answer = row.answer(frozenset())
    assert (answer.stopped, answer.text, answer.token_ids) == ("eos", "xy", tuple(told))


def test_seconds_add_up_and_progress_reaches_the_end() -> None:
    loaded = loaded_tiny()
    told: list[tuple[int, int, float]] = []
    arrived: dict[int, Answer] = {}
    requests = [Request(prompt, NEW) for prompt in prompts_of()]
    answers = generate(
        loaded,
        requests,
        batch_size=4,
        on_progress=lambda *facts: told.append(facts),
        on_answer=lambda number, answer: arrived.update({number: answer}),
    )
    assert told[-1][:2] == (len(requests), len(requests))
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert all(rate > 0 for _, _, rate in told)
    assert arrived == dict(enumerate(answers))
    assert all(answer.seconds > 0 for answer in answers)


def test_the_model_is_left_as_it_was_even_after_an_error() -> None:
    loaded = loaded_tiny()
    before = loaded.model.config._attn_implementation
    loaded.model.train()

    def fails(text: str) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        generate(loaded, [Request("abc", 4, fails)])
    assert loaded.model.training
    assert loaded.model.config._attn_implementation == before
    loaded.model.eval()
    ids = torch.tensor([[5, 6, 7]])
    assert torch.isfinite(loaded.model(ids).logits).all()


class ScarceMemory(nn.Module):
    """Raises what torch raises when a call's tokens do not fit."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.seen: list[int] = []

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        tokens = kwargs["input_ids"].numel()
        self.seen.append(tokens)
        if tokens > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_batch_that_does_not_fit_is_halved() -> None:
    loaded = loaded_tiny()
    requests = [Request(prompt, NEW) for prompt in prompts_of()]
    expected = generate(loaded, requests)
    memory = ScarceMemory(80)
    handle = loaded.model.register_forward_pre_hook(memory, with_kwargs=True)
    answers = generate(loaded, requests, batch_size=9)
    handle.remove()
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert [answer.generated_tokens for answer in answers] == [answer.generated_tokens for answer in expected]
    assert max(memory.seen) > 80 and memory.seen[-1] <= 80


def test_linux_says_it_in_its_own_words() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert out_of_memory(caught.value)
    assert not out_of_memory(RuntimeError("a bug"))


def test_answers_that_were_complete_when_memory_ran_out_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    drop, calls = RaggedRows.drop, []

    def scarce(self: RaggedRows, row: int) -> list[tuple[int, int]]:
        calls.append(row)
        if len(calls) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return drop(self, row)

    loaded = loaded_tiny()
    requests = [Request(f"abc{number}", 3 + number % 3) for number in range(6)]
    expected = generate(loaded, requests)
    monkeypatch.setattr(RaggedRows, "drop", scarce)
    told: list[int] = []
    answers = generate(loaded, requests, batch_size=6, on_answer=lambda number, answer: told.append(number))
    assert sorted(told) == list(range(6)) and len(calls) > 4
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]


def test_a_trial_without_memory_is_a_model_error_and_no_slower_way() -> None:
    loaded = loaded_tiny()
    seen: list[int] = []

    def scarce(module: nn.Module, args: Any, kwargs: Any) -> None:
        seen.append(1)
        if len(seen) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    handle = loaded.model.register_forward_pre_hook(scarce, with_kwargs=True)
    with pytest.raises(ModelError, match="not enough memory"):
        generate(loaded, [Request("abc", 3)])
    handle.remove()


def turning_model() -> Any:
    """Return a model whose positions are turned otherwise once a text is longer than 40 tokens (longrope)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "phi3", hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=96, max_position_embeddings=512, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, original_max_position_embeddings=40,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8,
            "long_factor": [4.0 + at for at in range(8)], "original_max_position_embeddings": 40,
        },
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.15)
    return model


def test_positions_that_turn_with_the_length_are_not_mixed() -> None:
    model, tokenizer = turning_model(), tiny_tokenizer()
    loaded = LoadedModel(model, tokenizer, "phi3")
    with torch.no_grad():
        assert choose_way(ModelCall(model), [5, 6, 7], longest=40) == "ragged"
        assert choose_way(ModelCall(model), [5, 6, 7], longest=41) == "none"
    first = "".join(chr(33 + at % 80) for at in range(0, 300, 7))
    prompts = [first + "xyzuvw" * 3, first + "defghi" * 3, first[:10], first[:20]]
    ends = end_ids(model, tokenizer)
    expected = one_by_one(model, tokenizer, prompts, ends, [6] * 4)
    answers = generate(loaded, [Request(prompt, 6) for prompt in prompts], batch_size=4)
    assert [answer.token_ids for answer in answers] == [without_end(ids, ends) for ids in expected]
    choices = ["ab", "abcdefgh" * 3]
    together = choice_logprobs(loaded, [(prompt, choices) for prompt in prompts])
    for prompt, scores in zip(prompts, together, strict=True):
        for choice, score in zip(choices, scores, strict=True):
            ids = torch.tensor([tokenise_prompt(tokenizer, prompt + choice)])
            with torch.no_grad():
                logits = model(ids).logits[0, :-1].log_softmax(-1)
            taken = logits.gather(-1, ids[0, 1:, None])[-len(choice) :].sum()
            assert score.logprob == pytest.approx(taken.item(), abs=1e-4)


def test_memory_that_never_suffices_is_a_model_error() -> None:
    loaded = loaded_tiny()
    calls = ScarceMemory(99)

    def after_the_trial(module: nn.Module, args: Any, kwargs: Any) -> None:
        calls.seen.append(1)
        if kwargs["input_ids"].shape[1] > 16:
            raise torch.OutOfMemoryError("CUDA out of memory")

    handle = loaded.model.register_forward_pre_hook(after_the_trial, with_kwargs=True)
    with pytest.raises(ModelError, match="not enough memory") as caught:
        generate(loaded, [Request("x" * 30, 3)])
    handle.remove()
    assert caught.value.hint and calls.seen


def test_other_runtime_errors_are_not_swallowed() -> None:
    loaded = loaded_tiny()

    def breaks(module: nn.Module, args: Any, kwargs: Any) -> None:
        if kwargs["input_ids"].shape[1] > 16:
            raise RuntimeError("a bug")

    handle = loaded.model.register_forward_pre_hook(breaks, with_kwargs=True)
    with pytest.raises(RuntimeError, match="a bug"):
        generate(loaded, [Request("x" * 30, 3)])
    handle.remove()


def test_answers_end_where_the_context_ends() -> None:
    loaded = loaded_tiny("gpt2")
    limit = loaded.model.config.max_position_embeddings
    answer = generate(loaded, [Request("a" * (limit - 5), 50)])[0]
    assert answer.generated_tokens <= 5
    with pytest.raises(DataError, match="512") as caught:
        generate(loaded, [Request("a" * limit, 50)])
    assert caught.value.hint


def test_a_prompt_loses_its_beginning_where_that_is_asked_for() -> None:
    loaded = loaded_tiny("gpt2")
    limit = loaded.model.config.max_position_embeddings
    whole = generate(loaded, [Request("ab" * ((limit - 50) // 2), 50)])[0]
    cut = generate(loaded, [Request("x" * limit + "ab" * ((limit - 50) // 2), 50, longest=limit)])[0]
    assert cut.token_ids == whole.token_ids and cut.prompt_tokens == whole.prompt_tokens
    for longest in (-1, 0, 3):
        with pytest.raises(ConfigError, match="asks for 3 new tokens"):
            generate(loaded, [Request("abc", 3, longest=longest)])
    assert generate(loaded, [Request("abc", 3, longest=4)])[0].prompt_tokens == 1


@pytest.mark.parametrize(
    ("request_", "options", "kind"),
    [
        (Request("", 5), {}, DataError),
        (Request("abc", 0), {}, ConfigError),
        (Request("abc", 5), {"batch_size": 0}, ConfigError),
    ],
)
def test_nonsense_is_refused(request_: Request, options: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        generate(loaded_tiny(), [request_], **options)


def test_no_requests_no_answers() -> None:
    assert generate(loaded_tiny(), []) == []


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_bfloat16_follows_the_models_own_scores(family: str) -> None:
    loaded = loaded_tiny(family)
    loaded.model.to(torch.bfloat16)
    with torch.no_grad():
        assert choose_way(ModelCall(loaded.model), [5, 6, 7], longest=100) == WAYS[family]
    answers = generate(loaded, [Request(prompt, NEW) for prompt in prompts_of()], batch_size=5)
    for prompt, answer in zip(prompts_of(), answers, strict=True):
        ids = tokenise_prompt(loaded.tokenizer, prompt)
        with torch.no_grad():
            logits = loaded.model(torch.tensor([[*ids, *answer.token_ids]])).logits[0, len(ids) - 1 :].float()
        written = torch.tensor(answer.token_ids)
        chosen = logits[torch.arange(len(written)), written]
        # Rounding may let another token win that is within it of the best.
        assert (logits[: len(written)].max(-1).values - chosen).max() < 0.1 * logits.std()


def test_sampling_options_of_the_checkpoint_are_not_applied() -> None:
    loaded = loaded_tiny()
    requests = [Request(prompt, NEW) for prompt in prompts_of()]
    plain = generate(loaded, requests)
    loaded.model.generation_config.repetition_penalty = 5.0
    loaded.model.generation_config.do_sample = True
    assert generate(loaded, requests)[0].token_ids == plain[0].token_ids
    ends = end_ids(loaded.model, loaded.tokenizer)
    expected = one_by_one(loaded.model, loaded.tokenizer, prompts_of(), ends)
    assert [answer.token_ids for answer in plain] == [without_end(ids, ends) for ids in expected]


def make_text(loaded: LoadedModel) -> Callable[[str], str]:
    from regrow.data.chat import render_chat

    def text(question: str) -> str:
        chat: list[dict[str, str]] = []
        for name, age in (("Ada", 36), ("Bo", 7)):
            chat.append({"role": "user", "content": f"{name} is {age} years old. Return JSON with name and age."})
            chat.append({"role": "assistant", "content": f'{{"name": "{name}", "age": {age}}}'})
        chat.append({"role": "user", "content": question})
        return render_chat(loaded.tokenizer, chat, add_generation_prompt=True)

    return text


@pytest.mark.slow
def test_smollm2_answers_are_those_of_transformers(smollm2: LoadedModel) -> None:
    text = make_text(smollm2)
    names = ["Lena", "Pjotr", "Maximiliana from Antwerp", "Yu", "Ole and his dog"]
    prompts = [
        text(f"{name} is {20 + 7 * at} years old. Return JSON with name and age.") for at, name in enumerate(names)
    ]
    prompts.append(text("Tell a story about a lighthouse."))
    ends = end_ids(smollm2.model, smollm2.tokenizer)
    expected = one_by_one(smollm2.model, smollm2.tokenizer, prompts, ends, 24)
    answers = generate(smollm2, [Request(prompt, 24) for prompt in prompts], batch_size=4)
    assert [answer.token_ids for answer in answers] == [without_end(ids, ends) for ids in expected]
    assert answers[0].text.startswith("{") and answers[0].stopped == "eos"
    early = generate(smollm2, [Request(prompt, 24, lambda text: "}" in text) for prompt in prompts], batch_size=4)
    assert early[0].stopped == "decided" and early[0].text == answers[0].text
    assert early[-1].text == answers[-1].text
