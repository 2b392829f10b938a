"""Mistakes at the command line: one sentence, the remedy, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COMMANDS = ["quickstart", "prune", "rank", "search-study", "repair", "heal", "eval", "plan", "report", "ls", "models"]


def regrow(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "120", "REGROW_CACHE": str(cwd / ".cache")}
    command = [sys.executable, "-m", "regrow.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


def refused(done: subprocess.CompletedProcess[str], said: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert said in done.stderr.replace("\n", " "), done.stderr
    assert "try:" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_answers_without_torch(command: str, tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['regrow', *sys.argv[1:]]\n"
        "from regrow.cli.main import main\n"
        "try:\n    main()\nfinally:\n"
        "    print('heavy:', sorted({'torch', 'transformers', 'peft', 'altair', 'scipy'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, command, "--help"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: regrow" in done.stdout and "heavy: []" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prun", "x"], 'Did you mean "prune"'),
        (["prune"], "requires an argument"),
        (["prune", "m", "-o", "out", "--remov", "2"], "Did you mean --remove"),
        (["prune", "m", "-o", "out", "--seed", "abc"], "unable to convert"),
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
def test_a_mistake_is_a_sentence(words: list[str], said: str, tmp_path: Path) -> None:
    refused(regrow(*words, cwd=tmp_path), said)
    left = [entry.name for entry in tmp_path.iterdir() if entry.name != ".cache"]
    assert left in ([], ["out"]) and not (tmp_path / "out" / "result.json").exists()


def test_mistakes_about_a_real_model(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    model = tiny_folder("llama")
    refused(regrow("prune", model, "-o", "out", "--remove", "6", cwd=tmp_path), "cannot remove '6' of 6")
    refused(regrow("prune", model, "-o", "out", "--remove", "100%", cwd=tmp_path), "cannot remove '100%' of 6")
    refused(regrow("prune", model, "-o", "out", "--blocks", "6", cwd=tmp_path), "no block 6")
    refused(regrow("prune", model, "-o", "out", "--blocks", "1,1", cwd=tmp_path), "twice")
    refused(regrow("prune", model, "-o", "out", "--blocks", "0-5", cwd=tmp_path), "all 6 blocks")
    refused(regrow("prune", model, "-o", "out", "--blocks", "1", "--device", "cuda:9", cwd=tmp_path), "no cuda")
    refused(regrow("prune", model, "-o", "out", "--blocks", "1", "--dtype", "int8", cwd=tmp_path), "unknown dtype")
    refused(regrow("prune", model, "-o", model, "--blocks", "1", cwd=tmp_path), "already holds something")
    refused(regrow("prune", model, "-o", "o" * 300, "--blocks", "1", cwd=tmp_path), "name too long")
    refused(regrow("prune", model, "-o", "out", "--remove", "nan%", cwd=tmp_path), "nan%")
    refused(regrow("prune", model, "-o", "out", "--remove", "inf", cwd=tmp_path), "inf")
    spec = tmp_path / "prune.yaml"
    spec.write_text("remov: 2\n")
    refused(regrow("prune", model, "-o", "out", "--spec", spec, cwd=tmp_path), "did you mean 'remove'")
    assert not (tmp_path / "out").exists()


def test_prune_writes_a_checkpoint_once(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    model = tiny_folder("llama")
    words = ["prune", model, "-o", "out", "--blocks", "2,3", "--json"]
    first = regrow(*words, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    facts = json.loads(first.stdout)
    assert facts["removed_blocks"] == [2, 3] and facts["unpruned_blocks"] == 6
    assert "4 of its 6 Transformer blocks" in (tmp_path / "out" / "README.md").read_text()
    again = regrow(*words, cwd=tmp_path)
    assert again.returncode == 0 and json.loads(again.stdout)["weights_sha256"] == facts["weights_sha256"]
    refused(regrow("prune", model, "-o", "out", "--blocks", "2", cwd=tmp_path), "already holds another checkpoint")
    twice = regrow("prune", "out", "-o", "more", "--blocks", "2", "--json", cwd=tmp_path)
    assert json.loads(twice.stdout)["removed_blocks"] == [2, 3, 4], twice.stderr


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
