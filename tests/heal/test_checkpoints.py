"""The state of a run on disk: damaged, cut off by a kill, on a full disk."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from regrow.errors import StudyError
from regrow.heal.checkpoint import FOLDER, Progress, restore_state, save_state
from regrow.heal.loop import heal
from tests.heal.samples import sample_model, sample_pools, sample_spec

ROOT = Path(__file__).resolve().parents[2]


def small_state(value: float) -> tuple[dict[str, torch.nn.Parameter], torch.optim.Optimizer]:
    """Return two weights and an optimizer that has taken one step."""
    torch.manual_seed(0)
    weights = {"a": torch.nn.Parameter(torch.full((3, 2), value)), "b": torch.nn.Parameter(torch.full((4,), value))}
    optimizer = torch.optim.AdamW(list(weights.values()), lr=0.1, weight_decay=0.0)
    sum((weight**2).sum() for weight in weights.values()).backward()
    optimizer.step()
    return weights, optimizer


def progress(updates: int, request: str = "one") -> Progress:
    return Progress(
        request=request, updates_done=updates, tokens=10 * updates, wall_seconds=1.5, precision="float32", packing=""
    )


def test_weights_and_moments_come_back(tmp_path: Path) -> None:
    weights, optimizer = small_state(1.0)
    save_state(tmp_path, progress(7), weights, optimizer)
    others, fresh = small_state(5.0)
    found = restore_state(tmp_path, "one", others, fresh)
    assert found.notes == ()
    assert found.progress is not None
    assert (found.progress.updates_done, found.progress.tokens) == (7, 70)
    for name, weight in weights.items():
        assert torch.equal(weight, others[name])
        assert optimizer.state[weight].keys() == fresh.state[others[name]].keys() == {"step", "exp_avg", "exp_avg_sq"}
        for key, value in optimizer.state[weight].items():
            assert torch.equal(value, fresh.state[others[name]][key])


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    weights, optimizer = small_state(1.0)
    for updates in (1, 2, 10, 11):
        save_state(tmp_path, progress(updates), weights, optimizer)
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == ["update-000010", "update-000011"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "no state", "broken state", "no tensors"])
def test_a_damaged_checkpoint_is_passed_over_with_a_word(tmp_path: Path, damage: str) -> None:
    for updates, value in ((3, 1.0), (4, 2.0)):
        save_state(tmp_path, progress(updates), *small_state(value))
    last = tmp_path / FOLDER / "update-000004"
    tensors = last / "state.safetensors"
    if damage == "cut":
        tensors.write_bytes(tensors.read_bytes()[:-20])
    elif damage == "flipped":
        content = bytearray(tensors.read_bytes())
        content[-3] ^= 1
        tensors.write_bytes(bytes(content))
    elif damage == "no state":
        (last / "state.json").unlink()
    elif damage == "broken state":
        (last / "state.json").write_text('{"request": "one"')
    else:
        tensors.unlink()
    weights, optimizer = small_state(9.0)
    found = restore_state(tmp_path, "one", weights, optimizer)
    assert found.progress is not None
    assert found.progress.updates_done == 3
    assert "update-000004' is damaged" in found.notes[0] and "validation error" not in found.notes[0]
    assert found.notes[1:] == ("going back to the checkpoint 'update-000003'",)
    assert torch.equal(weights["a"], small_state(1.0)[0]["a"])
    # The damaged one goes when the run has saved again.
    save_state(tmp_path, progress(4), weights, optimizer)
    assert restore_state(tmp_path, "one", weights, optimizer).notes == ()


def test_two_damaged_checkpoints_mean_a_fresh_start_that_is_told(tmp_path: Path) -> None:
    for updates in (3, 4):
        save_state(tmp_path, progress(updates), *small_state(1.0))
        (tmp_path / FOLDER / f"update-00000{updates}" / "state.json").write_text("")
    weights, optimizer = small_state(9.0)
    before = weights["a"].detach().clone()
    found = restore_state(tmp_path, "one", weights, optimizer)
    assert found.progress is None
    assert len(found.notes) == 3 and found.notes[2] == "no whole checkpoint is left, so the run begins anew"
    assert torch.equal(weights["a"], before)


def test_checkpoints_of_another_request_are_not_used(tmp_path: Path) -> None:
    save_state(tmp_path, progress(3), *small_state(1.0))
    with pytest.raises(StudyError, match="another healing run"):
        restore_state(tmp_path, "two", *small_state(1.0))


def test_a_damaged_last_checkpoint_costs_time_but_changes_nothing(tmp_path: Path) -> None:
    whole = sample_model()
    heal(whole, sample_pools(), sample_spec(), tmp_path / "whole")
    folder = tmp_path / "run"

    def stop(update: int, *_: Any) -> None:
        if update == 5:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        heal(sample_model(), sample_pools(), sample_spec(checkpoint_every_seconds=1e-9), folder, on_progress=stop)
    names = sorted(path.name for path in (folder / FOLDER).iterdir())
    assert names == ["update-000003", "update-000004"]
    (folder / FOLDER / names[-1] / "state.safetensors").write_bytes(b"")
    loaded = sample_model()
    result = heal(loaded, sample_pools(), sample_spec(), folder)
    assert result.resumed_at == 3
    assert "update-000004' is damaged" in result.notes[0]
    for name, weight in whole.model.named_parameters():
        assert torch.equal(weight, loaded.model.get_parameter(name))


FULL_DISK = """
import resource, sys
from pathlib import Path
from regrow.errors import StudyError
from regrow.heal.loop import heal
from tests.heal.samples import sample_model, sample_pools, sample_spec
def fill(update, *_):
    if update == 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    spec = sample_spec(checkpoint_every_seconds=1e-9)
    heal(sample_model(), sample_pools(), spec, Path(sys.argv[1]), on_progress=fill)
