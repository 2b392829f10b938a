"""Measure a model on tasks of lm-evaluation-harness: its seven zero-shot sets and WikiText by regrow itself, from local
data where there is some, any other task through the harness."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

from regrow.capabilities.evaluate import Evaluation
from regrow.capabilities.evaluate import evaluate as measure
from regrow.capabilities.rates import task_measurements
from regrow.capabilities.wikitext import article_perplexity
from regrow.capabilities.zero_shot import TASKS, capabilities
from regrow.data.chat import chat_format_of
from regrow.data.missing import read_all
from regrow.data.text import open_text
from regrow.errors import ConfigError
from regrow.models.families import blocks_of
from regrow.models.identity import model_identity
from regrow.models.load import LoadedModel, load_model
from regrow.protocols import Watcher
from regrow.records.fingerprint import file_sha256, fingerprint
from regrow.records.results import Cost, ItemScore, Measurement, RunRecord, provenance
from regrow.records.specs import EvalSpec
from regrow.records.store import PARTS, RESULT, RunFolder
from regrow.study.stages.chain import found_evaluation
from regrow.study.stages.evaluate import card_facts, items_content, stage_of

WIKITEXT = "wikitext"


def _content_of(folder: Path | None) -> str:
    """Return the hash of the task definitions in a folder, "" without one."""
    if folder is None:
        return ""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return fingerprint([[str(file.relative_to(folder)), file_sha256(file)] for file in files])


def evaluate_tasks(
    source: str,
    spec: EvalSpec,
    output: Path,
    *,
    watch: Watcher,
    label: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    data: Path | None = None,
    few_shot: int | None = None,
    chat: bool = False,
    definitions: Path | None = None,
) -> tuple[RunRecord, list[ItemScore]]:
    """Return the record and the items of the tasks named in ``spec.capabilities``, measured now or found in
    ``output``.

    Zero-shot and in plain text, the sets of zero_shot.TASKS and ``wikitext`` are measured by regrow on ``data`` (a
    local folder; default REGROW_DATA, else the hub); everything else by lm-evaluation-harness on its own data, with
    regrow's model. Numbers are measurements called TASK.METRIC; ``definitions`` is a folder of more task definitions.
    """
    names = list(dict.fromkeys(spec.capabilities or ()))
    if not names:
        raise ConfigError("no task was named", hint="--tasks boolq,piqa,wikitext")
    plain = few_shot in (None, 0) and not chat
    own = [name for name in names if plain and (name in TASKS or name == WIKITEXT)]
    others = [name for name in names if name not in own]
    folder = RunFolder(output)
    if others and not (output / RESULT).exists():
        # Before a model is hashed or loaded: a name with a typing error is found out in seconds.
        watch.begin("looking up the tasks of lm-evaluation-harness")
        from regrow.capabilities.harness.tasks import known_tasks

        known_tasks(others, definitions)
        watch.end(", ".join(others))
    sets = capabilities(data, own)
    content = items_content(read_all((each.name, partial(each.items, "test")) for each in sets))
    articles = list(open_text("wikitext2:test", data_dir=data).documents()) if WIKITEXT in own else []
    watch.begin(f"reading {source}")
    asked = {
        "model_sha256": model_identity(source).sha256,
        "spec": spec.model_dump(mode="json"),
        "label": label,
        "dtype": dtype,
        "few_shot": few_shot,
        "chat": chat,
        "items_sha256": fingerprint([content, articles]),
        "definitions_sha256": _content_of(definitions),
    }
    watch.end()
    there = found_evaluation(folder, asked, watch)
    if there is not None:
        return there
    watch.begin(f"loading {source}")
    loaded = load_model(source, dtype=dtype, device=device)
    watch.end(f"{len(blocks_of(loaded.model))} blocks")
    with folder.claimed("evaluation", asked) as finished:
        # By another process, while the model was loaded.
        there = found_evaluation(folder, asked, watch) if finished else None
        if there is not None:
            return there
        parts: list[Evaluation] = []
        if sets:
            measured = measure(
                loaded,
                sets,
                spec.model_copy(update={"perplexity": False, "split": "test"}),
                watch=watch,
                resume_from=folder.read_partial(),
                on_finished=folder.write_partial,
                on_part=folder.write_partial,
            )
            numbers = task_measurements(sets, measured.items)
            parts.append(Evaluation(measured.items, numbers, measured.cost))
        if articles:
            parts.append(_wikitext(loaded, articles[: spec.items], watch))
        if others:
            from regrow.capabilities.harness.tasks import run_tasks

            parts.append(
                run_tasks(
                    loaded,
                    others,
                    items=spec.items,
                    few_shot=few_shot,
                    chat=chat,
                    batch_size=spec.batch_size,
                    seed=spec.seed,
                    folder=definitions,
                    watch=watch,
                    journal=folder.path / PARTS / "harness.journal",
                )
            )
        items = [item for part in parts for item in part.items]
        record = RunRecord(
            label=label or stage_of(loaded),
            stage=stage_of(loaded),
            suite=spec.suite,
            split="test",
            seed=spec.seed,
            model=card_facts(loaded),
            measurements=tuple(number for part in parts for number in part.measurements),
            cost=_sum([part.cost for part in parts]),
            spec_fingerprint=fingerprint(spec.model_dump(mode="json")),
            provenance=provenance(
                {**asked, "source": source, "chat_format": chat_format_of(loaded.tokenizer)}, seed=spec.seed
            ),
        )
        folder.write_evaluation(record, items)
    return record, items


def _wikitext(loaded: LoadedModel, articles: list[str], watch: Watcher) -> Evaluation:
    watch.begin("reading WikiText-2", len(articles), "articles")
    found = article_perplexity(loaded, articles, on_progress=lambda done, _: watch.advance(done))
    watch.end()
    numbers = {
        "word_perplexity": found.per_word,
        "byte_perplexity": found.per_byte,
        "bits_per_byte": found.bits_per_byte,
        "token_perplexity": found.per_token,
    }
    return Evaluation(
        [], tuple(Measurement(name=f"{WIKITEXT}.{name}", value=value) for name, value in numbers.items()), Cost()
    )


def _sum(costs: list[Cost]) -> Cost:
    def total(name: str) -> float:
        values = [getattr(cost, name) for cost in costs]
        known = [value for value in values if not math.isnan(value)]
        return sum(known) if known else math.nan

    return Cost(
        wall_seconds=total("wall_seconds"),
        cpu_seconds=total("cpu_seconds"),
        prompt_tokens=int(total("prompt_tokens")),
        generated_tokens=int(total("generated_tokens")),
        flops=total("flops"),
        peak_memory_bytes=max(cost.peak_memory_bytes for cost in costs),
    )
