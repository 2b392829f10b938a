"""The state of a run on disk: damaged, cut off by a kill, on a full disk."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from itertools import islice
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from regrow.errors import StudyError
from regrow.heal.checkpoint import FOLDER, Progress, restore_state, save_state
from regrow.heal.loop import heal
from tests.forked import forked, pipe
from tests.heal.samples import sample_model, sample_pools, sample_spec


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


def heal_on_a_full_disk(folder: Path, said: Any) -> None:
    import resource

    def fill(update: int, *_: Any) -> None:
        if update == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    try:
        heal(sample_model(), sample_pools(), sample_spec(checkpoint_every_seconds=1e-9), folder, on_progress=fill)
    except StudyError as error:
        said.send(str(error))
        sys.exit(2)


@pytest.mark.skipif(os.name != "posix", reason="needs a limit on file sizes")
def test_a_full_disk_leaves_the_old_checkpoint_whole(tmp_path: Path) -> None:
    said, saying = pipe()
    process = forked(heal_on_a_full_disk, tmp_path / "run", saying)
    saying.close()
    assert "cannot write" in said.recv()
    process.join()
    assert process.exitcode == 2
    names = sorted(path.name for path in (tmp_path / "run" / FOLDER).iterdir())
    assert names == ["update-000001", "update-000002"]
    assert heal(sample_model(), sample_pools(), sample_spec(), tmp_path / "run").resumed_at == 2


def heal_and_tell(folder: Path, weights: Path, told: Any) -> None:
    """Heal to the end, telling the number of each update, then the tokens of the whole run."""
    torch.set_num_threads(1)
    loaded = sample_model()
    spec = sample_spec(tokens=12_000, checkpoint_every_seconds=1e-9)
    result = heal(loaded, sample_pools(), spec, folder, on_progress=lambda update, *_: told.send(update))
    save_file({name: weight.detach().contiguous() for name, weight in loaded.model.named_parameters()}, weights)
    assert result.tokens >= 12_000


def numbers_from(told: Any) -> Iterator[int]:
    """Yield what is told until the process that tells has gone."""
    try:
        while True:
            yield told.recv()
    except EOFError:
        return


def test_killed_at_any_moment_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    def start(name: str) -> tuple[BaseProcess, Iterator[int]]:
        told, telling = pipe()
        process = forked(heal_and_tell, tmp_path / name, tmp_path / f"{name}.safetensors", telling)
        telling.close()
        return process, numbers_from(told)

    unbroken, told = start("whole")
    updates = list(told)[-1]
    unbroken.join()
    assert unbroken.exitcode == 0
    assert updates > 20
    rng = random.Random(time.time_ns())
    kills = 0
    reached = 0
    while kills < 4 and reached < updates - 3:
        process, told = start("broken")
        # A random number of updates into the session, then a random moment within an update or a save.
        reached = max([reached, *islice(told, rng.randint(1, 6))])
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.join()
        kills += 1
    last, told = start("broken")
    first = next(told)
    assert [*told][-1] == updates
    last.join()
    assert last.exitcode == 0
    assert kills >= 2
    assert first > 1
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
