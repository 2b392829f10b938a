"""Text sources: bundled samples, files in every state of repair, WikiText-2 and C4 in the upstream layout."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from pathlib import Path

import pytest

from regrow.data.overlap import overlap, word_runs
from regrow.data.text import bundled_calibration_text, bundled_text, open_text, pieces, read_text
from regrow.errors import ConfigError, DataError

SHARED = Path(__file__).parents[3] / "shared" / "data"


def rows(path: Path, *texts: str, field: str = "text") -> Path:
    path.write_text("".join(json.dumps({field: text}) + "\n" for text in texts), "utf-8")
    return path


def test_the_bundled_samples_are_large_and_share_no_passage():
    calibration, evaluation = bundled_calibration_text(), bundled_text()
    assert len(calibration) > 60_000
    assert len(evaluation) > 20_000
    assert overlap(evaluation, calibration, run=8).shared == 0
    assert read_text("bundled") == calibration
    assert read_text("bundled-evaluation") == evaluation


def test_a_text_file_is_read_whole_and_its_pieces_keep_every_paragraph(tmp_path):
    text = "\n\n".join(f"Paragraph {number} " + "word " * 50 for number in range(100))
    path = tmp_path / "book.txt"
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    documents = list(open_text(str(path)).documents())
    assert len(documents) > 3
    assert "\n\n".join(documents) == text
    assert list(pieces("a\n\n \n\nb", characters=1)) == ["a", "b"]


def test_json_lines_may_hold_any_separator_and_be_compressed(tmp_path):
    texts = ["one\u2028two", "three\x85four"]
    path = rows(tmp_path / "a.jsonl", *texts, field="content")
    assert list(open_text(f"{path}#content").documents()) == texts
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert list(open_text(f"{packed}#content").documents()) == texts


def test_parquet_files_are_read(tmp_path):
    import polars

    polars.DataFrame({"text": ["a", "b"]}).write_parquet(tmp_path / "a.parquet")
    assert list(open_text(str(tmp_path / "a.parquet")).documents()) == ["a", "b"]
    with pytest.raises(DataError, match="column 'body'"):
        list(open_text(f"{tmp_path / 'a.parquet'}#body").documents())


def test_a_wrong_encoding_names_the_place_and_the_remedy(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("na\xefve".encode("latin-1"))
    with pytest.raises(DataError, match=r"not UTF-8 text \(byte 2 is 0xef\)") as caught:
        read_text(str(path))
    assert "iconv" in (caught.value.hint or "")
    lines = tmp_path / "latin.jsonl"
    lines.write_bytes(b'{"text": "fine"}\n{"text": "na\xefve"}\n')
    with pytest.raises(DataError, match=r"not UTF-8 text \(line 2\)"):
        read_text(str(lines))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\n{"text": \n', "line 2 of .* is not JSON"),
        ('{"body": "a"}\n', "has no text under 'text' .it has: body."),
        ("[1]\n", "has no text under 'text' .it has: list."),
        ("", "is empty"),
        ('{"text": " "}\n', "is empty"),
    ],
)
def test_a_broken_json_lines_file_is_an_error_that_names_the_line(tmp_path, content, message):
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        read_text(str(path))


def test_a_compressed_file_cut_in_the_middle_is_an_error(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    packed = gzip.compress(b'{"text": "' + bytes(range(97, 123)) * 500 + b'"}\n')
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        read_text(str(path))


def test_unknown_references_name_what_is_allowed(tmp_path):
    with pytest.raises(ConfigError) as caught:
        open_text("wikitext")
    assert "did you mean 'wikitext2'" in (caught.value.hint or "")
    with pytest.raises(DataError, match="there is no text file"):
        open_text(str(tmp_path / "absent.txt"))
    (tmp_path / "a.pdf").write_bytes(b"%PDF")
    with pytest.raises(DataError, match="not a kind of text file"):
        open_text(str(tmp_path / "a.pdf"))
    with pytest.raises(ConfigError, match="not a hub reference"):
        open_text("hub:")


def test_named_sets_are_read_from_a_local_folder_in_both_layouts(tmp_path, monkeypatch):
    folder = tmp_path / "wikitext2_raw"
    folder.mkdir()
    rows(folder / "test.jsonl", "", " = One = \n", "", " = = Part = = \n", " text \n", "", " = Two = \n", " more \n")
    documents = list(open_text("wikitext2:test", data_dir=tmp_path).documents())
    assert documents == [" \n = One = \n \n = = Part = = \n text \n \n", " = Two = \n more \n"]
    monkeypatch.setenv("REGROW_DATA", str(tmp_path))
    assert read_text("wikitext2:test") == "".join(documents)
    with pytest.raises(DataError, match="no split 'train'") as caught:
        open_text("wikitext2")
    assert caught.value.hint == "there are: test"
    shards = tmp_path / "en"
    shards.mkdir()
    for number in (1, 0):
        line = json.dumps({"text": f"document {number}"}) + "\n"
        (shards / f"c4-train.{number:05d}-of-01024.json.gz").write_bytes(gzip.compress(line.encode()))
    assert list(open_text("c4").documents()) == ["document 0", "document 1"]
    with pytest.raises(DataError, match="does not exist"):
        open_text("c4", data_dir=tmp_path / "nowhere")


def test_the_hub_without_its_package_names_the_install_command(monkeypatch):
    monkeypatch.delenv("REGROW_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    for reference in ("wikitext2", "hub:some/data:config:train#content"):
        with pytest.raises(DataError, match="needs the package 'datasets'") as caught:
            next(open_text(reference).documents())
        assert "pip install" in (caught.value.hint or "")


def test_overlap_counts_runs_of_words_whatever_the_punctuation():
    words = [f"w{number}" for number in range(30)]
    text = " ".join(words)
    found = overlap("Prefix; " + ", ".join(words[5:20]).upper(), text)
    assert (found.runs, found.shared) == (4, 3)
    assert found.share == pytest.approx(3 / 4)
    assert "3 of 4 runs of 13 words" in found.sentence("the evaluation text", "the calibration text")
    assert overlap("too short", text).share == 0.0
    assert overlap([" ".join(words[:10]), " ".join(words[10:])], text).shared == len(word_runs(" ".join(words[10:])))


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared benchmark data is not here")
def test_wikitext_is_the_official_raw_file_byte_for_byte():
    text = read_text("wikitext2:test", data_dir=SHARED)
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08"
    assert sum(1 for _ in open_text("wikitext2:test", data_dir=SHARED).documents()) > 50


def test_utf16_is_named_and_bytes_are_no_text(tmp_path):
    file = tmp_path / "wide.txt"
    file.write_text("A text as Windows saves it.", encoding="utf-16")
    with pytest.raises(DataError, match="begins as UTF-16 does") as caught:
        read_text(str(file))
    assert "iconv -f UTF-16 -t UTF-8" in str(caught.value.hint)
    (tmp_path / "zeros.txt").write_bytes("A text".encode("utf-16-le"))
    with pytest.raises(DataError, match="NUL bytes"):
        read_text(str(tmp_path / "zeros.txt"))
