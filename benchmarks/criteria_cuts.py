"""What every criterion removes from one model at several counts, what that leaves, and how far the criteria agree.

Calibration: the bundled calibration text, or ``--calibration``. What is left is measured as ``regrow eval`` does it:
perplexity on the bundled evaluation text and the six capabilities of the mini suite (``--items`` dev items each).
Criteria that choose the same cut share one measurement. The last table is about WRP, which runs no forward pass and is
derived from an abstract: overlap of its cut, for each of its similarities, with those of the criteria that read
activations.

Every answer and every measurement is kept in the folder ``--output`` as soon as it is there; the same command goes on
after a stop, and ``--stop-after SECONDS`` begins nothing new after that time. The tables are printed when all is there.

Run: python benchmarks/criteria_cuts.py --output cuts [--model embedded:smollm2-135m] [--remove 2,4,7] [--items 12]
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEMORY = "oracle.json"
STOPPED = 75
UNRELATED = ("output", "stop_after", "so_far", "criteria", "device")
"""Options that change nothing of what is measured."""
SIMILARITIES = ("gram", "cosine", "subspace")
ACTIVATION_BASED = ("block-influence", "angular", "streamline", "lorp", "perplexity", "greedy-perplexity", "taylor")
SHORT = {
    "structured_output": "JSON",
    "function_calling": "calls",
    "instruction_following": "instr.",
    "math": "math",
    "safety": "safety",
    "knowledge": "know.",
}


class Stopped(Exception):
    """The time of this call is used up."""


class Clock:
    """Raises :class:`Stopped` when new work would begin too late."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._until:
            raise Stopped


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Answers:
    """Answers of criteria by count; one similarity record and one oracle serve all that can use them."""

    def __init__(self, loaded, options, counts: list[int], clock: Clock) -> None:
        from regrow.data.calibration import load_calibration

        self._loaded, self._counts, self._clock = loaded, counts, clock
        self._output: Path = options.output
        self._calibration = load_calibration(
            options.calibration, loaded.tokenizer, tokens=options.tokens, chunk_tokens=256
        )
        self._oracle: Any = None

    def of(self, name: str) -> dict[int, Any]:
        """Return count -> answer of one criterion, found in the folder or computed and kept there."""
        from regrow.records.atomic import write_text
        from regrow.records.results import LayerScores

        folder = self._output / "answers"
        files = {count: folder / f"{name.replace('/', '-')}-{count}.json" for count in self._counts}
        if all(file.exists() for file in files.values()):
            return {c: LayerScores.model_validate_json(file.read_text("utf-8")) for c, file in files.items()}
        self._clock.check()
        began = time.monotonic()
        found = self._computed(name)
        for count, answer in found.items():
            write_text(files[count], answer.model_dump_json(indent=1) + "\n")
        say(f"{name}: {[answer.removed for answer in found.values()]}, {time.monotonic() - began:.0f} s")
        return found

    def _computed(self, name: str) -> dict[int, Any]:
        from regrow.criteria.objective import Objective, text_batches
        from regrow.criteria.ranking import reads_similarity, score_blocks
        from regrow.criteria.similarity import kept_similarity

        base, _, kind = name.partition("/")
        model, text = self._loaded.model, self._calibration
        settings: dict[str, Any] = {"similarity": kind} if kind else {}
        record = kept_similarity(model, text, self._output) if reads_similarity(base) else None
        if base in ("perplexity", "greedy-perplexity"):
            if self._oracle is None:
                self._oracle = Objective(model, text_batches(text, 1))
                self._oracle.recall(remembered(self._output))
            settings["objective"] = self._oracle
        if base == "greedy-perplexity":
            for rounds in range(1, max(self._counts) + 1):
                self._clock.check()
                score_blocks(base, model, text, remove=rounds, options=settings)
                remember(self._output, self._oracle)
                say(f"{name}: round {rounds}")
        found = {
            count: score_blocks(base, model, text, remove=count, record=record, options=settings)
            for count in self._counts
        }
        if self._oracle is not None:
            remember(self._output, self._oracle)
        return found


def remembered(folder: Path) -> dict[frozenset[int], Any]:
    """Return what the oracle of a stopped call found: greedy rounds go on from there."""
    from regrow.criteria.objective import Answer

    file = folder / MEMORY
    rows = json.loads(file.read_text("utf-8")) if file.exists() else []
    return {frozenset(cut): Answer(value, complete) for cut, value, complete in rows}


