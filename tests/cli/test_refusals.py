"""Mistakes at the command line: one sentence, the remedy, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regrow.cli import main as main_module

COMMANDS = ["quickstart", "prune", "rank", "search-study", "repair", "heal", "eval", "plan", "report", "ls", "models"]


def test_help_answers_without_torch(tmp_path: Path) -> None:
    script = """
import contextlib, io, json, sys
from regrow.cli.main import main
found = {}
for command in sys.argv[1:]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            main([command, "--help"])
        except SystemExit as ended:
            code = ended.code
    heavy = sorted({"torch", "transformers", "peft", "altair", "scipy"} & set(sys.modules))
    found[command] = [code or 0, said.getvalue(), heavy]
print(json.dumps(found))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *COMMANDS], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == COMMANDS
    for command, (code, said, heavy) in found.items():
        assert code == 0 and f"Usage: regrow {command}" in said and heavy == [], (command, heavy)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prun", "x"], 'Did you mean "prune"'),
        (["prune"], "requires an argument"),
        (["prune", "m", "-o", "out", "--remov", "2"], "Did you mean --remove"),
        (["prune", "m", "-o", "out", "--seed", "abc"], "'abc' is not a whole number"),
        (["prune", "m", "-o", "out", "--remove", "2", "--blocks", "1"], "exclude each other"),
        (["prune", "m", "-o", "out", "--blocks", "1", "--criterion", "lorp"], "exclude each other"),
        (["rank", "m", "--remove", "2", "--criterion", "all,lorp"], "'all' stands for every criterion"),
        (["rank", "m", "--remove", "2", "--criterion", "lorp,lorp"], "named twice"),
        (["repair", "m", "--method", "all,lra"], "'all' stands for every repair"),
        (["heal", "m", "-o", "out", "--tokens", "3.5"], "not a number of tokens"),
        (["prune", "m", "-o", "out"], "either how many blocks"),
        (["prune", "m", "-o", "out", "--blocks", "x"], "not a list of block indices"),
        (
            ["prune", "m", "-o", "out", "--remove", "2", "--criterion", "block-influense"],
            "did you mean 'block-influence'",
        ),
        (["prune", "./absent", "-o", "out", "--remove", "2"], "no model at"),
        (["heal", "m", "-o", "out"], "budget is missing"),
        (["heal", "m", "-o", "out", "--tokens", "0"], "at least one token"),
        (["heal", "m", "-o", "out", "--tokens", "1X"], "not a number of tokens"),
        (["heal", "m", "-o", "out", "--tokens", "1k"], "not a checkpoint of regrow"),
        (["repair", "m", "-o", "out", "--method", "lar"], "did you mean 'lra'"),
        (["eval", "m", "-o", "out", "--capabilities", "maths"], "did you mean 'math'"),
        (["eval", "m", "-o", "out", "--split", "tset"], "did you mean 'test'"),
        (["eval", "m", "-o", "out", "--items", "0"], "items"),
        (["eval", "m", "-o", "out", "--tasks", "piqa", "--few-shot", "-1"], "Must be >= 0"),
        (["rescore", "out", "--show", "-1"], "Must be >= 0"),
        (["validate-refusals", "labels.jsonl", "--show", "-1"], "Must be >= 0"),
        (["pools", "m", "-o", "out", "--only", ","], "--only names no pool"),
        (["eval", "./absent", "-o", "out"], "no model at"),
        (["eval", "m", "-o", "out", "--capabilities", ","], "capabilities"),
        (["eval", "x" * 300, "-o", "out"], "no model at"),
        (["heal", "m", "-o", "out", "--tokens", "1k", "--learning-rate", "inf"], "learning_rate"),
        (["repair", "m", "-o", "out", "--ridge", "nan"], "--ridge 'nan'"),
        (["prune", "m", "-o", "out", "--remove", "2", "--protect", "x"], "--protect 'x'"),
        (["prune", "m", "-o", "out", "--blocks", "0-999999999"], "no model has"),
        (["report", "absent"], "absent"),
        (["report"], "evaluation"),
        (["ls", "criterions"], "did you mean 'criteria'"),
        (["models", "pull", "smollm"], "did you mean 'smollm2-135m'"),
        (["quickstart", "--tokens", "1X"], "not a number of tokens"),
        (["quickstart", "--items", "0"], "at least 1"),
    ],
)
def test_a_mistake_is_a_sentence(words: list[str], said: str, refused: Any, tmp_path: Path) -> None:
    refused(said, *words)
    left = [entry.name for entry in tmp_path.iterdir() if entry.name != ".cache"]
    assert left in ([], ["out"]) and not (tmp_path / "out" / "result.json").exists()


