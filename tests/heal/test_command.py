"""``regrow heal`` as it is typed, on a tiny pruned checkpoint with pools written by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from regrow.cli.main import main
from regrow.data.pools import Pool, save_pool
from regrow.records.checkpoint import read_facts
from regrow.study.stages.chain import facts_before, step
from tests.conftest import tiny_model, tiny_tokenizer
from tests.heal.samples import sample_pools

NAMES = ("structured_output", "function_calling", "instruction_following", "math", "safety", "general")
BUDGET = ["--tokens", "3k", "--sequences-per-update", "4", "--rank", "4", "--learning-rate", "1e-2"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an unpruned and a pruned checkpoint and six pools."""
    from regrow.models.load import load_model
    from regrow.models.save import save_checkpoint
    from regrow.surgery import remove_blocks

    folder = tmp_path_factory.mktemp("job")
    tiny_model("llama", blocks=5).save_pretrained(folder / "unpruned")
    tiny_tokenizer().save_pretrained(folder / "unpruned")
    loaded = load_model(folder / "unpruned", dtype="float32", device="cpu")
    before = facts_before(loaded)
    remove_blocks(loaded.model, [2])
    cut = {"removed_blocks": (2,), "steps": (step("prune", {}, {"removed_blocks": [2]}),)}
    save_checkpoint(loaded, folder / "pruned", before.model_copy(update=cut))
    for name, pool in sample_pools(6, names=NAMES).items():
        save_pool(Pool(name, pool.examples), folder / "pools" / name)
    return folder


def typed(place: Path, *words: str, output: Path | None = None) -> list[str]:
    where = [] if output is None else ["-o", str(output)]
    return ["heal", str(place / "pruned"), "--pools", str(place / "pools"), *where, "--quiet", *words]


def run(words: list[str], capsys: Any) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_a_heal_writes_checkpoint_adapter_log_and_card(place: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "healed"
    words = typed(place, *BUDGET, "--loss", "response-cross-entropy+0.5*distillation", "--json", output=output)
    code, out, err = run(words, capsys)
    assert code == 0, err
    answer = json.loads(out)
    assert answer["healing_tokens"] >= 3_000
    facts = read_facts(output)
    assert facts is not None
    assert facts.steps[-1].options["loss"] == "response-cross-entropy+0.5*distillation"
    assert (output / "adapter" / "adapter_config.json").is_file()
    lines = [json.loads(line) for line in (output / "healing_log.jsonl").read_text().splitlines()]
    assert set(lines[0]["losses"]) == {"response-cross-entropy", "distillation"}
    card = (output / "README.md").read_text()
    for said in ('"scope": "all-lora"', '"tokens": 3000', "0.5*distillation", "Removed blocks", "tokens_by_pool"):
        assert said in card
    assert str(place) not in card
    assert not output.with_name("healed.healing").exists()
    # Typed again, it is done.
    code, out, _ = run(words, capsys)
    assert code == 0
    assert json.loads(out)["weights_sha256"] == answer["weights_sha256"]


def test_a_dry_run_says_what_the_heal_then_does(place: Path, tmp_path: Path, capsys: Any) -> None:
    for scope in ("all-lora", "last-k"):
        words = [*BUDGET, "--scope", scope, "--last-blocks", "1"]
        code, out, err = run(typed(place, *words, "--dry-run", "--json"), capsys)
        assert code == 0, err
        told = json.loads(out)
        output = tmp_path / scope
        code, _, err = run(typed(place, *words, output=output), capsys)
        assert code == 0, err
        facts = read_facts(output)
        assert facts is not None
        done = facts.steps[-1].outcome
        same = ("updates", "tokens", "sequences", "tokens_by_pool", "cycles_by_pool", "trained_parameters", "precision")
        assert {name: told[name] for name in same} == {name: done[name] for name in same}
        assert told["frozen_prefix"] == done["frozen_prefix"]
        assert (told["frozen_prefix"] == "reused") == (scope == "last-k")
        lines = [json.loads(line) for line in (output / "healing_log.jsonl").read_text().splitlines()]
        assert told["computed_tokens"] == sum(line["computed_tokens"] for line in lines)
        assert told["predicted_seconds"] > 0
        assert 0 < told["predicted_peak_gigabytes"] < 50
        assert told["sampled_prompts_by_pool"] == 0


def test_a_dry_run_in_words(place: Path, capsys: Any) -> None:
    code, out, err = run(typed(place, *BUDGET, "--dry-run"), capsys)
    assert code == 0, err
    for said in ("updates", "cycles", "over quota", "time here", "memory", "math"):
        assert said in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--learning-rate", "inf"], "learning_rate"),
        (["--learning-rate", "nan"], "learning_rate"),
        (["--tokens", "20"], "cannot fill one update of 16 sequences"),
        (["--scope", "all-lra"], "did you mean 'all-lora'"),
        (["--loss", "distilation"], "did you mean 'distillation'"),
        (["--loss", "0*distillation"], "not a positive number"),
        (["--scope", "bridges"], "trains nothing"),
        (["--scope", "last-k", "--last-blocks", "9"], "the model has 4 blocks"),
        (["--scope", "last-k", "--last-blocks", "1", "--loss", "hidden-states"], "trains nothing under the scope"),
        (["--mixture", "unifrom"], "unifrom"),
        (["--base-format", "nf4"], "needs a CUDA"),
        (["--log-to", "clearml"], "unknown tracker"),
        (["--max-cycles", "0.1"], "would be used"),
        (["--top-k", "0", "--loss", "distillation-top-k"], "top_k"),
    ],
)
def test_mistakes_are_refused_with_the_remedy(
    place: Path, tmp_path: Path, capsys: Any, words: list[str], said: str
) -> None:
    given = words if "--tokens" in words else ["--tokens", "3k", *words]
    code, out, err = run(typed(place, *given, output=tmp_path / "healed"), capsys)
    assert code == 2
    assert said in err
    assert "try:" in err
    assert "Traceback" not in err
    assert out == ""
    assert not (tmp_path / "healed").exists()
    assert not list(tmp_path.rglob("update-*"))


