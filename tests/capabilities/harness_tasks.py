"""lm-evaluation-harness's own definitions of tasks, on the first records of the real data and a given model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILES = {
    "boolq": ("super_glue/boolq/default.yaml", "boolq/validation.jsonl", "validation"),
    "piqa": ("piqa/piqa.yaml", "piqa/validation.jsonl", "validation"),
    "hellaswag": ("hellaswag/hellaswag.yaml", "hellaswag/validation.jsonl", "validation"),
    "winogrande": ("winogrande/default.yaml", "winogrande/validation.jsonl", "validation"),
    "arc_easy": ("arc/arc_easy.yaml", "arc_easy/test.jsonl", "test"),
    "arc_challenge": ("arc/arc_easy.yaml", "arc_challenge/test.jsonl", "test"),
    "openbookqa": ("openbookqa/openbookqa.yaml", "openbookqa/test.jsonl", "test"),
}


def harness_task(name: str, shared: Path, folder: Path, count: int) -> Any:
    """Return the harness's task ``name`` over the first ``count`` records of the shared data."""
    import lm_eval
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    definition, records, split = FILES[name]
    config = dict(load_yaml(Path(lm_eval.__file__).parent / "tasks" / definition, resolve_func=True))
    rows = [json.loads(line) for line in (shared / records).read_text("utf-8").splitlines()[:count]]
    if name == "boolq":
        rows = [{**row, "label": int(row.pop("answer"))} for row in rows]
    if name == "hellaswag":
        # The shared records are what the task's own preparation makes of the hub's, under the names it gives them.
        config.pop("process_docs")
        rows = [{**row, "label": row["gold"]} for row in rows]
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for unused in ("training_split", "validation_split", "test_split", "dataset_name", "tag", "fewshot_split"):
        config.pop(unused, None)
    config |= {
        "task": f"{name}_local",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {split: str(file)}, "cache_dir": str(folder / "cache")},
        f"{split}_split": split,
        "num_fewshot": 0,
    }
    return ConfigurableTask(config=config)


def measure(model: Any, task: Any) -> Any:
    """Return the harness's results of one task, with its samples."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    return simple_evaluate(
        model=model,
        tasks=[task],
        log_samples=True,
        bootstrap_iters=0,
        task_manager=TaskManager(include_defaults=False),
    )


def hf_backend(loaded: Any, batch_size: int = 8) -> Any:
    """Return the harness's own transformers backend around a loaded model."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=batch_size, max_length=None)
