"""Where each data set lies: its place on the Hugging Face hub, pinned to a commit, and its files in a local folder.

A local data folder holds one folder a data set, called by the name here or by the hub's (``gsm8k``, ``openai/gsm8k`` or
``openai--gsm8k``). Inside, either layout is read: one JSON Lines file a split (``test.jsonl``), or the hub's own files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from regrow.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class DataSet:
    """One data set. ``parts`` maps a part (a split, or a named file) to file patterns, tried in order; the first that
    matches anything is read. The pattern of the hub's layout comes last: it is what is fetched. Without a ``hub_id``
    the set is known in local folders only. The parts of one that is read ``together`` are fetched together."""

    name: str
    hub_id: str
    revision: str
    licence: str
    parts: Mapping[str, tuple[str, ...]]
    folders: tuple[str, ...] = field(default=())
    together: bool = False

    @property
    def places(self) -> tuple[str, ...]:
        """Names that the folder of this data set may have within a data folder."""
        if not self.hub_id:
            return (self.name, *self.folders)
        return (self.name, *self.folders, self.hub_id, self.hub_id.replace("/", "--"), self.hub_id.split("/")[1])

    def fetch_command(self, part: str) -> str:
        """Return the command that puts a part's files where ``--data DIR`` finds them."""
        wanted = [self.parts[each][-1] for each in (self.parts if self.together else (part,))]
        return (
            f"hf download {self.hub_id} --repo-type dataset --revision {self.revision} "
            + "".join(f"--include '{pattern}' " for pattern in wanted)
            + f"--local-dir DIR/{self.name}"
        )


def _splits(config: str, *names: str) -> dict[str, tuple[str, ...]]:
    folder = f"{config}/" if config else ""
    return {name: (f"{name}.jsonl", f"{folder}{name}-*.parquet") for name in names}


CATALOGUE: dict[str, DataSet] = {
    each.name: each
    for each in (
        DataSet(
            "jsonschemabench",
            "epfl-dlab/JSONSchemaBench",
            "e2ee5fdba65657c60d3a24b321172eb7141f8d73",
            "MIT (data set card)",
            {
                name: (f"{name}.jsonl", f"{name}/*.parquet", f"data/{name}*.parquet", f"**/{name}*.parquet")
                for name in ("Github_easy", "Github_trivial", "Github_medium")
            },
        ),
        DataSet(
            "bfcl",
            "gorilla-llm/Berkeley-Function-Calling-Leaderboard",
            "61fc0608cfd831fcfbbaa676ebdfef0ed963eeda",
            "Apache-2.0",
            {
                f"{folder}{name}": (f"{folder}BFCL_v3_{name}.jsonl", f"{folder}BFCL_v3_{name}.json")
                for folder in ("", "possible_answer/")
                for name in ("simple", "multiple")
            },
            together=True,
        ),
        DataSet(
            "ifeval",
            "google/IFEval",
            "966cd89545d6b6acfd7638bc708b98261ca58e84",
            "Apache-2.0",
            {"train": ("train.jsonl", "*.parquet", "ifeval_input_data.jsonl")},
        ),
        DataSet(
            "gsm8k",
            "openai/gsm8k",
            "740312add88f781978c0658806c59bc2815b9866",
            "MIT",
            _splits("main", "test", "train"),
        ),
        DataSet(
            "xstest",
            "Paul/XSTest",
            "f600c994b256f12867dfa5b3eb3d545a3e62f8b5",
            "CC-BY-4.0",
            {"train": ("train.jsonl", "xstest_prompts.csv")},
        ),
        DataSet(
            "mmlu",
            "cais/mmlu",
            "c30699e8356da336a370243923dbaf21066bb9fe",
            "MIT (data set card)",
            _splits("all", "test", "dev"),
        ),
        DataSet(
            "boolq",
            "google/boolq",
            "35b264d03638db9f4ce671b711558bf7ff0f80d5",
            "CC-BY-SA-3.0",
            _splits("data", "validation"),
        ),
        DataSet(
            "piqa",
            "baber/piqa",
            "142f6d7367fd9877f0fb3b5734ea6a545f54cdd1",
            "AFL-3.0",
            {"validation": ("validation.jsonl", "validation-*.parquet", "**/validation-*.parquet")},
            folders=("ybisk/piqa",),
        ),
        DataSet(
            "hellaswag",
            "Rowan/hellaswag",
            "218ec52e09a7e7462a5400043bb9a69a41d06b76",
            "MIT",
            _splits("data", "validation"),
        ),
        DataSet(
            "winogrande",
            "allenai/winogrande",
            "01e74176c63542e6b0bcb004dcdea22d94fb67b5",
            "CC-BY",
            _splits("winogrande_xl", "validation"),
        ),
        DataSet(
            "arc_easy",
            "allenai/ai2_arc",
            "210d026faf9955653af8916fad021475a3f00453",
            "CC-BY-SA-4.0",
            _splits("ARC-Easy", "validation", "test"),
        ),
        DataSet(
            "arc_challenge",
            "allenai/ai2_arc",
            "210d026faf9955653af8916fad021475a3f00453",
            "CC-BY-SA-4.0",
            _splits("ARC-Challenge", "validation", "test"),
        ),
        DataSet(
            "openbookqa",
            "allenai/openbookqa",
            "388097ea7776314e93a529163e0fea805b8a6454",
            "unknown (data set card); Apache-2.0 (code)",
            _splits("main", "validation", "test"),
        ),
        DataSet(
            "wikitext2_raw",
            "Salesforce/wikitext",
            "b08601e04326c79dfdd32d625aee71d232d685c3",
            "CC-BY-SA-3.0 and GFDL",
            _splits("wikitext-2-raw-v1", "test", "validation", "train"),
            folders=("wikitext-2-raw-v1", "wikitext2"),
        ),
        DataSet(
            "alpaca",
            "yahma/alpaca-cleaned",
            "12567cabf869d7c92e573c7c783905fc160e9639",
            "CC-BY-NC-4.0: non-commercial (Alpaca's own; the data set card of alpaca-cleaned says CC-BY-4.0)",
            {"train": ("train.jsonl", "alpaca_data_cleaned.json")},
            folders=("tatsu-lab/alpaca",),
        ),
        DataSet(
            "glaive_toolcall",
            "glaiveai/glaive-function-calling-v2",
            "e7f4b6456019f5d8bcb991ef0dd67d8ff23221ac",
            "Apache-2.0 (data set card)",
            {"train": ("train.jsonl", "glaive-function-calling-v2.json")},
        ),
        DataSet(
            "seal_tools",
            "",
            "",
            "Apache-2.0",
            {name: (f"{name}.jsonl",) for name in ("tool", "dev", "test_in_domain", "test_out_domain")},
        ),
        DataSet(
            "pku_saferlhf_prompt",
            "PKU-Alignment/PKU-SafeRLHF",
            "9421ffafec3fa40a1f1a7d567b4d525079477ecb",
            "CC-BY-NC-4.0: non-commercial (data set card)",
            {"train": ("train.jsonl", "data/*/train.jsonl")},
        ),
    )
}


def data_set(name: str) -> DataSet:
    """Return the data set called ``name``. Raises ConfigError with the nearest name when there is none."""
    if name not in CATALOGUE:
        raise ConfigError(f"unknown data set '{name}'", hint=did_you_mean(name, CATALOGUE))
    return CATALOGUE[name]
