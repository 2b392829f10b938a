"""Rendering of chats and the token ids of what was rendered."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import processors

from regrow.data.chat import (
    bos_by_convention,
    chat_format_of,
    end_of_turn_of,
    render_chat,
    stop_texts_of,
    tokenise_prompt,
)
from regrow.errors import DataError
from tests.conftest import tiny_tokenizer

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "3+3?"},
]


def with_template(template: str | None) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def with_bos() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
    )
    return tokenizer


def test_own_template_is_what_transformers_renders() -> None:
    tokenizer = tiny_tokenizer()
    assert chat_format_of(tokenizer) == "tokenizer's own"
    expected = "[system] Be brief.<eos>[user] 2+2?<eos>[assistant] 4<eos>[user] 3+3?<eos>"
    assert render_chat(tokenizer, CHAT, add_generation_prompt=False) == expected
    assert render_chat(tokenizer, CHAT, add_generation_prompt=True) == expected + "[assistant] "
    assert stop_texts_of(tokenizer) == ()


def test_fallback_format_is_the_documented_one() -> None:
    tokenizer = with_template(None)
    assert chat_format_of(tokenizer) == "fallback"
    text = render_chat(tokenizer, CHAT, add_generation_prompt=True)
    assert text == (
        "### System:\nBe brief.\n\n### User:\n2+2?\n\n### Assistant:\n4\n\n### User:\n3+3?\n\n### Assistant:\n"
    )
    answered = render_chat(tokenizer, [*CHAT, {"role": "assistant", "content": "6"}], add_generation_prompt=False)
    assert answered == text + "6"
    assert "\n### User:" in stop_texts_of(tokenizer)
    assert end_of_turn_of(tokenizer) is None


REJECTS = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
)
DROPS = "{% for m in messages if m['role'] != 'system' %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"


@pytest.mark.parametrize("template", [REJECTS, DROPS])
def test_system_turn_is_folded_into_the_first_user_turn(template: str) -> None:
    text = render_chat(with_template(template), CHAT, add_generation_prompt=False)
    assert text == "user: Be brief.\n\n2+2?\nassistant: 4\nuser: 3+3?\n"


def test_system_turn_alone_becomes_a_user_turn() -> None:
    assert render_chat(with_template(REJECTS), CHAT[:1], add_generation_prompt=False) == "user: Be brief.\n"


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m['role'] }",
        "{{ raise_exception('no') }}",
        "{{ messages[9]['content'] + 1 }}",
        "{{ ''.__class__.__mro__ }}{{ messages.__class__.__base__.__subclasses__() }}",
        "{% for m in messages %}{{ 1 / 0 }}{% endfor %}",
    ],
)
@pytest.mark.parametrize("messages", [CHAT, CHAT[1:]])
def test_broken_or_hostile_template_is_a_data_error(template: str, messages: list[dict[str, str]]) -> None:
    with pytest.raises(DataError) as caught:
        render_chat(with_template(template), messages, add_generation_prompt=True)
    assert caught.value.hint and "chat_template" in caught.value.hint


@pytest.mark.parametrize("messages", [[], [{"role": "tool", "content": "x"}], [{"role": "user"}], [{"content": "x"}]])
def test_malformed_messages_are_refused(messages: list[dict[str, str]]) -> None:
    with pytest.raises(DataError):
        render_chat(tiny_tokenizer(), messages, add_generation_prompt=True)


def test_bos_is_put_first_once_where_the_tokenizer_has_it_by_convention() -> None:
    tokenizer = with_bos()
    assert bos_by_convention(tokenizer) == tokenizer.bos_token_id
    plain = list(tokenizer("ab", add_special_tokens=False).input_ids)
    assert tokenise_prompt(tokenizer, "ab") == [tokenizer.bos_token_id, *plain]
    assert tokenise_prompt(tokenizer, "<bos>ab") == [tokenizer.bos_token_id, *plain]


def test_no_bos_where_the_tokenizer_does_not_put_one() -> None:
    tokenizer = tiny_tokenizer()
    assert bos_by_convention(tokenizer) is None
    assert tokenise_prompt(tokenizer, "ab") == list(tokenizer("ab").input_ids)
    assert tokenise_prompt(tokenizer, "<bos>ab")[0] == tokenizer.bos_token_id


def test_end_of_turn_is_read_from_the_template() -> None:
    assert end_of_turn_of(tiny_tokenizer()) == tiny_tokenizer().eos_token_id
    own = "{% for m in messages %}{{ m['content'] + '<turn>\n' }}{% endfor %}"
    tokenizer = with_template(own)
    assert end_of_turn_of(tokenizer) is None
    tokenizer.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    assert end_of_turn_of(tokenizer) == tokenizer.convert_tokens_to_ids("<turn>")


@pytest.mark.slow
def test_smollm2_prompt_text(smollm2: Any) -> None:
    text = render_chat(smollm2.tokenizer, [{"role": "user", "content": "hi"}], add_generation_prompt=True)
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert end_of_turn_of(smollm2.tokenizer) == smollm2.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert bos_by_convention(smollm2.tokenizer) is None