def remember(folder: Path, oracle) -> None:
    from regrow.records.atomic import write_json

    write_json(
        folder / MEMORY, [[sorted(cut), answer.value, answer.complete] for cut, answer in oracle.answers().items()]
    )


def cut_key(answer) -> str:
    """Return the name of what an answer leaves: its removed blocks, and the merges where it merges."""
    from regrow.criteria.merging import merges_of

    merges = "".join(f"-m{m.into}.{'.'.join(map(str, m.absorbed))}" for m in merges_of(answer))
    return "cut-" + "-".join(map(str, answer.removed)) + merges


def measure(loaded, options, key: str, answer, clock: Clock) -> Path:
    """Return the folder of the evaluation of a cut (None: the whole model), measured now or found there."""
    from regrow.cli.output import SilentWatcher
    from regrow.criteria.merging import merge_blocks, merges_of
    from regrow.records.checkpoint import CheckpointFacts
    from regrow.records.specs import EvalSpec
    from regrow.study.stages.evaluate import evaluate
    from regrow.surgery import remove_blocks

    folder = options.output / "evaluations" / key
    if (folder / "result.json").exists():
        return folder
    clock.check()
    began = time.monotonic()
    subject = loaded
    if answer is not None:
        model = copy.deepcopy(loaded.model)
        count = model.config.num_hidden_layers
        remove_blocks(merge_blocks(model, merges_of(answer)), answer.removed)
        facts = CheckpointFacts(source=loaded.source, unpruned_blocks=count, removed_blocks=answer.removed)
        subject = dataclasses.replace(loaded, model=model, facts=facts)
    spec = EvalSpec(split="dev", items=options.items, perplexity=True)
    evaluate(options.model, spec, folder, watch=SilentWatcher(), label=key, loaded=subject, dtype=options.dtype)
    say(f"{key}: {time.monotonic() - began:.0f} s")
    return folder


def jaccard(one, other) -> float:
    return len(set(one) & set(other)) / len(set(one) | set(other))


def percent(cell) -> str:
    if not math.isfinite(cell.value):
        return "-"
    limits = f" ({100 * cell.low:.0f}-{100 * cell.high:.0f})" if math.isfinite(cell.low) else ""
    return f"{100 * cell.value:.0f}{limits}"


def perplexity(cell) -> str:
    digits = 1 if cell.value < 1000 else 0
    return f"{cell.value:,.{digits}f} ({cell.low:,.{digits}f}-{cell.high:,.{digits}f})"


def cut_tables(answers, counts: list[int], folders: dict[str, Path]) -> Iterator[str]:
    """Yield the lines of one table a count: blocks, perplexity, capped mean of retention and scores, with intervals."""
    from regrow.report.inputs import pair, read_evaluations
    from regrow.report.tables import main_table

    for count in counts:
        keys = dict.fromkeys(cut_key(by_count[count]) for by_count in answers.values())
        keys = [key for key in keys if key in folders]
        table = main_table(pair(read_evaluations([folders["unpruned"], *(folders[key] for key in keys)])))
        place = {column.label: index for index, column in enumerate(table.columns)}
        rows = {row.key: row for row in table.rows}
        capped = next(summary for summary in table.summaries if summary.key == "capped_mean")
        capabilities = [name for name in SHORT if name in rows]
        yield ""
        yield f"### {count} blocks removed"
        yield ""
        yield "| criterion | removed | perplexity | kept | " + " | ".join(SHORT[name] for name in capabilities) + " |"
        yield "|---|---|---:|---:|" + "---:|" * len(capabilities)
        lines = [("(none)", "unpruned", "")]
        for name, by_count in answers.items():
            answer = by_count[count]
            lines.append((name, cut_key(answer), ", ".join(map(str, answer.removed))))
        for name, key, removed in lines:
            if key not in place:
                yield f"| {name} | {removed} |" + " - |" * (len(capabilities) + 2)
                continue
            at = place[key]
            cells = [perplexity(rows["perplexity"].cells[at]), percent(capped.cells[at])]
            cells += [percent(rows[capability].cells[at]) for capability in capabilities]
            yield f"| {name} | {removed} | " + " | ".join(cells) + " |"


