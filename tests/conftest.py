"""Shared fixtures: tiny real models of many families, the real SmolLM2-135M, the real benchmark data where present."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

LONGEST_FIRST = (
    "study/test_smoke.py",
    "study/test_main_job.py",
    "study/test_runner.py",
    "capabilities/test_mini_on_the_model.py",
    "repair/test_smollm2.py",
    "cli/test_rank.py",
    "capabilities/test_generation.py",
    "heal/test_real_model.py",
    "study/test_engines.py",
    "models/test_bridges.py",
    "heal/test_command.py",
    "heal/test_processes.py",
)
"""Files that take a minute and more. `make test` hands out whole files: begun last, one would keep a worker alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, everything else as it was found."""
    here = Path(__file__).parent
    place = {here / name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


TINY_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": True},
    "mistral": {"model_type": "mistral", "sliding_window": 8},
    "qwen2": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "gemma2": {"model_type": "gemma2", "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "gemma3": {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16},
    "olmo2": {"model_type": "olmo2"},
    "olmo3": {"model_type": "olmo3", "sliding_window": 8},
    "smollm3": {"model_type": "smollm3"},
    "phi3": {"model_type": "phi3", "pad_token_id": 0},
    "granite": {"model_type": "granite"},
    "gpt_neox": {"model_type": "gpt_neox"},
    "gpt2": {"model_type": "gpt2"},
    "gpt_neo": {"model_type": "gpt_neo", "attention_types": [[["global", "local"], 3]], "window_size": 8},
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        "mlp_only_layers": [1],
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "decoder_sparse_step": 1,
    },
}


def tiny_model(family: str, *, blocks: int = 6, width: int = 32, vocabulary: int = 96, seed: int = 0) -> Any:
    """Return a real, randomly initialised model of ``family`` in evaluation mode."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    options = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": blocks,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": vocabulary,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    special = dict(TINY_FAMILIES[family])
    kind = special.pop("model_type")
    if kind == "gpt_neo":
        special["attention_types"] = [[["global", "local"], blocks // 2]]
    if kind in ("gpt2", "gpt_neo"):
        options.pop("num_key_value_heads")
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**options, **special})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.15)
    return model


def tiny_tokenizer(vocabulary: int = 96) -> Any:
    """Return a byte-like tokenizer of printable ASCII with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<bos>", "<eos>"]
    letters = [*(chr(code) for code in range(32, 32 + vocabulary - 4)), "\n"]
    table = {token: index for index, token in enumerate(special + letters)}
    backend = Tokenizer(models.BPE(vocab=table, merges=[], unk_token=None))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", model_max_length=512
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '[' + m['role'] + '] ' + m['content'] + '<eos>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '[assistant] ' }}{% endif %}"
    )
    return tokenizer


@pytest.fixture
def make_tiny() -> Callable[..., Any]:
    """Return :func:`tiny_model`."""
    return tiny_model


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a tiny checkpoint folder and gives its path."""

    def make(family: str = "llama", **options: Any) -> Path:
        folder = tmp_path / f"tiny-{family}"
        if not folder.exists():
            tiny_model(family, **options).save_pretrained(folder)
            tiny_tokenizer().save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real benchmark data beside the clone; tests that ask for it are skipped without it."""
    folder = Path(os.environ.get("REGROW_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    if not (folder / "gsm8k").is_dir():
        pytest.skip("the real benchmark data is not beside this clone (set REGROW_DATA)")
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Any:
    """Return the real SmolLM2-135M-Instruct in float32; treat it as read-only (copy before changing it)."""
    from regrow.errors import ModelError
    from regrow.models.load import load_model

    try:
        return load_model("embedded:smollm2-135m", dtype="float32", device="cpu")
    except ModelError as error:
        pytest.skip(f"no SmolLM2-135M weights here: {error}")


@pytest.fixture
def regrow(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs the command line in this process: exit code, standard output, standard error."""
    from regrow.cli.main import main

    def run(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        done = capfd.readouterr()
        return int(ended.value.code or 0), done.out, done.err

    return run
