"""Any task of lm-evaluation-harness measured on a loaded model, its samples kept as items."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regrow.capabilities.cost_meter import CostMeter
from regrow.capabilities.evaluate import Evaluation
from regrow.errors import ConfigError, DataError, did_you_mean
from regrow.models.load import LoadedModel
from regrow.protocols import Watcher
from regrow.records.fingerprint import text_fingerprint
from regrow.records.results import ItemScore, Measurement

INSTALL = 'pip install "regrow[lm-eval]"'

_PREFERRED = ("exact_match", "acc", "prompt_level_strict_acc", "f1", "bleu", "acc_norm")
"""Metrics whose value is an item's score, the first that a task has."""


def run_tasks(
    loaded: LoadedModel,
    names: Sequence[str],
    *,
    items: int | None = None,
    few_shot: int | None = None,
    chat: bool = False,
    batch_size: int = 32,
    seed: int = 0,
    folder: Path | None = None,
    watch: Watcher | None = None,
    journal: Path | None = None,
) -> Evaluation:
    """Return the samples of the harness's tasks as items, each task a capability, and all its metrics as measurements.

    ``items``: the first so many of each task; ``few_shot``: worked examples (None: the task's own number); ``chat``:
    wrap the prompts in the chat template; ``folder``: more task definitions (the harness's YAML files); ``journal``: a
    file in which responses are kept while they come, so that a run that is killed goes on after them. An item's score
    is the first of exact_match, acc, ... that the task has; tasks whose samples have none (perplexity) leave only
    measurements, called TASK.METRIC. Raises ConfigError for a task that the harness does not know, and DataError when
    its data cannot be had.
    """
    manager = known_tasks(names, folder)
    from lm_eval import simple_evaluate

    from regrow.capabilities.harness.adapter import RegrowLM
    from regrow.capabilities.harness.responses import ResponseJournal

    model = RegrowLM(loaded, batch_size=batch_size)
    model.watch = watch
    model.journal = ResponseJournal(journal)
    with model.journal, CostMeter(loaded.model) as meter:
        try:
            found = simple_evaluate(
                model=model,
                tasks=list(names),
                num_fewshot=few_shot,
                limit=items,
                apply_chat_template=chat,
                log_samples=True,
                bootstrap_iters=0,
                task_manager=manager,
                random_seed=seed,
                numpy_random_seed=seed,
                torch_random_seed=seed,
                fewshot_random_seed=seed,
            )
        except (ConnectionError, FileNotFoundError) as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise DataError(
                f"the data of {', '.join(names)} cannot be had: {said}",
                hint="the harness reads its tasks' data from the hub: check the network, or fill its cache first",
            ) from error
        graded = [
            item
            for task, samples in found["samples"].items()
            for number, sample in enumerate(samples)
            if (item := _item(task, number, sample)) is not None
        ]
        cost = meter.cost(prompt_tokens=0, generated_tokens=0)
    return Evaluation(graded, _measurements(found["results"]), cost)


def known_tasks(names: Sequence[str], folder: Path | None = None) -> Any:
    """Return the harness's task manager. Raises ConfigError for a task that it does not know, and DataError when the
    harness is not installed: both before any model is loaded."""
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise DataError(f"tasks of the harness need another package ({error.name})", hint=INSTALL) from error
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL)
    if folder is not None:
        # Reading the harness's own thousands of definitions takes a while; where none of them is asked for it is left.
        manager = TaskManager(include_path=str(folder), include_defaults=False)
        if all(name in manager.all_tasks for name in names):
            return manager
    manager = TaskManager(include_path=str(folder) if folder is not None else None)
    for name in names:
        if name not in manager.all_tasks:
            raise ConfigError(
                f"lm-evaluation-harness knows no task '{name}'", hint=_near(name, list(manager.all_tasks))
            )
    return manager


def _near(name: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
    return did_you_mean(name, near) if near else f"`lm_eval ls tasks` lists its {len(known)} tasks"


def _item(task: str, number: int, sample: Mapping[str, Any]) -> ItemScore | None:
    metrics = {
        name: float(sample[name])
        for name in sample.get("metrics", ())
        if isinstance(sample.get(name), bool | int | float)
    }
    score = next((metrics[name] for name in _PREFERRED if name in metrics), None)
    if score is None or not math.isfinite(score):
        return None
    first = sample["arguments"][0] if isinstance(sample["arguments"], list) else sample["arguments"]["gen_args_0"]
    prompt = first[0] if isinstance(first, list | tuple) else first["arg_0"]
    responses = sample.get("filtered_resps") or []
    answer = responses[0] if responses and isinstance(responses[0], str) else ""
    filtered = str(sample.get("filter", "none"))
    return ItemScore(
        capability=task if filtered in ("none", "") else f"{task}.{filtered}",
        item_id=f"{task}-{sample.get('doc_id', number)}",
        split="test",
        prompt_sha256=text_fingerprint(str(prompt)),
        response=answer,
        score=min(1.0, max(0.0, score)),
        details={"question": str(prompt), "target": str(sample.get("target", "")), **metrics},
    )


def _measurements(results: Mapping[str, Mapping[str, Any]]) -> tuple[Measurement, ...]:
    return tuple(
        Measurement(name=f"{task}.{metric.removesuffix(',none').replace(',', '.')}", value=float(value))
        for task, metrics in results.items()
        for metric, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and "_stderr" not in metric
        if metric not in ("sample_len",)
    )
