"""Loading: every kind of source, and a sentence with a remedy for everything that is not a decoder in safe form."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from regrow.errors import ConfigError, ModelError
from regrow.models.embedded import EMBEDDED, find_embedded
from regrow.models.load import load_model
from regrow.models.placement import choose_device, choose_dtype
from tests.conftest import tiny_model, tiny_tokenizer


def refused(source: object, said: str, **options: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        load_model(str(source), **options)  # type: ignore[arg-type]
    assert caught.value.hint


def test_a_folder_loads_in_evaluation_mode_with_its_hash(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("qwen3")
    loaded = load_model(folder, device="cpu")
    assert not loaded.model.training and loaded.dtype == torch.float32
    assert loaded.weights_sha256 == load_model(folder, dtype="bfloat16", device="cpu").weights_sha256
    assert load_model(folder, dtype="bfloat16", device="cpu").dtype == torch.bfloat16
    assert loaded.facts is None


def test_paths_that_are_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "absent", "no model at")
    refused("./nowhere", "no model at")
    refused("", "no model at")
    refused("model.gguf", "no model at")


def test_a_name_that_cannot_be_a_hub_id() -> None:
    refused("bad name!", "neither a folder")


def test_a_hub_id_that_cannot_be_reached() -> None:
    # The tests run offline (HF_HUB_OFFLINE), so the hub's own error path is the real one.
    refused("some-organisation/some-model-that-is-not-cached", "hub")


def test_a_folder_without_config(tmp_path: Path) -> None:
    refused(tmp_path, "no config.json")


def test_a_broken_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    refused(tmp_path, "not readable JSON")
    (tmp_path / "config.json").write_text("[]")
    refused(tmp_path, "JSON object")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "not a causal language model"),
        (
            {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
            "encoder-dec",
        ),
    ],
)
def test_encoders_are_refused_before_any_weight_is_read(tmp_path: Path, config: dict, said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused(tmp_path, said)


def test_pickled_weights_are_never_read(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("llama")
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    refused(folder, "pickled")


def test_code_in_a_checkpoint_is_never_run(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_folder("llama")
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = "unheard-of"
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Config: ...\nclass Model: ...\n"
    )
    refused(folder, "cannot load")
    assert not (tmp_path / "ran").exists()


def test_missing_and_damaged_weights(tiny_folder: Callable[..., Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_folder("llama")
    whole = folder / "model.safetensors"
    keep = whole.read_bytes()
    state = load_file(whole)
    state.pop("model.layers.3.mlp.up_proj.weight")
    save_file(state, whole, metadata={"format": "pt"})
    refused(folder, "lacks 1 tensors")
    whole.write_bytes(keep[: len(keep) // 2])
    refused(folder, "damaged|cannot load")
    whole.unlink()
    refused(folder, "no \\*.safetensors")


def test_a_missing_tokenizer(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("llama")
    for file in [*folder.glob("token*"), *folder.glob("special*")]:
        file.unlink()
    refused(folder, "no tokenizer")


def test_a_file_that_is_not_gguf(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"x")
    refused(tmp_path / "weights.bin", "not a .gguf")
    (tmp_path / "weights.gguf").write_bytes(b"not a gguf file")
    refused(tmp_path / "weights.gguf", "not a GGUF")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    refused(tmp_path / "cut.gguf", "cannot be read as a GGUF")


def test_an_unknown_embedded_model_names_the_known_one() -> None:
    with pytest.raises(ConfigError) as caught:
        load_model("embedded:smolm2-135m")
    assert "did you mean 'smollm2-135m'" in (caught.value.hint or "")


def test_devices_and_dtypes_are_checked() -> None:
    for device in ("gpu", "cuda:99", "xpu"):
        with pytest.raises(ConfigError):
            choose_device(device)
    with pytest.raises(ConfigError, match="unknown dtype"):
        choose_dtype("float8", torch.device("cpu"), 1)
    assert choose_dtype("auto", torch.device("cpu"), 1_000_000) == torch.float32
    assert choose_dtype("auto", torch.device("cpu"), 10**14) == torch.bfloat16


@pytest.mark.slow
def test_the_embedded_model_is_the_known_file_and_speaks(smollm2: object, tmp_path: Path) -> None:
    from regrow.records.fingerprint import file_sha256

    file = find_embedded("embedded:smollm2-135m")
    assert file_sha256(file) == EMBEDDED["smollm2-135m"].sha256
    copy = tmp_path / "copy.gguf"
    shutil.copyfile(file, copy)
    loaded = load_model(copy, device="cpu", dtype="float32")
    assert loaded.weights_sha256 == smollm2.weights_sha256  # type: ignore[attr-defined]
    ids = loaded.tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.inference_mode():
        best = loaded.model(ids).logits[0, -1].argmax()
    assert loaded.tokenizer.decode(best).strip() == "Paris"


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra"])
@pytest.mark.parametrize("named", [True, False])
def test_an_encoder_in_a_decoders_clothes_is_found_out(kind: str, named: bool, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    from tests.conftest import tiny_tokenizer

    config = AutoConfig.for_model(
        kind,
        vocab_size=96,
        hidden_size=32,
        embedding_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        pad_token_id=0,
    )
    (AutoModelForCausalLM if named else AutoModelForMaskedLM).from_config(config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    if not named:
        bare = json.loads((tmp_path / "config.json").read_text())
        bare.pop("architectures")
        (tmp_path / "config.json").write_text(json.dumps(bare))
    refused(tmp_path, "causal|lacks")


def test_weights_that_are_not_numbers_are_named(tiny_folder: Callable[..., Path]) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_folder("llama")
    weights = load_file(folder / "model.safetensors")
    name = next(key for key in weights if "mlp" in key)
    weights[name][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, "hold NaN or infinity")


def test_more_blocks_in_the_file_than_in_the_config_are_noticed(tiny_folder: Callable[..., Path]) -> None:
    folder = tiny_folder("llama")
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 4
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, "holds weights of block 4")


def test_an_encoder_run_as_a_decoder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    from tests.conftest import tiny_tokenizer

    config = AutoConfig.for_model(
        "bert",
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        is_decoder=True,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    refused(tmp_path, "takes no token ids")


def test_numbers_that_overflow_name_the_block(tmp_path: Path) -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        for weight in model.model.layers[3].mlp.parameters():
            weight.mul_(1e22)
    model.save_pretrained(tmp_path / "huge")
    tiny_tokenizer().save_pretrained(tmp_path / "huge")
    with pytest.raises(ModelError, match="overflow in block 3") as caught:
        load_model(tmp_path / "huge", dtype="float32", device="cpu")
    assert "float32" not in str(caught.value.hint)
