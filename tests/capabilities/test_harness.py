"""The bridge to lm-evaluation-harness: its tasks over regrow's models, regrow's model type in its own command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from regrow.capabilities.evaluate import Evaluation
from regrow.capabilities.generation import Request, generate
from regrow.errors import ConfigError
from regrow.models.load import LoadedModel
from regrow.protocols import SilentWatcher
from tests.capabilities.toys import loaded_toy

pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")

NAMES = ["toy_choose", "toy_write", "toy_read"]
ROWS = [
    {"q": "abc abc", "a": "abc", "wrong": "xyz"},
    {"q": "the tide comes", "a": "in", "wrong": "out"},
    {"q": "one two", "a": "three", "wrong": "nine"},
]


@pytest.fixture(scope="module")
def definitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    records = folder / "rows.jsonl"
    records.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    common = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {records}\ntest_split: test\n"
    (folder / "choose.yaml").write_text(
        "task: toy_choose\n" + common + 'doc_to_text: "{{q}}"\ndoc_to_choice: "{{[a, wrong]}}"\ndoc_to_target: 0\n'
        "output_type: multiple_choice\nmetric_list:\n  - metric: acc\n  - metric: acc_norm\n",
        encoding="utf-8",
    )
    (folder / "write.yaml").write_text(
        "task: toy_write\n" + common + 'doc_to_text: "{{q}}"\ndoc_to_target: "{{a}}"\noutput_type: generate_until\n'
        'generation_kwargs:\n  until: ["e"]\n  max_gen_toks: 6\nmetric_list:\n  - metric: exact_match\n',
        encoding="utf-8",
    )
    (folder / "read.yaml").write_text(
        "task: toy_read\n" + common + 'doc_to_text: ""\ndoc_to_target: "{{q}}"\noutput_type: loglikelihood_rolling\n'
        "metric_list:\n  - metric: word_perplexity\n  - metric: bits_per_byte\n",
        encoding="utf-8",
    )
    (folder / "sample.yaml").write_text(
        "task: toy_sample\n" + common + 'doc_to_text: "{{q}}"\ndoc_to_target: "{{a}}"\noutput_type: generate_until\n'
        "generation_kwargs:\n  do_sample: true\n  temperature: 0.8\nmetric_list:\n  - metric: exact_match\n",
        encoding="utf-8",
    )
    return folder


def theirs(loaded: LoadedModel, names: list[str], folder: Path) -> Any:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from tests.capabilities.harness_tasks import hf_backend

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return simple_evaluate(
        model=hf_backend(loaded), tasks=names, task_manager=manager, bootstrap_iters=0, log_samples=True
    )


def test_tasks_of_every_kind_give_the_harnesss_own_numbers(definitions: Path) -> None:
    from regrow.capabilities.harness.tasks import run_tasks

    loaded = loaded_toy("llama")
    names = ["toy_choose", "toy_write", "toy_read"]
    found = run_tasks(loaded, names, folder=definitions, batch_size=2)
    wanted = theirs(loaded, names, definitions)
    numbers = {entry.name: entry.value for entry in found.measurements}
    for name, metrics in wanted["results"].items():
        for metric, value in metrics.items():
            if isinstance(value, float) and "_stderr" not in metric:
                assert numbers[f"{name}.{metric.removesuffix(',none')}"] == pytest.approx(value, rel=1e-4), metric
    written = [item for item in found.items if item.capability == "toy_write"]
    assert [item.response for item in written] == [sample["resps"][0][0] for sample in wanted["samples"]["toy_write"]]
    assert {item.capability for item in found.items} == {"toy_choose", "toy_write"}
    assert len({item.item_id for item in found.items}) == 6
    assert found.cost.flops > 0


class Stops(SilentWatcher):
    """Ends the work, as a kill would, once so many requests are done in all; counts those of each kind."""

    def __init__(self, after: int) -> None:
        self.left, self.asked, self.notes = after, {}, []
        self.done = 0.0

    def begin(self, task: str, total: float | None = None, unit: str = "") -> None:
        self.asked[task] = total
        self.done = 0.0

    def advance(self, done: float, **facts: Any) -> None:
        self.left -= done - self.done
        self.done = done
        if self.left < 0:
            raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def unbroken(definitions: Path) -> tuple[Evaluation, float]:
    """A run to its end, and the number of requests it made."""
    from regrow.capabilities.harness.tasks import run_tasks

    watch = Stops(99)
    found = run_tasks(loaded_toy("llama"), NAMES, folder=definitions, batch_size=1, watch=watch)
    return found, sum(watch.asked.values())


@pytest.mark.parametrize("after", [1, 4, 7])
def test_tasks_that_were_stopped_go_on_where_they_stopped(
    definitions: Path, tmp_path: Path, unbroken: tuple[Evaluation, float], after: int
) -> None:
    from regrow.capabilities.harness.tasks import run_tasks

    loaded, names = loaded_toy("llama"), NAMES
    whole, all_of_them = unbroken
    journal = tmp_path / "parts" / "harness.journal"
    with pytest.raises(KeyboardInterrupt):
        run_tasks(loaded, names, folder=definitions, batch_size=1, watch=Stops(after), journal=journal)
    kept = journal.read_bytes()
    # A kill in the middle of a write leaves half a line.
    journal.write_bytes(kept + b'{"key": "')
    again = run_tasks(loaded, names, folder=definitions, batch_size=1, watch=(rest := Stops(99)), journal=journal)
    assert again.items == whole.items
    assert [(each.name, each.value) for each in again.measurements] == [
        (each.name, pytest.approx(each.value, rel=1e-6)) for each in whole.measurements
    ]
    # A question is kept before it is counted, so at least the ones that were counted are not asked again.
    assert all_of_them - sum(rest.asked.values()) >= after and rest.notes
    assert journal.read_bytes().startswith(kept)


def test_answers_end_at_the_tasks_own_stops() -> None:
    from lm_eval.api.instance import Instance

    from regrow.capabilities.harness.adapter import RegrowLM

    loaded = loaded_toy()
    (whole,) = generate(loaded, [Request("abc", 12)])
    stop = whole.text[3]
    model = RegrowLM(loaded)
    (cut,) = model.generate_until([Instance("generate_until", {}, ("abc", {"until": stop, "max_gen_toks": 12}), 0)])
    assert cut == whole.text[: whole.text.index(stop)]


@pytest.mark.parametrize(
    ("options", "most", "stops"),
    [
        ({"do_sample": True, "temperature": 0.0, "max_gen_toks": 9}, 9, ()),
        ({"max_completion_tokens": 7, "until": ["", "x"]}, 7, ("x",)),
        ({"max_tokens": 5, "until": ""}, 5, ()),
        ({"until": "ab"}, 256, ("ab",)),
    ],
)
def test_a_tasks_options_mean_what_they_mean_to_the_harness(options: Any, most: int, stops: tuple[str, ...]) -> None:
    from regrow.capabilities.harness.adapter import _request

    request = _request("abc", options)
    assert (request.max_new_tokens, request.stop_texts) == (most, stops)


def test_many_continuations_of_no_context_are_weighed_as_alone() -> None:
    from lm_eval.api.instance import Instance

    from regrow.capabilities.harness.adapter import CHOICES_AT_ONCE, RegrowLM

    texts = [f"{number}a{number % 7}" for number in range(3 * CHOICES_AT_ONCE + 5)]
    requests = [Instance("loglikelihood", {}, ("", text), number) for number, text in enumerate(texts)]
    model = RegrowLM(loaded_toy())
    together = model.loglikelihood(requests)
    for at in (0, CHOICES_AT_ONCE - 1, CHOICES_AT_ONCE, len(texts) - 1):
        ((alone, greedy),) = model.loglikelihood([requests[at]])
        assert together[at] == (pytest.approx(alone, abs=1e-4), greedy)


def test_a_task_that_samples_and_an_unknown_task_are_refused(definitions: Path) -> None:
    from regrow.capabilities.harness.tasks import known_tasks, run_tasks

    with pytest.raises(ConfigError, match="samples its answers"):
        run_tasks(loaded_toy(), ["toy_sample"], folder=definitions)
    with pytest.raises(ConfigError) as caught:
        known_tasks(["toy_chose"], definitions)
    assert "did you mean 'toy_choose'" in str(caught.value.hint)


def test_unknown_model_arguments_are_refused() -> None:
    from regrow.capabilities.harness.adapter import RegrowLM

    with pytest.raises(ConfigError, match="unknown model argument 'parallelize'"):
        RegrowLM(loaded_toy(), parallelize=True)


def test_the_chat_template_is_regrows_rendering() -> None:
    from regrow.capabilities.harness.adapter import RegrowLM

    model = RegrowLM(loaded_toy())
    assert "[user] hi" in model.apply_chat_template([{"role": "user", "content": "hi"}])
    assert model.chat_template() == "" and model.chat_template(True)


@pytest.mark.slow
def test_the_harnesss_own_command_knows_the_model_type(tiny_folder: Any, definitions: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "regrow.capabilities.harness", "run", "--model", "regrow",
            "--model_args", f"pretrained={tiny_folder('llama')}", "--tasks", "toy_choose",
            "--include_path", str(definitions), "--output_path", str(tmp_path / "out"),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "toy_choose" in done.stdout and "acc_norm" in done.stdout
