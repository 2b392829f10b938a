"""``regrow plan`` as a user runs it."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regrow.cli.main import main
from regrow.errors import DataError
from regrow.planning.pilot_files import read_pilots
from regrow.planning.pilots import Pilots

from .conftest import FAMILIES, POOLS, PUBLISHED

HEAVY = "{'torch', 'transformers', 'peft', 'altair', 'scipy.stats', 'polars'}"
HEAVIER = "{'scipy', 'numpy', 'pydantic', *" + HEAVY + "}"


def fresh_plan(*words: object, cwd: Path, heavy: str = HEAVY) -> subprocess.CompletedProcess[str]:
    """Run the command in a new interpreter, which then says what it imported of the ``heavy``."""
    environment = {**os.environ, "COLUMNS": "160", "OMP_NUM_THREADS": "1"}
    script = (
        "import sys\nfrom regrow.cli.main import main\n"
        f"try:\n    main()\nfinally:\n    print('heavy:', sorted({heavy} & set(sys.modules)), file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", script, "plan", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


def plan(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in this process."""
    command = ["plan", *map(str, words)]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        patch.chdir(cwd)
        patch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as ended:
            main(command)
    return subprocess.CompletedProcess(command, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def as_json(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what --json prints for the published file at two budgets."""
    words = (PUBLISHED, "--json", "--budget", "1M", "--budget", "250k")
    done = fresh_plan(*words, cwd=tmp_path_factory.mktemp("plan"))
    assert "heavy: []" in done.stderr
    return answer(done)


@pytest.mark.parametrize("family", FAMILIES)
def test_json_has_exactly_the_promised_keys(family: str, as_json: dict[str, Any], published: dict[str, Any]) -> None:
    assert set(as_json) == {"families"} and set(as_json["families"]) == set(FAMILIES)
    found = as_json["families"][family]
    assert set(found) == {"fit", "scope", "allocations"}
    assert set(found["fit"]) == {"a", "tau", "rmse", "transfer"}
    assert np.shape(found["fit"]["transfer"]) == (6, 6)
    known = published["families"][family]
    assert found["scope"] == known["scope"]
    np.testing.assert_allclose(found["fit"]["a"], known["fit"]["a"], rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(found["fit"]["tau"], known["fit"]["tau"], rtol=1e-5)
    np.testing.assert_allclose(found["fit"]["rmse"], known["fit"]["rmse"], rtol=1e-5)
    for rule, tokens in known["allocations"].items():
        np.testing.assert_allclose(found["allocations"][rule], tokens, atol=5)


def test_four_million_is_uniform(tmp_path: Path) -> None:
    found = answer(plan(PUBLISHED, "--json", "--budget", "4M", "--rule", "rah,rah-capped,max-min", cwd=tmp_path))
    for family in FAMILIES:
        allocations = found["families"][family]["allocations"]
        assert set(allocations) == {"rah", "rah_capped", "rah_max_min"}
        assert all(tokens == [4_000_000 / 6] * 6 for tokens in allocations.values())


def test_the_page_for_people(tmp_path: Path) -> None:
    done = plan(PUBLISHED, "--family", "llama", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for said in (
        "scope last-k",
        "529,869",
        "600,000",
        "42,824",
        "5 % of plans",
        "saturated",
        "they may not hold there",
        "certified: no split beats these",
        "4.48M",
        "21 pilots",
        "one more pilot",
        "misfit p",
    ):
        assert said in done.stdout, said
    assert "qwen" not in done.stdout


def test_a_written_mixture_is_what_heal_reads(tmp_path: Path) -> None:
    words = (PUBLISHED, "--family", "qwen", "--rule", "rah", "-o", "mixture.yaml", "--no-uncertainty")
    done = plan(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "regrow heal PRUNED" in done.stdout and "--scope all-lora" in done.stdout
    from regrow.heal.mixture import read_mixture

    mixture = read_mixture(str(tmp_path / "mixture.yaml"))
    assert isinstance(mixture, dict)
    assert sum(mixture.values()) == 1_000_000 and mixture["function_calling"] == pytest.approx(524304, abs=2)
    refused = plan(PUBLISHED, "-o", "more.yaml", "--rule", "rah", cwd=tmp_path)
    assert refused.returncode == 2 and "one plan" in refused.stderr and not (tmp_path / "more.yaml").exists()


def test_without_a_file_it_says_what_rules_need(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in answer(plan("--json", "--parameters", "1.1B", cwd=tmp_path))["rules"]}
    assert len(rows["rah"]["pilots"]) == 21 and rows["rah"]["before"]["training_tokens"] == 3_480_000
    assert rows["rah"]["before"]["flops"] > 6 * 1.1e9 * 3_480_000
    shown = plan(cwd=tmp_path)
    assert shown.returncode == 0 and "data-mixing" in shown.stdout and "3.48M" in shown.stdout


def test_a_missing_pilot_and_the_command_that_makes_it(tmp_path: Path, published: dict[str, Any]) -> None:
    content = copy.deepcopy(published)
    content["families"]["llama"]["delta_items"]["math"][1] = None
    (tmp_path / "pilots.json").write_text(json.dumps(content))
    done = plan(tmp_path, "--rule", "rah", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    rest = plan(tmp_path, "--no-uncertainty", cwd=tmp_path)
    assert rest.returncode == 0 and "left out rah, rah-capped" in " ".join(rest.stdout.split())
    for said in (done.stderr, rest.stdout):
        flat = " ".join(said.split())
        assert "the pilot of pool math at 100k tokens, scope all-lora is missing" in flat
        assert "regrow heal PRUNED -o math-100k --tokens 100000 --mixture math-100k.yaml" in flat
    # The other family is complete, and simple rules need no pilots.
    content_there = answer(plan(tmp_path, "--json", cwd=tmp_path))["families"]
    assert set(content_there["llama"]["allocations"]) == {"uniform", "damage_proportional", "slowest_first"}
    assert "rah_capped" in content_there["qwen"]["allocations"]
    ready = answer(plan(tmp_path, "--rule", "uniform,damage-proportional", "--json", cwd=tmp_path))
    assert ready["families"]["llama"]["fit"]["a"] == [None] * 6
    assert ready["families"]["llama"]["allocations"]["uniform"] == [1_000_000 / 6] * 6


def test_a_scope_chosen_without_all_pilots_is_said_and_an_unknown_one_refused(
    tmp_path: Path, published: dict[str, Any]
) -> None:
    content = copy.deepcopy(published)
    content["families"]["llama"]["scope_items"] = {"all-lora": [30] * 6}
    (tmp_path / "pilots.json").write_text(json.dumps(content))
    done = plan(tmp_path, "--rule", "rah", "--no-uncertainty", cwd=tmp_path)
    flat = " ".join(done.stdout.split())
    assert done.returncode == 0 and "without the uniform pilot under cut-lora and last-k" in flat
    assert "--scope last-k" in flat
    content["families"]["llama"]["scope_items"] = {"all-lra": [30] * 6}
    (tmp_path / "pilots.json").write_text(json.dumps(content))
    done = plan(tmp_path, "--rule", "rah", cwd=tmp_path)
    assert done.returncode == 2 and "unknown scope 'all-lra'" in " ".join(done.stderr.split())
    assert "did you mean 'all-lora'" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "-5"], "not a number of tokens"),
        (["--budget=-1M"], "not a number of tokens"),
        (["--budget", "0"], "at least one token"),
        (["--rule", "rahh"], "did you mean 'rah'"),
        (["--rule", "slowest-first(2)"], "between 0 and 1"),
        (["--rule", "proxy"], "nll_gap"),
        (["--rule", "paser"], "prompts with embeddings"),
        (["--rule", "doremi"], "under 'evidence', 'doremi'"),
        (["--rule", "dynamic-batch-loading"], "the pools' losses over a run"),
        (["--rule", "data-mixing"], "small runs with perturbed mixtures"),
        (["--budget", "1M,-2k"], "not a number of tokens"),
        (["--solver", "best"], "unknown solver"),
        (["--family", "olmo"], "unknown family 'olmo'"),
        (["--training-rate", "0"], "--training-rate must be positive"),
        (["--parameters", "big"], "not a number of tokens"),
    ],
)
def test_mistakes(words: list[str], said: str, tmp_path: Path) -> None:
    done = plan(PUBLISHED, *words, cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stdout == ""
    assert said in " ".join(done.stderr.split()) and "try:" in done.stderr


def test_counts_above_sixty_are_refused(tmp_path: Path, published: dict[str, Any]) -> None:
    content = copy.deepcopy(published)
    content["families"]["qwen"]["delta_items"]["safety"][0][0] = 60
    file = tmp_path / "many.json"
    file.write_text(json.dumps(content))
    done = plan(file, "--json", cwd=tmp_path)
    assert done.returncode == 2 and "63 items right of 60 in structured_output" in " ".join(done.stderr.split())


def test_a_proxy_plan_from_two_families(tmp_path: Path, published: dict[str, Any]) -> None:
    content = copy.deepcopy(published)
    for place, family in enumerate(FAMILIES):
        content["families"][family]["nll_gap"] = [1.2, 0.9 + place, 0.4, 1.5, 0.1, 0.6]
    file = tmp_path / "gaps.json"
    file.write_text(json.dumps(content))
    found = answer(plan(file, "--json", "--family", "qwen", cwd=tmp_path))
    assert set(found["families"]) == {"qwen"}
    assert sum(found["families"]["qwen"]["allocations"]["rah_proxy"]) == pytest.approx(1_000_000)


POOL_LOSSES = {pool: [2.0 - 0.1 * place, 1.5, 1.2] for place, pool in enumerate(POOLS)}
REFERENCES = dict.fromkeys(POOLS, 1.1)


def evidence_of_all_rules() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    runs = []
    for factor in (1, *[3, 1 / 3] * 6):
        tokens = dict.fromkeys(POOLS, 50000.0)
        tokens[POOLS[len(runs) % 6]] *= factor
        runs.append({"tokens": tokens, "losses": {p: 1 + 20 / spent**0.3 for p, spent in tokens.items()}})
    return {
        "doremi": {"losses": POOL_LOSSES, "reference_losses": REFERENCES},
        "dynamic_batch_loading": {"losses": POOL_LOSSES, "reference_losses": REFERENCES},
        "data-mixing": {"runs": runs},
        "paser": {
            "prompts": [
                {
                    "pool": POOLS[place % 6],
                    "id": f"p{place}",
                    "embedding": [*map(float, rng.normal(size=3))],
                    "degradation": 0.1 + place % 6,
                    "tokens": 200,
                }
                for place in range(60)
            ]
        },
    }


def test_rules_with_evidence_of_their_own_read_it_from_the_file(tmp_path: Path, published: dict[str, Any]) -> None:
    content = copy.deepcopy(published)
    evidence = evidence_of_all_rules()
    lines = evidence["paser"]["prompts"]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    content["families"]["llama"]["evidence"] = evidence
    content["families"]["qwen"]["evidence"] = {"paser": {"prompts": "prompts.jsonl"}}
    (tmp_path / "pilots.json").write_text(json.dumps(content))
    found = answer(plan(tmp_path, "--json", cwd=tmp_path))["families"]
    own = {"paser", "doremi", "dynamic_batch_loading", "data_mixing"}
    assert own <= set(found["llama"]["allocations"])
    assert own & set(found["qwen"]["allocations"]) == {"paser"}
    for rule in own:
        assert sum(found["llama"]["allocations"][rule]) == pytest.approx(1_000_000)
    assert found["llama"]["allocations"]["paser"] == found["qwen"]["allocations"]["paser"]
    behind = found["llama"]["allocations"]["doremi"]
    assert behind[0] == max(behind), "the pool furthest above its reference gets most"


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        ({"doreme": {}}, "did you mean 'doremi'"),
        ({"rah": {}}, "names 'rah'"),
        ({"doremi": {"losses": POOL_LOSSES}}, "'reference_losses' is missing"),
        ({"doremi": {"losses": {**POOL_LOSSES, "math": [1.0]}, "reference_losses": REFERENCES}}, "as many losses"),
        ({"doremi": {"losses": {"math": [1.0]}, "reference_losses": REFERENCES}}, "is missing in 'losses'"),
        ({"doremi": {"losses": POOL_LOSSES, "reference_losses": {**REFERENCES, "maths": 1}}}, "did you mean 'math'"),
        ({"doremi": {"losses": POOL_LOSSES, "reference_losses": {**REFERENCES, "math": "low"}}}, "must hold numbers"),
        ({"data-mixing": {"runs": [{"tokens": REFERENCES, "losses": REFERENCES}]}}, "cannot determine a law"),
        ({"paser": {"prompts": "nowhere.jsonl"}}, "cannot be read"),
        ({"paser": {"prompts": [{"pool": "math"}]}}, "'id' is missing in prompt 1"),
        ({"paser": []}, "must be an object"),
    ],
)
def test_evidence_that_cannot_be_used(evidence: Any, said: str, tmp_path: Path, published: dict[str, Any]) -> None:
    content = copy.deepcopy(published)
    content["families"]["llama"]["evidence"] = evidence
    (tmp_path / "pilots.json").write_text(json.dumps(content))
    with pytest.raises(DataError) as refused:
        read_pilots(tmp_path)
    assert said in str(refused.value) + str(refused.value.hint)


def test_evidence_that_cannot_be_used_is_a_sentence(tmp_path: Path, published: dict[str, Any]) -> None:
    content = copy.deepcopy(published)
    content["families"]["llama"]["evidence"] = {"doreme": {}}
    (tmp_path / "pilots.json").write_text(json.dumps(content))
    done = plan(tmp_path, "--json", "--rule", "uniform", cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr and "did you mean 'doremi'" in done.stderr


def test_several_rules_and_budgets(tmp_path: Path) -> None:
    words = ("--budget", "1M", "--budget", "250k,500k", "--rule", "rah", "--rule", "slowest-first(0.5),uniform")
    found = answer(plan(PUBLISHED, "--json", *words, cwd=tmp_path))["families"]["qwen"]["allocations"]
    rules = ("rah", "slowest_first(0.5)", "uniform")
    assert set(found) == {rule + end for rule in rules for end in ("", "_at_250k", "_at_500k")}
    assert found["slowest_first(0.5)_at_500k"][3] == 250_000


def test_rules_are_listed(regrow: Any) -> None:
    code, out, _ = regrow("ls", "rules", "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)["rules"]}
    assert len(rows) == 14 and rows["doremi"]["paper"] == "2305.10429" and rows["uniform"]["needs"] == "nothing"


def test_help_loads_nothing(tmp_path: Path) -> None:
    done = fresh_plan("--help", cwd=tmp_path, heavy=HEAVIER)
    assert done.returncode == 0 and "heavy: []" in done.stderr, done.stderr
    assert "--budget" in done.stdout and "--rule" in done.stdout


def test_pilots_hold_what_the_file_says(published_pilots: dict[str, Pilots]) -> None:
    assert published_pilots["qwen"].pools == POOLS
