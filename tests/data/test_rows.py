"""Records of data sets: every layout, faults that name the place, what to type where nothing is to be had."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import polars
import polars as pl
import pytest
from huggingface_hub import constants

from regrow.data.catalogue import CATALOGUE, data_set
from regrow.data.missing import MissingDataSet, read_all
from regrow.data.rows import local_files, need, read_part, read_rows
from regrow.errors import ConfigError, DataError

ROWS = [{"question": "1 + 1?\u2028", "answer": "#### 2"}, {"question": "2 + 2?", "answer": "#### 4"}]


def lines(rows: list[dict[str, str]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["test.jsonl", "main/test-00000-of-00001.parquet"])
@pytest.mark.parametrize("place", ["gsm8k", "openai/gsm8k", "openai--gsm8k"])
def test_both_layouts_are_read_from_any_of_the_names(name: str, place: str, tmp_path: Path) -> None:
    file = tmp_path / place / name
    file.parent.mkdir(parents=True)
    if file.suffix == ".parquet":
        polars.DataFrame(ROWS).write_parquet(file)
    else:
        file.write_text(lines(ROWS), encoding="utf-8")
    read = read_part(data_set("gsm8k"), "test", tmp_path)
    assert read.rows == ROWS and read.licence == "MIT" and name.split("/")[-1] in read.origin
    assert read.fingerprint == read_part(data_set("gsm8k"), "test", tmp_path).fingerprint


def test_the_folder_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "test.jsonl").write_text(lines(ROWS), encoding="utf-8")
    monkeypatch.setenv("REGROW_DATA", str(tmp_path))
    assert read_part(data_set("gsm8k"), "test").rows == ROWS


def test_one_json_list_csv_and_compressed_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS), encoding="utf-8")
    (tmp_path / "b.csv").write_text('question,answer\n"1 + 1?\u2028",#### 2\n2 + 2?,#### 4\n', encoding="utf-8")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines(ROWS).encode()))
    assert [read_rows(tmp_path / name) for name in ("a.json", "b.csv", "c.jsonl.gz")] == [ROWS] * 3


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", lines(ROWS).encode()[:-9], "line 2 of .* cut in the middle"),
        ("a.jsonl", b'{"a": 1\n{"a": 2}\n', "line 1 of"),
        ("a.jsonl", b"3\n", "line 1 of .* is int, not an object"),
        ("a.json", b'[{"a": 1}, {"a"', "cut in the middle"),
        ("a.jsonl", b'{"a": "\xff"}\n', "not UTF-8"),
        ("a.jsonl.gz", gzip.compress(lines(ROWS).encode(), mtime=0)[:-12], "cannot be read"),
        ("a.parquet", b"PAR1 not really", "cannot be read"),
        ("a.jsonl", b"[" * 100_000, "not JSON"),
    ],
)
def test_a_broken_file_names_the_place_and_the_remedy(name: str, content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        read_rows(tmp_path / name, again="hf download X")
    assert "hf download X" in str(caught.value.hint)


def test_a_folder_without_the_part_names_the_command_that_fetches_it(tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    with pytest.raises(DataError, match="holds no 'test' of openai/gsm8k") as caught:
        read_part(data_set("gsm8k"), "test", tmp_path)
    assert f"hf download openai/gsm8k --repo-type dataset --revision {data_set('gsm8k').revision}" in str(
        caught.value.hint
    )
    assert local_files(data_set("mmlu"), "test", tmp_path) == []


def test_without_folder_and_network_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("REGROW_DATA", raising=False)
    with pytest.raises(DataError, match="cannot be fetched from the hub") as caught:
        read_part(data_set("xstest"), "train")
    assert "hf download Paul/XSTest" in str(caught.value.hint)


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t"), ("a.csv", "\t")])
def test_tables_are_read_by_what_stands_between_their_columns(name: str, mark: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f'response{mark}refused\n"One, two; three\tfour"{mark}no\n')
    assert read_rows(tmp_path / name) == [{"response": "One, two; three\tfour", "refused": "no"}]


def test_a_part_of_the_files_is_not_taken_for_all(tmp_path: Path) -> None:
    place = tmp_path / "gsm8k" / "main"
    place.mkdir(parents=True)
    row = pl.DataFrame([{"question": "1 + 1?", "answer": "#### 2"}])
    row.write_parquet(place / "test-00001-of-00002.parquet")
    with pytest.raises(DataError, match="holds 1 of the 2 files") as caught:
        read_part(data_set("gsm8k"), "test", tmp_path)
    assert "hf download openai/gsm8k" in str(caught.value.hint)
    row.write_parquet(place / "test-00000-of-00002.parquet")
    assert len(read_part(data_set("gsm8k"), "test", tmp_path).rows) == 2


def test_a_cache_without_the_part_is_a_missing_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gsm8k = data_set("gsm8k")
    snapshot = tmp_path / "datasets--openai--gsm8k" / "snapshots" / gsm8k.revision / "main"
    snapshot.mkdir(parents=True)
    pl.DataFrame([{"question": "1 + 1?", "answer": "#### 2"}]).write_parquet(snapshot / "train-00000-of-00001.parquet")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("REGROW_DATA", raising=False)
    assert len(read_part(gsm8k, "train").rows) == 1
    with pytest.raises(MissingDataSet, match="only partly in the hub's cache"):
        read_part(gsm8k, "test")


def test_the_files_that_belong_together_are_fetched_together() -> None:
    assert data_set("bfcl").fetch_command("simple").count("--include") == 4
    assert data_set("gsm8k").fetch_command("test").count("--include") == 1


def test_all_that_is_missing_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "test.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    parts = [("gsm8k", "test"), ("xstest", "train"), ("mmlu", "test"), ("xstest", "train")]

    def readers(*names: str) -> list[tuple[str, Any]]:
        return [(name, partial(read_part, data_set(name), part, tmp_path)) for name, part in parts if name in names]

    with pytest.raises(DataError, match="2 data sets are missing: xstest, mmlu") as caught:
        read_all(readers("gsm8k", "xstest", "mmlu"))
    hint = str(caught.value.hint)
    assert hint.count("hf download") == 2 and "hf download cais/mmlu" in hint and "--capabilities" in hint
    with pytest.raises(DataError, match="the data set 'mmlu' is not in"):
        read_all(readers("gsm8k", "mmlu"))
    with pytest.raises(DataError, match="2 data sets are missing: mmlu, xstest"):
        read_all([*readers("mmlu"), ("both", lambda: read_all(readers("xstest", "mmlu")))])
    assert len(read_all(readers("gsm8k"))["gsm8k"].rows) == 1
    (tmp_path / "gsm8k" / "test.jsonl").write_text('{"question')
    with pytest.raises(DataError, match="cut in the middle"):
        read_all(readers("xstest", "gsm8k"))


def test_a_wrong_folder_and_an_unknown_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_part(data_set("gsm8k"), "test", tmp_path / "nowhere")
    with pytest.raises(ConfigError) as caught:
        data_set("gsm9k")
    assert "did you mean 'gsm8k'" in str(caught.value.hint)


def test_every_hub_set_is_pinned_to_a_commit_and_has_a_licence() -> None:
    for each in CATALOGUE.values():
        assert each.licence and all(each.parts.values())
        if each.hub_id:
            assert len(each.revision) == 40 and int(each.revision, 16)
            assert each.hub_id in each.fetch_command(next(iter(each.parts)))


@pytest.mark.shared
def test_every_set_of_the_shared_data_is_found(shared_data: Path) -> None:
    there = {each.name for each in CATALOGUE.values() if (shared_data / each.name).is_dir()}
    assert there == set(CATALOGUE)
    sizes = {name: len(read_part(data_set(name), part, shared_data).rows) for name, part in [
        ("gsm8k", "test"), ("mmlu", "test"), ("ifeval", "train"), ("xstest", "train"), ("bfcl", "multiple"),
        ("boolq", "validation"), ("arc_challenge", "test"), ("wikitext2_raw", "validation"),
    ]}  # fmt: skip
    assert sizes == {
        "gsm8k": 1319, "mmlu": 1500, "ifeval": 541, "xstest": 450, "bfcl": 200, "boolq": 1500, "arc_challenge": 1172,
        "wikitext2_raw": 3760,
    }  # fmt: skip


@pytest.mark.parametrize("value", [None, ""])
def test_a_record_without_a_field_is_named(value: object) -> None:
    with pytest.raises(DataError, match="record 3 has no 'answer'"):
        need({"question": "?", "answer": value}, ("question", "answer"), "record 3")
    need({"question": "?", "answer": 0}, ("question", "answer"), "record 3")