def test_no_output_and_an_unpruned_model_are_refused(place: Path, tmp_path: Path, capsys: Any) -> None:
    code, _, err = run(typed(place, "--tokens", "3k"), capsys)
    assert code == 2
    assert "--output" in err
    code, _, err = run(["heal", str(place / "unpruned"), "--tokens", "3k", "-o", str(tmp_path / "x")], capsys)
    assert code == 2
    assert "not a checkpoint of regrow" in err


def test_ctrl_c_ends_with_130_and_the_command_goes_on(place: Path, tmp_path: Path) -> None:
    output = tmp_path / "healed"
    words = typed(place, "--tokens", "60k", "--max-cycles", "500", *BUDGET[2:], output=output)
    command = [sys.executable, "-m", "regrow", *words]
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    log = output.with_name("healed.healing") / "log.jsonl"
    while process.poll() is None and not (log.exists() and log.read_text().count("\n") > 2):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "the same command continues" in err
    assert "Traceback" not in err
    assert list((output.with_name("healed.healing") / "checkpoints").iterdir())


@pytest.mark.slow
def test_the_same_command_under_torchrun(place: Path, tmp_path: Path, capsys: Any) -> None:
    import torch
    from safetensors.torch import load_file

    words = [*BUDGET[:2], "--sequences-per-update", "8", *BUDGET[4:], "--microbatch-tokens", "150"]
    alone, two = tmp_path / "alone", tmp_path / "two"
    code, _, err = run(typed(place, *words, output=alone), capsys)
    assert code == 0, err
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "regrow", *typed(place, *words, "--json", output=two)]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    facts = read_facts(alone)
    assert facts is not None
    assert answer["healing_tokens"] == facts.healing_tokens
    assert answer["steps"][-1]["outcome"]["processes"] == 2
    one, other = (load_file(folder / "model.safetensors") for folder in (alone, two))
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert float((weight.float() - other[name].float()).abs().max()) < 1e-4, name
    assert torch.isfinite(next(iter(other.values()))).all()
    assert not two.with_name("two.healing").exists()


@pytest.mark.slow
def test_a_dry_run_without_pools_asks_a_few_prompts(place: Path, capsys: Any) -> None:
    """The tiny model's tokens are letters, so every prompt of the suite is longer than the window: nothing is kept."""
    code, out, err = run(["heal", str(place / "pruned"), *BUDGET, "--dry-run"], capsys)
    assert code == 2
    assert out == ""
    assert "4 prompts of each are answered" in err
    assert "has no usable example (dropped:" in err