def test_mistakes_about_a_real_model(tiny_folder: Callable[..., Path], refused: Any, tmp_path: Path) -> None:
    model = tiny_folder("llama")
    refused("cannot remove '6' of 6", "prune", model, "-o", "out", "--remove", "6")
    refused("cannot remove '100%' of 6", "prune", model, "-o", "out", "--remove", "100%")
    refused("no block 6", "prune", model, "-o", "out", "--blocks", "6")
    refused("twice", "prune", model, "-o", "out", "--blocks", "1,1")
    refused("all 6 blocks", "prune", model, "-o", "out", "--blocks", "0-5")
    refused("no cuda", "prune", model, "-o", "out", "--blocks", "1", "--device", "cuda:9")
    refused("unknown dtype", "prune", model, "-o", "out", "--blocks", "1", "--dtype", "int8")
    refused("already holds something", "prune", model, "-o", model, "--blocks", "1")
    refused("name too long", "prune", model, "-o", "o" * 300, "--blocks", "1")
    refused("nan%", "prune", model, "-o", "out", "--remove", "nan%")
    refused("inf", "prune", model, "-o", "out", "--remove", "inf")
    spec = tmp_path / "prune.yaml"
    spec.write_text("remov: 2\n")
    refused("did you mean 'remove'", "prune", model, "-o", "out", "--spec", spec)
    assert not (tmp_path / "out").exists()


def test_prune_writes_a_checkpoint_once(tiny_folder: Callable[..., Path], regrow: Any, refused: Any) -> None:
    words = ["prune", tiny_folder("llama"), "-o", "out", "--blocks", "2,3", "--json"]
    code, out, err = regrow(*words)
    assert code == 0, err
    facts = json.loads(out)
    assert facts["removed_blocks"] == [2, 3] and facts["unpruned_blocks"] == 6
    assert "4 of its 6 Transformer blocks" in Path("out/README.md").read_text()
    code, out, _ = regrow(*words)
    assert code == 0 and json.loads(out)["weights_sha256"] == facts["weights_sha256"]
    refused("already holds another checkpoint", *words[:-3], "--blocks", "2")
    _, out, err = regrow("prune", "out", "-o", "more", "--blocks", "2", "--json")
    assert json.loads(out)["removed_blocks"] == [2, 3, 4], err


def test_ctrl_c_says_that_the_work_can_be_continued(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    model = tiny_folder("llama")
    command = [sys.executable, "-m", "regrow", "eval", str(model), "-o", "out"]
    started = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        # A shell that runs the tests in the background has interrupts ignored, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert started.stderr is not None
    first = started.stderr.readline()
    started.send_signal(signal.SIGINT)
    _, rest = started.communicate()
    assert started.returncode == 130, first + rest
    assert "the same command continues where it stopped" in rest and "Traceback" not in rest
    assert not (tmp_path / "out" / "result.json").exists()


def test_a_reader_that_goes_away_is_no_fault(tmp_path: Path) -> None:
    command = f"set -o pipefail; {sys.executable} -m regrow ls | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0 and done.stdout.strip() == "criteria", done.stderr


def test_an_interrupt_that_a_library_turned_into_its_own_error_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ModuleNotFoundError("Could not import module 'AttentionInterface'") from error

    monkeypatch.setattr(main_module, "app", interrupted)
    with pytest.raises(SystemExit) as caught:
        main_module.main(["eval", "m"])
    assert caught.value.code == 130 and "the same command continues" in capsys.readouterr().err