def agreement_table(answers, counts: list[int]) -> Iterator[str]:
    """Yield the lines of the table of WRP's overlap with the criteria that read activations."""
    readers = [name for name in answers if name in ACTIVATION_BASED]
    derived = [name for name in answers if name.startswith("wrp/")]
    if not readers or not derived:
        return
    yield ""
    yield f"### Jaccard overlap of WRP's cut with the activation-based ones, {' / '.join(map(str, counts))} blocks"
    yield ""
    yield "| similarity | " + " | ".join(readers) + " | mean |"
    yield "|---|" + "---:|" * (len(readers) + 1)
    for name in derived:
        shares = {
            reader: [jaccard(answers[name][c].removed, answers[reader][c].removed) for c in counts]
            for reader in readers
        }
        mean = sum(map(sum, shares.values())) / (len(readers) * len(counts))
        cells = [" / ".join(f"{share:.2f}" for share in shares[reader]) for reader in readers]
        yield f"| {name.removeprefix('wrp/')} | " + " | ".join(cells) + f" | {mean:.2f} |"
    most = max(counts)
    yield ""
    yield f"### Spearman's correlation of WRP's whole order with theirs, {most} blocks asked for"
    yield ""
    yield "| similarity | " + " | ".join(readers) + " | mean |"
    yield "|---|" + "---:|" * (len(readers) + 1)
    for name in derived:
        found = [rank_correlation(answers[name][most].order, answers[reader][most].order) for reader in readers]
        cells = [f"{value:+.2f}" for value in found]
        yield f"| {name.removeprefix('wrp/')} | " + " | ".join(cells) + f" | {sum(found) / len(found):+.2f} |"


def rank_correlation(one, other) -> float:
    """Return Spearman's correlation of two orders over the blocks that both hold."""
    shared = set(one) & set(other)
    first = [block for block in one if block in shared]
    second = {block: place for place, block in enumerate(block for block in other if block in shared)}
    n = len(first)
    return 1 - 6 * sum((place - second[block]) ** 2 for place, block in enumerate(first)) / (n * (n * n - 1))


def chance_overlap(removed: int, free: int) -> float:
    """Return the expected Jaccard overlap of two uniformly drawn cuts of ``removed`` of ``free`` blocks."""
    total = 0.0
    for shared in range(max(0, 2 * removed - free), removed + 1):
        ways = math.comb(removed, shared) * math.comb(free - removed, removed - shared)
        total += ways * shared / (2 * removed - shared)
    return total / math.comb(free, removed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of answers and evaluations")
    parser.add_argument("--model", default="embedded:smollm2-135m")
    parser.add_argument("--remove", default="2,4,7")
    parser.add_argument("--calibration", default="bundled")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--criteria", help="comma-separated; default: all")
    parser.add_argument("--items", type=int, default=12, help="dev items per capability")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--so-far", action="store_true", help="print the tables of what is there when time is up")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="seconds after which nothing new begins")
    options = parser.parse_args()
    clock = Clock(options.stop_after)

    from regrow.criteria.registry import CRITERIA
    from regrow.models.families import blocks_of
    from regrow.models.load import load_model
    from regrow.records.store import RunFolder

    counts = [int(count) for count in options.remove.split(",")]
    chosen = options.criteria.split(",") if options.criteria else CRITERIA.names()
    names = [name for name in chosen if name != "wrp"]
    names += [f"wrp/{kind}" for kind in SIMILARITIES if "wrp" in chosen]
    asked = {key: value for key, value in vars(options).items() if key not in UNRELATED}
    RunFolder(options.output).claim("criteria cuts", asked)
    loaded = load_model(options.model, dtype=options.dtype, device=options.device)
    book = Answers(loaded, options, counts, clock)
    answers: dict[str, dict[int, Any]] = {}
    folders: dict[str, Path] = {}
    try:
        folders["unpruned"] = measure(loaded, options, "unpruned", None, clock)
        # The dearest last: a stopped run then holds most of the table.
        for name in sorted(names, key="greedy-perplexity".__eq__):
            answers[name] = book.of(name)
            for answer in answers[name].values():
                folders[cut_key(answer)] = measure(loaded, options, cut_key(answer), answer, clock)
    except Stopped:
        say("stopped; the same command goes on")
        if not options.so_far:
            sys.exit(STOPPED)
    answers = {name: answers[name] for name in names if name in answers}
    free = len(blocks_of(loaded.model)) - 1
    print(
        f"{options.model}, {options.dtype}; criteria read {options.tokens:,} tokens of '{options.calibration}'; "
        f"{options.items} dev items a capability; {len(folders) - 1} distinct cuts; 95 % intervals in brackets."
    )
    for line in (*cut_tables(answers, counts, folders), *agreement_table(answers, counts)):
        print(line)
    print(
        f"\nTwo cuts drawn at random from {free} free blocks overlap by "
        + " / ".join(f"{chance_overlap(count, free):.2f}" for count in counts)
        + " on average."
    )


if __name__ == "__main__":
    main()
