"""Pools on disk and as token ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regrow.data.pools import CARD, EXAMPLES, Example, Pool, by_name, load_pool, load_pools, save_pool, tokenise
from regrow.errors import DataError, ModelError, StudyError
from tests.conftest import tiny_tokenizer

AWKWARD = 'two\nlines, a quote ", a line separator \u2028 and a next line \x85 within'


def pool_of(*rows: tuple[str, str, str], name: str = "sums") -> Pool:
    return Pool(name, tuple(Example(name, *row) for row in rows), {"wrong answer": 3}, "written here", "Apache-2.0")


def test_a_pool_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    pool = pool_of(("a", "1 + 1 =", "2"), ("b", AWKWARD, AWKWARD))
    assert load_pool(save_pool(pool, tmp_path / "sums")) == pool
    card = json.loads((tmp_path / "sums" / CARD).read_text())
    assert (card["examples"], card["dropped"], card["licence"]) == (2, {"wrong answer": 3}, "Apache-2.0")
    assert card["fingerprint"] == pool.fingerprint


def test_the_fingerprint_is_of_texts_and_their_order() -> None:
    one, two = ("a", "1 + 1 =", "2"), ("b", "1 + 2 =", "3")
    assert pool_of(one, two).fingerprint == pool_of(one, two).fingerprint
    others = [pool_of(two, one), pool_of(one), pool_of(one, ("b", "1 + 2 =", "4")), pool_of(one, two, name="other")]
    assert len({pool.fingerprint for pool in [pool_of(one, two), *others]}) == 5


def test_a_pool_is_never_written_over_another(tmp_path: Path) -> None:
    save_pool(pool_of(("a", "1 + 1 =", "2")), tmp_path / "sums")
    with pytest.raises(StudyError, match="already holds"):
        save_pool(pool_of(("a", "1 + 1 =", "3")), tmp_path / "sums")
    assert load_pool(tmp_path / "sums").examples[0].response == "2"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": "b", "prompt": "1 +', "not JSON"),
        ('{"id": "b", "prompt": "x"}', "id, prompt, response"),
        ('{"id": "b", "prompt": "x", "response": 4}', "id, prompt, response"),
        ('["b"]', "id, prompt, response"),
        ('{"id": "a", "prompt": "x", "response": "y"}', "id of line 1"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    folder = tmp_path / "by-hand"
    folder.mkdir()
    (folder / EXAMPLES).write_text('{"id": "a", "prompt": "x", "response": "y"}\n' + line + "\n")
    with pytest.raises(DataError, match=says) as caught:
        load_pool(folder)
    assert "line 2 of" in str(caught.value) or "line 1" in str(caught.value)
    assert str(folder / EXAMPLES) in str(caught.value)


def test_a_file_written_by_hand_is_a_pool_and_an_edited_one_is_refused(tmp_path: Path) -> None:
    folder = save_pool(pool_of(("a", "1 + 1 =", "2")), tmp_path / "sums")
    (folder / EXAMPLES).write_text('{"id": "a", "prompt": "1 + 1 =", "response": "3"}\n')
    with pytest.raises(DataError, match="not those that"):
        load_pool(folder)
    (folder / CARD).unlink()
    assert load_pool(folder).examples == (Example("sums", "a", "1 + 1 =", "3"),)


@pytest.mark.parametrize("card", ["{", "[1]", '{"dropped": 3}'])
def test_a_broken_card_is_named(tmp_path: Path, card: str) -> None:
    folder = save_pool(pool_of(("a", "1 + 1 =", "2")), tmp_path / "sums")
    (folder / CARD).write_text(card)
    with pytest.raises(DataError, match=CARD):
        load_pool(folder)


def test_pools_are_found_by_name_and_names_are_unique(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no pools"):
        load_pools(tmp_path)
    with pytest.raises(DataError, match="holds no pool"):
        load_pool(tmp_path)
    save_pool(pool_of(("a", "x", "y"), name="two"), tmp_path / "first")
    save_pool(pool_of(("a", "x", "y"), name="one"), tmp_path / "second")
    assert list(load_pools(tmp_path)) == ["one", "two"]
    with pytest.raises(DataError, match="two pools are called 'one'"):
        by_name([pool_of(name="one"), pool_of(name="one")])


def test_token_ids_are_those_of_prompt_response_and_end() -> None:
    tokenizer = tiny_tokenizer()
    pool = tokenise(pool_of(("a", "[assistant] ", "ok")), tokenizer, 512)
    entry = pool.examples[0]
    assert tokenizer.decode(entry.prompt_ids) == "[assistant] "
    assert tokenizer.decode(entry.response_ids) == "ok<eos>"
    assert entry.tokens == len("[assistant] ") + len("ok") + 1
    assert pool.dropped == {"wrong answer": 3}


def test_what_does_not_fit_is_dropped_and_counted_never_cut() -> None:
    rows = [(f"{length}", "p" * length, "r" * 4) for length in (10, 11, 12)]
    pool = tokenise(pool_of(*rows, ("none", "p", "")), tiny_tokenizer(), 16)
    assert [entry.example_id for entry in pool.examples] == ["10", "11"]
    assert pool.examples[-1].tokens == 16
    assert pool.dropped == {"wrong answer": 3, "longer than 16 tokens": 1, "no response": 1}


def test_without_an_end_token_nothing_can_be_taught() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match="no end token"):
        tokenise(pool_of(("a", "x", "y")), tokenizer, 16)
