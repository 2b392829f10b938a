"""``regrow report STUDY`` as a user runs it."""

import json
import os
import subprocess
import sys

import pytest

from tests.report.sample_study import coordinates, write_run


def report(*words, cwd, heavy="{'torch', 'transformers', 'peft'}"):
    script = (
        "import sys\nfrom regrow.cli.main import main\n"
        f"try:\n    main()\nfinally:\n    print('heavy:', sorted({heavy} & set(sys.modules)), file=sys.stderr)\n"
    )
    command = [sys.executable, "-c", script, "report", *map(str, words)]
    environment = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a study of one family: damage, two rules, two seeds."""
    folder = tmp_path_factory.mktemp("small") / "study"
    sizes = {"math": 16, "safety": 16, "knowledge": 16}
    write_run(folder, "base", coordinates("tiny", "unpruned"), {"math": 12, "safety": 14, "knowledge": 12}, sizes)
    write_run(folder, "cut", coordinates("tiny", "pruned"), {"math": 2, "safety": 9, "knowledge": 8}, sizes)
    for seed in (0, 1):
        for rule, right in (("uniform", 8), ("rah", 9)):
            at = coordinates("tiny", "healed", rule=rule, scope="all-lora", budget=50_000, seed=seed)
            write_run(folder, f"{rule}-{seed}", at, {"math": right + seed, "safety": 13, "knowledge": 11}, sizes)
    return folder


def test_page_tables_and_figures_are_written(small, tmp_path):
    done = report(small, "-o", tmp_path / "out" / "page.html", "--resamples", "200", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "heavy: []" in done.stderr and "writing tables and figures" in done.stderr
    assert "RAH" in done.stdout and "Capped" in done.stdout and "50k" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()[:-2]) <= 80
    names = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert "page.html" in names and "tables/table3-results.tex" in names and "figures/figure1-damage.pdf" in names
    assert "figures/figure4-curves.png" not in names, "there are no pilots"


def test_json_and_a_folder_for_the_files(small, tmp_path, regrow, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = (small, "-o", "page.html", "--files", "paper", "--resamples", "200", "--budget", "50k", "--json", "-q")
    code, out, err = regrow("report", *words)
    assert code == 0, err
    found = json.loads(out)
    assert found["budget"] == 50_000 and (tmp_path / "paper" / "tables" / "runs.csv").exists()
    assert {row["rule"] for row in found["tables"]["results"]} == {"uniform", "rah"}
    assert len(found["tables"]["tests"]) == 2 and found["tables"]["tests"][0]["p_item"] is not None
    assert found["findings"] and all((tmp_path / path).exists() for path in found["files"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["STUDY", "STUDY/runs/base"], "is reported by itself"),
        (["STUDY", "--csv", "x.csv"], "a study has five"),
        (["STUDY", "--resamples", "5"], "must be 100 or more"),
        (["STUDY", "--budget", "many"], "not a number of tokens"),
        (["STUDY/runs/base", "--files", "x"], "belongs to the report of a study"),
        (["nowhere"], "no folder"),
        ([], "no evaluation was named"),
    ],
)
def test_mistakes(small, tmp_path, words, said, regrow, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = regrow("report", *(word.replace("STUDY", str(small)) for word in words))
    assert code == 2 and "Traceback" not in err and out == ""
    assert said in " ".join(err.split()) and "try:" in err