except StudyError as error:
    print(error, "|", error.hint)
    sys.exit(2)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs a limit on file sizes")
def test_a_full_disk_leaves_the_old_checkpoint_whole(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "run")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert "cannot write" in done.stdout
    names = sorted(path.name for path in (tmp_path / "run" / FOLDER).iterdir())
    assert names == ["update-000001", "update-000002"]
    assert heal(sample_model(), sample_pools(), sample_spec(), tmp_path / "run").resumed_at == 2


KILLED = """
import sys, torch
from pathlib import Path
from safetensors.torch import save_file
from regrow.heal.loop import heal
from tests.heal.samples import sample_model, sample_pools, sample_spec
torch.set_num_threads(1)
loaded = sample_model()
result = heal(loaded, sample_pools(), sample_spec(tokens=12_000, checkpoint_every_seconds=1e-9), Path(sys.argv[1]),
              on_progress=lambda update, *_: print(update, flush=True))
save_file({name: weight.detach().contiguous() for name, weight in loaded.model.named_parameters()}, sys.argv[2])
print("tokens", result.tokens)
"""


def test_killed_at_any_moment_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    def start(name: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", KILLED, str(tmp_path / name), str(tmp_path / f"{name}.safetensors")]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)

    unbroken = start("whole")
    out, _ = unbroken.communicate()
    assert unbroken.returncode == 0
    updates = int(out.split()[-3])
    assert updates > 20
    rng = random.Random(time.time_ns())
    kills = 0
    reached = 0
    while kills < 4 and reached < updates - 3:
        process = start("broken")
        assert process.stdout is not None
        # A random number of updates into the session, then a random moment within an update or a save.
        for line, _ in zip(process.stdout, range(rng.randint(1, 6)), strict=False):
            reached = int(line)
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.communicate()
        kills += 1
    last = start("broken")
    out, _ = last.communicate()
    assert last.returncode == 0
    assert kills >= 2
    assert int(out.split()[0]) > 1
    whole, broken = (load_file(tmp_path / f"{name}.safetensors") for name in ("whole", "broken"))
    assert whole.keys() == broken.keys()
    for name, weight in whole.items():
        assert torch.equal(weight, broken[name]), name
    logs = [
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("whole", "broken")
    ]
    assert [[line["update"], line["tokens"], line["loss"]] for line in logs[0]] == [
        [line["update"], line["tokens"], line["loss"]] for line in logs[1]
    ]
