"""``regrow repair`` as its user meets it: the table, the checkpoints, and what is refused in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from regrow.cli.main import main
from regrow.models.load import LoadedModel, load_model
from regrow.models.save import save_checkpoint
from regrow.records.checkpoint import CheckpointFacts, read_facts
from regrow.repair.registry import REPAIRS
from regrow.surgery import remove_blocks
from tests.conftest import tiny_model, tiny_tokenizer

SMALL = ["--calibration-tokens", "2k", "--dtype", "float32", "--device", "cpu", "--quiet"]


def pruned_folder(place: Path, removed: list[int], family: str = "llama") -> Path:
    """Write a tiny unpruned model and its pruned checkpoint; return the latter."""
    model = tiny_model(family)
    model.save_pretrained(place / "whole")
    tiny_tokenizer().save_pretrained(place / "whole")
    loaded = load_model(place / "whole", dtype="float32", device="cpu")
    facts = CheckpointFacts(
        source=str(place / "whole"),
        source_weights_sha256=loaded.weights_sha256,
        unpruned_blocks=6,
        removed_blocks=tuple(removed),
    )
    remove_blocks(loaded.model, removed)
    save_checkpoint(loaded, place / "pruned", facts)
    return place / "pruned"


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pruned_folder(tmp_path_factory.mktemp("cut"), [2, 3])


@pytest.fixture(scope="module")
def cut_at_the_start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pruned_folder(tmp_path_factory.mktemp("start"), [0])


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_several_methods_are_one_table_and_nothing_is_saved(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(cut.parent.rglob("*"))
    code, out, _ = run(capsys, "repair", cut, "--method", "lra,fold,replace-me", "--rank", "4,8", *SMALL)
    assert code == 0
    lines = out.splitlines()
    assert "blocks 2, 3 of 6 removed" in lines[0]
    rows = [line.split() for line in lines if line.startswith(("none", "lra", "fold", "replace-me"))]
    assert [row[0] for row in rows] == ["none", "lra-rank4", "lra-rank8", "fold", "replace-me"]
    assert [row[-1] for row in rows] == ["yes", "no", "no", "yes", "yes"]
    assert [row[-3] for row in rows] == ["0", f"{2 * 4 * 32 + 32}", f"{2 * 8 * 32 + 32}", "0", "0"]
    assert "nothing was saved" in out
    assert sorted(cut.parent.rglob("*")) == before


def test_json_has_every_number(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "repair", cut, "--method", "all", "--json", *SMALL)
    found = json.loads(out)
    assert code == 0 and found["saved"] == {} and found["refused"] == {}
    assert [row["label"] for row in found["rows"]] == REPAIRS.names()
    for row in found["rows"]:
        assert row["perplexity"] > 1 and row["final_error"] >= 0 and row["cuts"][0]["in_model"] >= 0
        assert (row["added_parameters"] == 0) == (row["method"] in ("fold", "replace-me", "replace-me-cosine"))


def test_one_checkpoint_per_method_and_a_second_run_fits_nothing(
    cut: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["repair", cut, "--method", "lra,streamline-block", "-o", tmp_path / "out", *SMALL[:-1]]
    code, _, _ = run(capsys, *words)
    assert code == 0
    lra, block = (read_facts(tmp_path / "out" / name) for name in ("lra", "streamline-block"))
    assert lra is not None and lra.removed_blocks == (2, 3) and lra.bridges[0].parameters == 32 * 32 + 32
    # One block stands where two were: the history must say so, for whoever heals or repairs next.
    assert block is not None and block.removed_blocks == (3,) and block.bridges == ()
    stamp = (tmp_path / "out" / "lra" / "model.safetensors").stat().st_mtime_ns
    code, out, err = run(capsys, *words)
    assert code == 0 and "already this very checkpoint" in err and "lra" in out and "reading" not in err
    assert (tmp_path / "out" / "lra" / "model.safetensors").stat().st_mtime_ns == stamp


def test_a_method_alone_leaves_the_checkpoint_it_leaves_beside_others(
    cut: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, "repair", cut, "--method", "lra", "-o", tmp_path / "alone", "--json", *SMALL)
    said = json.loads(out)
    assert said["output"] == str(tmp_path / "alone") and said["bridges"][0]["method"] == "lra"
    assert said["table"]["rows"][0]["perplexity"] == said["steps"][-1]["outcome"]["perplexity"]
    run(capsys, "repair", cut, "--method", "lra,fold", "-o", tmp_path / "both", *SMALL)
    alone, both = (load_model(tmp_path / name, device="cpu").model for name in ("alone", "both/lra"))
    for mine, theirs in zip(alone.parameters(), both.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_portable_checkpoints_load_where_regrow_cannot_be_imported_and_a_bridge_says_so(
    cut: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    portable = [name for name in REPAIRS.names() if dict(REPAIRS.entry(name).facts)["portable"] == "yes"]
    assert {"fold", "replace-me", "replace-me-cosine", "streamline-block"} <= set(portable)
    code, _, _ = run(capsys, "repair", cut, "--method", ",".join([*portable, "ghost"]), "-o", tmp_path / "out", *SMALL)
    assert code == 0
    script = """
