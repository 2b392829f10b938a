"""``regrow rank`` as its user runs it, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tiny_model, tiny_tokenizer


def gpt2_folder(place: Path, positions: int) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    options = {"n_embd": 32, "n_layer": 4, "n_head": 2, "vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2}
    config = AutoConfig.for_model("gpt2", n_positions=positions, **options)
    AutoModelForCausalLM.from_config(config).save_pretrained(place)
    tiny_tokenizer().save_pretrained(place)
    return place


SHORT = ("--calibration-tokens", "512")


def test_all_criteria_side_by_side(tiny_folder: Any, regrow: Any) -> None:
    from regrow.criteria.registry import CRITERIA

    folder = tiny_folder("llama")
    code, out, err = regrow("rank", folder, "--criterion", "all", "--remove", "2", *SHORT, "--picture", "map.svg")
    assert code == 0, err
    assert all(name in out for name in CRITERIA.names())
    assert "removed blocks (2 of 6, 0-based on 'bundled', fingerprint " in out and "Jaccard" in out
    assert Path("map.svg").read_text("utf-8").startswith("<svg")
    code, out, err = regrow("rank", folder, "--criterion", "lorp,wrp", "--remove", "2", *SHORT, "--json", "-q")
    assert code == 0 and err == ""
    found = json.loads(out)
    assert [answer["criterion"] for answer in found["answers"]] == ["lorp", "wrp"]
    assert found["jaccard"][0][0] == 1.0 and found["warnings"] == []


def test_a_second_ranking_reads_the_kept_record(tiny_folder: Any, regrow: Any) -> None:
    folder = tiny_folder("llama")
    words = ("rank", folder, "--remove", "2", *SHORT, "--json", "-q")
    first = json.loads(regrow(*words)[1])
    [record] = Path(".cache").rglob("similarity-*.json")
    before = record.stat().st_mtime_ns
    again = json.loads(regrow(*words)[1])
    assert again["answers"] == first["answers"] and record.stat().st_mtime_ns == before


def test_all_leaves_out_what_cannot_remove_so_many(tiny_folder: Any, regrow: Any, refused: Any) -> None:
    folder = tiny_folder("llama")
    code, out, err = regrow("rank", folder, "--criterion", "all", "--remove", "5", *SHORT, "--json", "-q")
    assert code == 0, err
    found = json.loads(out)
    names = [answer["criterion"] for answer in found["answers"]]
    assert "lorp" not in names and "block-influence" in names
    assert any(warning.startswith("lorp is left out: cannot remove 5 of 6 blocks") for warning in found["warnings"])
    refused("1 protected, 1 more by lorp itself", "rank", folder, "--criterion", "lorp", "--remove", "5")
    refused("cannot remove 4 of 6", "rank", folder, "--criterion", "all", "--remove", "4", "--protect", "0,1,2")
    refused("no 3 neighbouring", "rank", folder, "--criterion", "angular", "--remove", "3", "--protect", "0,2,4")


def test_evaluation_text_in_the_calibration_set_is_noticed(tiny_folder: Any, regrow: Any) -> None:
    from regrow.data.text import bundled_text

    # The tiny tokenizer has one token a character: a passage of 13 words fits a chunk of 256.
    Path("mine.txt").write_text(bundled_text()[:4000])
    words = ("rank", tiny_folder("llama"), "--remove", "2", "--calibration", "mine.txt", "--calibration-tokens", "2k")
    code, out, err = regrow(*words)
    assert code == 0, err
    assert "the perplexity text and the calibration text 'mine.txt' share text" in " ".join(out.split())
    assert "share text" in json.loads(regrow(*words, "--json", "-q")[1])["warnings"][0]


def test_counts_and_block_lists_that_make_no_sense(tiny_folder: Any, refused: Any, tmp_path: Path) -> None:
    folder = tiny_folder("llama")
    for count in ("nan%", "inf%", "nan", "many"):
        refused(f"'{count}' is not a number of blocks to remove", "rank", folder, "--remove", count)
    refused("cannot remove '6' of 6 blocks", "rank", folder, "--remove", "6")
    refused("--protect 'x' is not a list of block indices", "rank", folder, "--protect", "x")
    refused("--protect '0-999999999' names a block", "rank", folder, "--protect", "0-999999999")
    refused("cannot protect block 9: the model has 6 blocks", "rank", folder, "--protect", "9")
    refused("--blocks '0-999999999' names a block", "prune", folder, "-o", "out", "--blocks", "0-999999999")
    tiny_model("llama", blocks=1).save_pretrained(tmp_path / "one")
    tiny_tokenizer().save_pretrained(tmp_path / "one")
    refused("one block has none to spare", "rank", tmp_path / "one", "--remove", "1")
    refused("unknown criterion 'lorb'", "rank", folder, "--criterion", "lorb")
    refused("no similarity matrix to draw", "rank", folder, "--criterion", "wrp", "--picture", "a.svg")


def test_the_last_block_may_be_protected_by_its_index_from_the_end(tiny_folder: Any, regrow: Any) -> None:
    words = ("rank", tiny_folder("llama"), "--criterion", "reverse-order", "--remove", "2", "--json", "-q")
    assert json.loads(regrow(*words)[1])["answers"][0]["removed"] == [4, 5]
    assert json.loads(regrow(*words, "--protect", "0,-1")[1])["answers"][0]["removed"] == [3, 4]


def test_no_block_need_be_protected(tiny_folder: Any, regrow: Any) -> None:
    words = ("rank", tiny_folder("llama"), "--criterion", "reverse-order", "--remove", "5", "--json", "-q")
    assert json.loads(regrow(*words)[1])["answers"][0]["removed"] == [1, 2, 3, 4, 5]
    assert json.loads(regrow(*words, "--protect", "none")[1])["answers"][0]["protected"] == []


def test_criteria_that_were_not_asked_for_by_name_may_be_left_out(tiny_folder: Any, regrow: Any) -> None:
    code, out, err = regrow("rank", tiny_folder("llama"), "--remove", "5", *SHORT)
    assert code == 0, err
    assert "note: lorp is left out: cannot remove 5 of 6 blocks" in " ".join(out.split())
    assert "fingerprint" in out


def test_a_spec_file_names_what_is_asked(tiny_folder: Any, regrow: Any) -> None:
    folder = tiny_folder("llama")
    Path("prune.yaml").write_text("criterion: magnitude-l1\nremove: 2\nprotect: [0, -1]\n")
    words = ("rank", folder, "--spec", "prune.yaml", "--json", "-q")
    [answer] = json.loads(regrow(*words)[1])["answers"]
    assert answer["criterion"] == "magnitude-l1" and answer["protected"] == [0, 5]
    both = json.loads(regrow(*words, "--criterion", "streamline,random", *SHORT, "--chunk-tokens", "64")[1])["answers"]
    assert [one["criterion"] for one in both] == ["streamline", "random"] and len(both[0]["removed"]) == 2


def test_a_guided_choice_needs_a_capability_that_is_answered_right(tiny_folder: Any, refused: Any) -> None:
    folder = tiny_folder("llama")
    refused("'knowledge' is not answered by text", "rank", folder, "--for", "knowledge")
    refused("does not measure", "rank", folder, "--for", "general")
    refused("answers none of 2 dev items of 'math' right", "rank", folder, "--for", "math", "--for-items", "2")
    refused("--for-items must be at least 1", "rank", folder, "--for", "math", "--for-items", "0")
    cut = ("prune", folder, "-o", "out", "--remove", "2")
    refused("'knowledge' is not answered by text", *cut, "--for", "knowledge")
    refused("answers none of 2 dev items of 'math' right", *cut, "--for", "math", "--for-items", "2")
    refused("--for-items must be at least 1", *cut, "--for", "math", "--for-items", "0")
    refused("--for and --criterion exclude each other", *cut, "--for", "math", "--criterion", "wrp")
    refused("cannot remove '6' of 6", *cut[:-1], "6", "--for", "math", "--protect", "none")
    refused("--for and --blocks exclude each other", *cut[:-2], "--blocks", "3", "--for", "math")
    assert not Path("out").exists()


@pytest.mark.slow
def test_a_cut_guided_by_a_capability_is_made_as_it_was_ranked(regrow: Any) -> None:
    # Only the last five blocks may go: the search is short, and reverse-order would still take another.
    words = ("embedded:smollm2-135m", "--remove", "1", "--protect", "0-24")
    words = (*words, "--for", "safety", "--for-items", "3", "--json", "-q")
    _, guided = json.loads(regrow("rank", *words, "--criterion", "reverse-order")[1])["answers"]
    facts = json.loads(regrow("prune", *words, "-o", "out")[1])
    assert facts["removed_blocks"] == guided["removed"] != [29]
    assert facts["scores"]["criterion"] == guided["criterion"] == "for:safety"
    assert facts["steps"][0]["options"]["guiding_items"] == 3
    code, out, _ = regrow("prune", *words, "-o", "out")
    assert code == 0 and json.loads(out)["removed_blocks"] == facts["removed_blocks"]


def test_texts_that_cannot_be_read(tiny_folder: Any, refused: Any) -> None:
    folder = tiny_folder("llama")
    Path("short.txt").write_text("Too short.")
    refused("has 10 tokens, shorter than one chunk of 256", "rank", folder, "--calibration", "short.txt")
    Path("old.txt").write_bytes("Größe und Maß, immer wieder. ".encode("latin-1") * 40)
    refused("'old.txt' is not UTF-8 text (byte 2 is 0xf6)", "rank", folder, "--calibration", "old.txt")
    Path("old.jsonl").write_bytes(b'{"text": "fine"}\n{"text": "Ma\xdf"}\n')
    refused("'old.jsonl' is not UTF-8 text (line 2)", "rank", folder, "--calibration", "old.jsonl")
    refused("there is no text file 'gone.txt'", "rank", folder, "--calibration", "gone.txt")
    refused("do not fill one chunk of 256", "rank", folder, "--calibration-tokens", "100")
    refused("'taylor' needs a calibration text", "rank", folder, "--criterion", "taylor", "--calibration", "none")


def test_weights_that_are_not_finite_are_named(refused: Any, tmp_path: Path) -> None:
    broken = tiny_model("llama")
    broken.model.layers[3].mlp.down_proj.weight.data[2, 2] = math.nan
    broken.save_pretrained(tmp_path / "broken")
    tiny_tokenizer().save_pretrained(tmp_path / "broken")
    refused("layers.3.mlp.down_proj", "rank", tmp_path / "broken", *SHORT)


def test_chunks_are_no_longer_than_learned_positions(regrow: Any, tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "gpt2", 64)
    code, out, err = regrow("rank", folder, "--criterion", "block-influence,perplexity,taylor", *SHORT)
    assert code == 0, err
    assert "calibration chunks have 64 tokens, the model's context, not 256" in " ".join(err.split())
    assert "removed blocks (2 of 4" in out


def test_prune_looks_at_its_calibration_text_too(regrow: Any, refused: Any, tiny_folder: Any, tmp_path: Path) -> None:
    from regrow.data.text import bundled_text

    Path("mine.txt").write_text(bundled_text()[:4000])
    folder = gpt2_folder(tmp_path / "gpt2", 128)
    words = ("prune", folder, "--remove", "1", "--calibration", "mine.txt", "--calibration-tokens", "2k", "-o", "out")
    code, _, err = regrow(*words)
    assert code == 0, err
    said = " ".join(err.split())
    assert "calibration chunks have 128 tokens" in said
    assert "the perplexity text and the calibration text 'mine.txt' share text" in said
    folder = tiny_folder("llama")
    refused("1 more by lorp itself", "prune", folder, "-o", "new", "--remove", "5", "--criterion", "lorp")
    refused(
        "'taylor' needs a calibration text",
        "prune",
        folder,
        "-o",
        "new",
        "--remove",
        "1",
        "--criterion",
        "taylor",
        "--calibration",
        "none",
    )
    assert not (tmp_path / "new").exists()


def test_what_is_listed_of_a_criterion(regrow: Any) -> None:
    code, out, _ = regrow("ls", "criteria", "--json")
    rows = {row["name"]: row for row in json.loads(out)["criteria"]}
    assert code == 0 and len(rows) == 13
    assert all({"paper", "needs", "cost", "basis", "summary"} <= set(row) for row in rows.values())
    assert "gradients" in rows["taylor"]["needs"] and rows["wrp"]["cost"] == "0 forward passes"
    assert rows["wrp"]["basis"] == "derived from the abstract"
    assert "derived from the abstract" in " ".join(regrow("ls", "criteria")[1].split())


def test_a_whole_number_is_not_rounded(refused: Any) -> None:
    refused("--seed: '1.5' is not a whole number", "rank", "somewhere", "--seed", "1.5")
    refused("--chunk-tokens: 'two' is not a whole number", "prune", "somewhere", "-o", "out", "--chunk-tokens", "two")
