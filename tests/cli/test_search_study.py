"""``regrow search-study`` as its user runs it: the grid, the folder that goes on, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_rank import gpt2_folder

SMALL = ("--samples", "2,3", "--chunk-tokens", "32", "--seeds", "0,1", "--remove", "2", "--common-tokens", "512")
SEARCHES = ("--search", "one-shot,random")


def test_the_study_prints_what_it_found(tiny_folder: Any, regrow: Any) -> None:
    words = ("search-study", tiny_folder("llama"), "-o", "study", *SMALL, *SEARCHES, "--items", "0")
    code, out, err = regrow(*words)
    assert code == 0, err
    assert "2 of 6 blocks" in out and "8 runs" in out and "subset overlap" in out
    assert "For perplexity," in " ".join(out.split()) or "All runs have the same perplexity" in " ".join(out.split())
    assert "[8/8] random on 'bundled 3x32', seed 1" in err
    study = json.loads(regrow(*words, "--json", "-q")[1])
    assert len(study["runs"]) == 8 and study["finding"] and study["blocks"] == 6
    assert {share["factor"] for share in study["shares"]} == {
        "calibration",
        "search",
        "calibration x search",
        "seed",
    }
    assert all(run["block_forwards"] <= 36 + 8 * 6 for run in study["runs"])


def test_a_stopped_study_goes_on(tiny_folder: Any, regrow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import regrow.criteria.search_study as library

    words = ("search-study", tiny_folder("llama"), *SMALL, *SEARCHES, "--items", "0", "--json")
    whole = json.loads(regrow(*words, "-o", "whole", "-q")[1])
    asked: list[str] = []
    search = library.search

    def until_the_fourth(objective: Any, name: str, **options: Any) -> Any:
        asked.append(name)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return search(objective, name, **options)

    monkeypatch.setattr(library, "search", until_the_fourth)
    code, out, err = regrow(*words, "-o", "study")
    assert code == 130 and out == "" and "continues" in err
    assert len(list(Path("study/runs").glob("*.json"))) == 3 and not Path("study/result.json").exists()
    broken = sorted(Path("study/runs").glob("*.json"))[0]
    broken.write_text("{")
    code, out, err = regrow(*words, "-o", "study")
    assert code == 0, err
    assert "2 runs were already done" in err
    assert len(asked) == 4 + 6
    again = json.loads(out)
    for key in ("shares", "overlap", "finding", "unpruned"):
        assert again[key] == whole[key]
    assert [run["removed"] for run in again["runs"]] == [run["removed"] for run in whole["runs"]]


def test_a_spec_file_and_accuracy(tiny_folder: Any, regrow: Any) -> None:
    Path("study.yaml").write_text(
        "remove: 2\ntexts: bundled\nsamples: [2, 3]\nchunk_tokens: 32\nsearches: [one-shot]\nseeds: 0,1\n"
        "common_tokens: 512\nitems: 2\ncapabilities: knowledge\n"
    )
    code, out, err = regrow("search-study", tiny_folder("llama"), "-o", "study", "--spec", "study.yaml", "--json")
    assert code == 0, err
    study = json.loads(out)
    assert all(0 <= run["outcomes"]["accuracy"] <= 1 for run in study["runs"])
    assert set(study["unpruned"]) == {"perplexity", "accuracy"}
    cuts = {"cut-" + "-".join(map(str, run["removed"])) for run in study["runs"]}
    assert {entry.name for entry in Path("study/cuts").iterdir()} == cuts | {"unpruned"}
    assert "the search algorithm was not varied" in study["finding"] or "All runs" in study["finding"]


def test_a_shared_comparison_text_is_noticed(tiny_folder: Any, regrow: Any) -> None:
    options = ("--samples", "2,3", "--chunk-tokens", "256", "--search", "one-shot", "--seeds", "0", "--items", "0")
    words = ("search-study", tiny_folder("llama"), "-o", "study", *options, "--text", "bundled-evaluation")
    code, out, err = regrow(*words, "--remove", "2", "--common-tokens", "20k")
    assert code == 0, err
    assert "the comparison text 'bundled-evaluation' and the calibration text" in " ".join(out.split())


def test_healing_examples_are_a_calibration_text(tiny_folder: Any, regrow: Any, tmp_path: Path) -> None:
    from regrow.capabilities.suites import healing_suite
    from regrow.data.pools import Example, Pool, save_pool

    for number, capability in enumerate(healing_suite("mini")):
        name = capability.name
        examples = [Example(name, f"{i}", f"Question {number} {i}?", "word " * (5 + i)) for i in range(6)]
        save_pool(Pool(name, tuple(examples)), tmp_path / "pools" / name)
    options = ("--samples", "2", "--chunk-tokens", "32", "--search", "one-shot", "--seeds", "0,1", "--items", "0")
    words = ("search-study", tiny_folder("llama"), "-o", "study", "--text", "bundled,healing-pools", *options)
    code, out, err = regrow(*words, "--pools", "pools", "--remove", "2", "--common-tokens", "512", "--json")
    assert code == 0, err
    runs = [run for run in json.loads(out)["runs"] if run["calibration"] == "healing-pools 2x32"]
    assert len(runs) == 2 and runs[0]["loss"] != runs[1]["loss"]


def test_grids_that_cannot_be_run(tiny_folder: Any, refused: Any, tmp_path: Path) -> None:
    folder = tiny_folder("llama")
    words = ("search-study", folder, "-o", "study")
    refused("unknown search algorithm 'gready'", *words, "--search", "gready,random")
    refused("at least two calibration texts or two searches", *words, "--samples", "4", "--search", "greedy")
    refused("the seed '1' is named twice", *words, "--seeds", "1,1")
    refused("--samples 'x' is not a list of whole numbers", *words, "--samples", "x")
    refused("chunks of 600 tokens do not fit the model's context of 512", *words, "--chunk-tokens", "600")
    refused("cannot remove '6' of 6", *words, "--remove", "6")
    refused("unknown text 'bundeld'", *words, "--text", "bundeld")
    refused("unknown capability 'maths'", *words, "--capabilities", "maths")
    refused("budget", *words, "--budget", "0")
    refused("budget", *words, "--budget", "nan")
    Path("study.yaml").write_text("serches: greedy\n")
    refused("did you mean 'searches'", *words, "--spec", "study.yaml")
    refused("cannot protect block 7", *words, "--protect", "7")
    Path("short.txt").write_text("Too short.")
    refused("shorter than one chunk of 128", *words, "--text", "bundled,short.txt")
    assert not (tmp_path / "study").exists()
    refused("chunks of 128 tokens", "search-study", gpt2_folder(tmp_path / "gpt2", 64), "-o", "s", "--remove", "1")


def test_the_studies_that_come_with_regrow_are_grids_that_can_be_run() -> None:
    from regrow.criteria.search_study import check_grid
    from regrow.records.search_study import SearchStudySpec
    from regrow.records.specs import build, read_yaml
    from regrow.studies import SEARCH, shipped

    assert "calibration-or-search" in shipped(SEARCH)
    for file in shipped(SEARCH).values():
        spec = build(SearchStudySpec, read_yaml(file))
        check_grid(spec.configurations(), spec.searches, spec.seeds, spec.budget or 1.0)