import sys, traceback
from pathlib import Path

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "regrow":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
try:
    import regrow
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("regrow is there")
import torch
from transformers import AutoModelForCausalLM
out, *portable = sys.argv[1:]
for name in portable:
    folder = Path(out) / name
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), report
    torch.save(model(torch.arange(3, 40)[None]).logits, folder / "logits.pt")
try:
    AutoModelForCausalLM.from_pretrained(Path(out) / "ghost")
    print("loaded")
except Exception:
    print(traceback.format_exc())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "out"), *portable], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" in done.stdout and "regrow" in done.stdout and "loaded" not in done.stdout.split()
    for name in portable:
        mine = load_model(tmp_path / "out" / name, dtype="float32", device="cpu").model
        theirs = torch.load(tmp_path / "out" / name / "logits.pt")
        assert torch.equal(theirs, mine(torch.arange(3, 40)[None]).logits), name


def test_repairing_what_was_repaired_is_refused(cut: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # fold leaves no bridge, so only the history tells.
    run(capsys, "repair", cut, "--method", "fold", "-o", tmp_path / "out", *SMALL)
    code, _, err = run(capsys, "repair", tmp_path / "out", "--method", "lra", "-o", tmp_path / "again", *SMALL)
    assert code == 2 and "is repaired already (fold)" in err and not (tmp_path / "again").exists()


def refused(capsys: pytest.CaptureFixture[str], said: str, *words: object) -> None:
    code, out, err = run(capsys, *words)
    assert code == 2 and out == "" and "Traceback" not in err
    assert said in err and "try:" in err, err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "lra,lar"], "did you mean 'lra'"),
        (["--method", ","], "no repair was named"),
        (["--method", "lra,lra"], "named twice"),
        (["--ridge", "inf"], "--ridge 'inf' is not a share"),
        (["--ridge", "nan"], "--ridge 'nan' is not a share"),
        (["--ridge=-1"], "--ridge '-1' is not a share"),
        (["--ridge", "much"], "--ridge 'much' is not a share"),
        (["--rank", "0"], "at least 1"),
        (["--rank", "x"], "not a list of whole numbers"),
        (["--rank", "33"], "cannot have rank 33"),
        (["--rank-weighting", "activations"], "says nothing without a rank"),
        (["--method", "fold", "--rank", "4"], "no use for rank"),
        (["--skip-first=-1"], "skip_first"),
        (["--method", "fold", "--passes", "2"], "no use for passes"),
        (["--calibration-tokens", "0"], "at least one token"),
        (["--method", "replace-me", "--calibration-tokens", "64"], "do not fill one chunk"),
    ],
)
def test_a_mistake_is_a_sentence(cut: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    small = [] if "--calibration-tokens" in words else SMALL[:2]
    refused(capsys, said, "repair", cut, *words, *small, *SMALL[2:])


def test_infinite_numbers_in_a_file_are_refused(cut: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("ridge: .inf\n")
    refused(capsys, "finite", "repair", cut, "--spec", file, *SMALL)


def test_too_few_tokens_say_how_many_are_needed(cut: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "short.txt"
    text.write_text("Nine words make a line that is short. " * 2)
    file = tmp_path / "spec.yaml"
    file.write_text("chunk_tokens: 15\ncalibration_tokens: 30\nridge: 0\n")
    words = ["--spec", file, "--calibration", text, *SMALL[2:]]
    refused(capsys, "15 fitting tokens cannot determine 33 unknowns", "repair", cut, *words)
    file.write_text("chunk_tokens: 15\ncalibration_tokens: 30\n")
    code, out, _ = run(capsys, "repair", cut, *words)
    assert code == 0 and "15 fitting tokens for 33 unknowns" in " ".join(out.split()) and "at least 40" in out


def test_a_cut_at_block_0(cut_at_the_start: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, "no block before it", "repair", cut_at_the_start, "--method", "lra,fold", *SMALL)
    code, out, _ = run(capsys, "repair", cut_at_the_start, "--method", "all", *SMALL)
    assert code == 0 and "fold: left out, the cut begins at block 0" in " ".join(out.split())
    assert "streamline-block: left out" in out and any(line.startswith("lra") for line in out.splitlines())


def test_a_dead_stream_is_fitted_with_a_remark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Half of the channels never move, so X'X is singular.
    model: Any = tiny_model("llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 16:] = 0
        for block in model.model.layers:
            block.self_attn.o_proj.weight[16:] = 0
            block.mlp.down_proj.weight[16:] = 0
    loaded = LoadedModel(model, tiny_tokenizer(), "tiny")
    model.save_pretrained(tmp_path / "whole")
    tiny_tokenizer().save_pretrained(tmp_path / "whole")
    remove_blocks(model, [2])
    facts = CheckpointFacts(source=str(tmp_path / "whole"), unpruned_blocks=6, removed_blocks=(2,))
    save_checkpoint(loaded, tmp_path / "pruned", facts)
    code, out, _ = run(capsys, "repair", tmp_path / "pruned", "--ridge", "0", *SMALL)
    assert code == 0 and "spans only 16 of 32 directions" in " ".join(out.split())


def test_the_list_says_what_each_repair_needs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "ls", "repairs", "--json")
    rows = {row["name"]: row for row in json.loads(out)["repairs"]}
    assert code == 0 and list(rows) == REPAIRS.names()
    for row in rows.values():
        assert row["paper"] and row["portable"] in ("yes", "no") and row["trains"] in ("yes", "no")
    assert "without a norm" in rows["fold"]["needs"] and "two removed blocks" in rows["streamline-block"]["needs"]


def test_several_repairs_do_not_go_into_a_folder_of_something_else(
    cut: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    words = ("repair", cut, "--method", "lra,ghost", *SMALL, "-o")
    code, _, err = run(capsys, *words, tmp_path / "used")
    assert code == 2 and "already holds something else" in err and "notes.txt" in err
    code, _, err = run(capsys, *words, cut.parent / "whole")
    assert code == 2 and sorted(path.name for path in (tmp_path / "used").iterdir()) == ["notes.txt"]
    assert run(capsys, *words, tmp_path / "new")[0] == 0
    # The same folder takes further repairs of the same cut.
    assert run(capsys, "repair", cut, "--method", "fold,ghost", *SMALL, "-o", tmp_path / "new")[0] == 0
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"lra", "ghost", "fold"}


def test_a_repair_that_nothing_could_judge_is_refused(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--calibration-tokens", "300", *SMALL[2:]]
    code, out, err = run(capsys, "repair", cut, "--method", "lra", *few)
    assert code == 2 and out == "" and "1 sequence of 256 tokens" in err and "--chunk-tokens" in err
    code, out, _ = run(capsys, "repair", cut, "--method", "lra", "--chunk-tokens", "64", *few)
    assert code == 0 and "-" not in out.splitlines()[-2].split()[1:3]


def test_a_block_put_back_costs_what_a_block_costs(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "repair", cut, "--method", "streamline-block", "--json", *SMALL)
    (row,) = json.loads(out)["rows"]
    block = tiny_model("llama").model.layers[0]
    assert code == 0 and row["flops_per_token"] == 2 * sum(w.numel() for w in block.parameters() if w.dim() > 1)
