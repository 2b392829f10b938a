"""The main job on the real SmolLM2-135M, small: every stage, a kill in between, the numbers it must show."""

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

from regrow.records.store import read_evaluation

pytestmark = pytest.mark.slow

WORDS = ["quickstart", "--tokens", "4k", "--items", "8", "--pool-examples", "8", "--json"]
STAGES = ["unpruned", "pruned", "repaired", "healed"]


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "regrow.cli.main", *WORDS, "-o", str(folder)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.fixture(scope="module")
def job(smollm2: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Run the job, kill it once after the first stage, run the same command again; return the folder and its JSON."""
    folder = tmp_path_factory.mktemp("job") / "quick"
    first = start(folder)
    while first.poll() is None and not (folder / "evaluations" / "unpruned" / "result.json").exists():
        time.sleep(0.2)
    time.sleep(3)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = start(folder)
    out, err = second.communicate()
    assert second.returncode == 0, err[-3000:]
    assert "already holds this evaluation" in err
    return folder, json.loads(out)


def test_every_stage_is_measured_on_the_same_items(job: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = job
    prompts = []
    for stage in STAGES:
        record, items = read_evaluation(folder / "evaluations" / stage)
        assert record.stage == stage and record.model.unpruned_blocks == 30
        assert record.model.blocks == (30 if stage == "unpruned" else 28)
        prompts.append([(item.item_id, item.prompt_sha256) for item in items])
    assert all(entry == prompts[0] for entry in prompts)
    names = {item.capability for item in items}
    assert {"structured_output", "function_calling", "instruction_following", "math", "safety", "knowledge"} <= names


def test_the_cut_breaks_what_the_study_says(job: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = job

    def score(stage: str, capability: str) -> float:
        _, items = read_evaluation(folder / "evaluations" / stage)
        found = [item.score for item in items if item.capability == capability]
        return sum(found) / len(found)

    before = score("unpruned", "function_calling") + score("unpruned", "math")
    after = score("pruned", "function_calling") + score("pruned", "math")
    assert before > 0.5
    assert after < 0.5 * before


def test_healing_spent_the_budget_and_left_a_plain_adapter(job: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = job
    facts = json.loads((folder / "checkpoints" / "healed" / "regrow.json").read_text())
    assert 4_000 <= facts["healing_tokens"] <= 4_000 + 6 * 512
    assert [step["kind"] for step in facts["steps"]] == ["prune", "repair", "heal"]
    assert (folder / "checkpoints" / "healed" / "adapter" / "adapter_model.safetensors").exists()
    assert not (folder / "checkpoints" / "healed.healing").exists()


def test_the_report_is_one_file_that_names_no_other(job: tuple[Path, dict[str, Any]]) -> None:
    folder, printed = job
    page = (folder / "report.html").read_text("utf-8")
    assert printed["report"].endswith("report.html")
    assert printed["findings"]["lead"]
    for word in ('src="http', 'href="http', "url(http", "@import"):
        assert word not in page


def test_the_same_command_again_changes_nothing(job: tuple[Path, dict[str, Any]]) -> None:
    folder, printed = job
    again = start(folder)
    out, err = again.communicate()
    assert again.returncode == 0, err[-2000:]
    assert json.loads(out)["rows"] == printed["rows"]


def test_a_plain_load_of_the_repaired_checkpoint_is_refused(job: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = job
    script = """
import sys, traceback
from pathlib import Path
from transformers import AutoModelForCausalLM
places = Path(sys.argv[1])
AutoModelForCausalLM.from_pretrained(places / "pruned")
try:
    AutoModelForCausalLM.from_pretrained(places / "repaired")
    print("loaded")
except Exception:
    print(traceback.format_exc())
import regrow
AutoModelForCausalLM.from_pretrained(places / "repaired")
"""
    command = [sys.executable, "-c", script, str(folder / "checkpoints")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" in done.stdout and "regrow" in done.stdout and "loaded" not in done.stdout.split()
