"""Bridges: identity, gradients, caches, copies, PEFT, saving, and refusal by every program that does not know them."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from regrow.errors import ModelError
from regrow.models.bridged_config import MODEL_TYPE, write_bridged_config
from regrow.models.bridges import (
    AffineBridge,
    ScalingBridge,
    attach_bridge,
    bridge_from,
    bridges_of,
    describe_bridges,
    detach_bridges,
)
from regrow.models.capture import observe_streams
from regrow.models.families import blocks_of
from regrow.models.load import LoadedModel, load_model
from regrow.models.save import save_checkpoint
from regrow.records.checkpoint import CheckpointFacts
from regrow.surgery import remove_blocks
from tests.conftest import tiny_model, tiny_tokenizer

FAMILIES = ["llama", "qwen3", "gemma3", "olmo2", "smollm3", "gpt_neox", "gpt2", "qwen2_moe"]
WIDTH = 32


def random_bridge(seed: int = 0, **options: Any) -> AffineBridge:
    bridge = AffineBridge(WIDTH, **options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in bridge.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
    return bridge


def bridged(family: str = "llama") -> Any:
    model = tiny_model(family)
    attach_bridge(model, -1, random_bridge(1, rank=4))
    attach_bridge(model, 2, random_bridge(2))
    attach_bridge(model, 5, random_bridge(3, bias=False))
    return model


def probe(rows: int = 2, tokens: int = 11) -> torch.Tensor:
    return torch.randint(3, 96, (rows, tokens), generator=torch.Generator().manual_seed(5))


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300)


class TestOperators:
    def test_affine_is_the_formula(self) -> None:
        bridge = random_bridge(7)
        h = torch.randn(2, 3, WIDTH)
        assert torch.allclose(bridge(h), h + h @ bridge.weight + bridge.bias)

    def test_low_rank_equals_its_product(self) -> None:
        low, full = random_bridge(7, rank=5), AffineBridge(WIDTH)
        with torch.no_grad():
            full.weight.copy_(low.down @ low.up)
            full.bias.copy_(low.bias)
        h = torch.randn(4, WIDTH)
        assert torch.allclose(low(h), full(h), atol=1e-5)

    def test_without_residual_starts_as_identity(self) -> None:
        h = torch.randn(4, WIDTH)
        assert torch.equal(AffineBridge(WIDTH, residual=False)(h), h)

    @pytest.mark.parametrize("rank", [0, -1, WIDTH + 1])
    def test_rank_outside_the_width_is_refused(self, rank: int) -> None:
        with pytest.raises(ModelError, match="rank") as caught:
            AffineBridge(WIDTH, rank=rank)
        assert f"1 to {WIDTH}" in str(caught.value.hint)

    def test_the_stream_keeps_its_dtype(self) -> None:
        h = torch.randn(3, WIDTH).to(torch.bfloat16)
        assert random_bridge(1)(h).dtype == torch.bfloat16

    def test_published_counts_at_width_4096(self) -> None:
        with torch.device("meta"):
            full, low = AffineBridge(4096), AffineBridge(4096, rank=64, bias=False)
        assert full.parameter_count == 16_781_312
        assert round(full.parameter_count / 218_112_000, 4) == 0.0769
        assert low.parameter_count == 524_288
        assert low.flops_per_token == 1_048_576

    def test_description_builds_a_twin(self) -> None:
        for bridge in (random_bridge(1, rank=3), random_bridge(1, bias=False, residual=False), ScalingBridge(WIDTH)):
            twin = bridge_from(bridge.description())
            twin.load_state_dict(bridge.state_dict())
            h = torch.randn(3, WIDTH)
            assert torch.equal(twin(h), bridge(h))

    def test_unknown_kind_is_refused(self) -> None:
        with pytest.raises(ModelError, match="kind 'warp'"):
            bridge_from({"kind": "warp", "width": 4})


class TestAttaching:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_identity_bridges_change_no_logit(self, family: str) -> None:
        model = tiny_model(family)
        before = model(probe()).logits
        for place in (-1, 2, 5):
            attach_bridge(model, place, AffineBridge(WIDTH))
        assert torch.equal(model(probe()).logits, before)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_it_acts_exactly_at_its_place(self, family: str) -> None:
        model = tiny_model(family)
        plain: dict[int, torch.Tensor] = {}
        with observe_streams(model, lambda index, h: plain.__setitem__(index, h.clone())):
            model(probe())
        bridge = random_bridge(4)
        attach_bridge(model, 2, bridge)
        seen: dict[int, torch.Tensor] = {}
        with observe_streams(model, lambda index, h: seen.__setitem__(index, h.clone())):
            model(probe())
        assert all(torch.equal(seen[index], plain[index]) for index in (0, 1, 2))
        assert torch.allclose(seen[3], bridge(plain[3]), atol=1e-6)

    def test_entry_and_exit_bridges_reach_the_observer(self) -> None:
        model = tiny_model("llama")
        plain: dict[int, torch.Tensor] = {}
        with observe_streams(model, lambda index, h: plain.__setitem__(index, h.clone())):
            model(probe())
        entry, leave = random_bridge(4), random_bridge(5)
        attach_bridge(model, 5, leave)
        seen: dict[int, torch.Tensor] = {}
        with observe_streams(model, lambda index, h: seen.__setitem__(index, h.clone())):
            model(probe())
        assert torch.allclose(seen[6], leave(plain[6]), atol=1e-5)
        attach_bridge(model, -1, entry)
        with observe_streams(model, lambda index, h: seen.__setitem__(index, h.clone())):
            model(probe())
        assert torch.allclose(seen[0], entry(plain[0]), atol=1e-6)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_cached_generation_equals_uncached(self, family: str) -> None:
        model = bridged(family)
        options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones(2, 11)}
        assert torch.equal(model.generate(probe(), **options), model.generate(probe(), use_cache=False, **options))

    def test_batched_generation_equals_single_rows(self) -> None:
        model = bridged()
        ids = probe(2)
        ids[0, :4] = 0
        mask = (ids != 0).long()
        both = model.generate(ids, attention_mask=mask, max_new_tokens=6, min_new_tokens=6, do_sample=False)
        alone = model.generate(ids[:1, 4:], max_new_tokens=6, min_new_tokens=6, do_sample=False)
        assert torch.equal(both[0, 11:], alone[0, 7:])

    def test_a_copy_is_independent(self) -> None:
        model = bridged()
        before = model(probe()).logits
        twin = copy.deepcopy(model)
        assert torch.equal(twin(probe()).logits, before)
        with torch.no_grad():
            for entry in bridges_of(twin):
                for weight in entry.bridge.parameters():
                    weight.zero_()
        assert torch.equal(model(probe()).logits, before)
        assert torch.allclose(twin(probe()).logits, tiny_model("llama")(probe()).logits, atol=1e-5)
        detach_bridges(twin)
        assert torch.equal(twin(probe()).logits, tiny_model("llama")(probe()).logits)
        assert len(bridges_of(model)) == 3

    def test_detaching_gives_the_plain_model_back(self, tmp_path: Path) -> None:
        model = bridged()
        taken = detach_bridges(model)
        assert [entry.after_block for entry in taken] == [-1, 2, 5]
        assert type(model) is type(tiny_model("llama"))
        assert torch.equal(model(probe()).logits, tiny_model("llama")(probe()).logits)
        model.save_pretrained(tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"

    def test_gradient_checkpointing_gives_the_same_gradients(self) -> None:
        gradients = []
        for checkpointing in (False, True):
            model = bridged().train()
            if checkpointing:
                model.gradient_checkpointing_enable()
            ids = probe()
            model(ids, labels=ids).loss.backward()
            gradients.append([weight.grad for entry in bridges_of(model) for weight in entry.bridge.parameters()])
        assert all(found is not None and found.abs().sum() > 0 for found in gradients[0])
        assert all(torch.allclose(one, two, atol=1e-6) for one, two in zip(*gradients, strict=True))

    def test_bridges_take_dtype_of_the_block(self) -> None:
        model = tiny_model("llama").to(torch.bfloat16)
        attach_bridge(model, 2, random_bridge(1))
        assert bridges_of(model)[0].bridge.weight.dtype == torch.bfloat16
        assert model(probe()).logits.dtype == torch.bfloat16
        assert bridges_of(model.float())[0].bridge.weight.dtype == torch.float32

    def test_nonsense_is_refused(self) -> None:
        model = tiny_model("llama")
        for place in (-2, 6):
            with pytest.raises(ModelError, match="6 blocks"):
                attach_bridge(model, place, AffineBridge(WIDTH))
        with pytest.raises(ModelError, match="width 16"):
            attach_bridge(model, 1, AffineBridge(16))
        attach_bridge(model, 1, AffineBridge(WIDTH))
        with pytest.raises(ModelError, match="already"):
            attach_bridge(model, 1, AffineBridge(WIDTH))

    def test_blocks_keep_their_bridges_through_surgery(self) -> None:
        model = bridged()
        remove_blocks(model, [1, 3])
        assert [entry.after_block for entry in bridges_of(model)] == [-1, 1, 3]


class TestPeft:
    def test_lora_leaves_bridges_alone_and_merges(self) -> None:
        from peft import LoraConfig, get_peft_model

        model = bridged()
        before = model(probe()).logits.detach()
        wrapped = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
        trained = [name for name, weight in wrapped.named_parameters() if weight.requires_grad]
        assert trained and not any("bridge" in name for name in trained)
        changed = wrapped.eval()(probe()).logits.detach()
        assert not torch.allclose(changed, before, atol=1e-2)
        merged = wrapped.merge_and_unload()
        assert torch.allclose(merged(probe()).logits, changed, atol=1e-3)
        assert len(bridges_of(merged)) == 3

    def test_bridges_can_train_beside_lora(self, tmp_path: Path) -> None:
        from peft import LoraConfig, get_peft_model

        model = bridged()
        wrapped = get_peft_model(
            model, LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["exit_bridge", "entry_bridge"])
        )
        assert any("bridge" in name for name, weight in wrapped.named_parameters() if weight.requires_grad)
        ids = probe()
        optimiser = torch.optim.SGD([w for w in wrapped.parameters() if w.requires_grad], lr=1.0)
        wrapped(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        trained = wrapped.eval()(input_ids=ids).logits.detach()
        assert len(bridges_of(wrapped.base_model.model)) == 3
        merged = wrapped.merge_and_unload()
        assert torch.allclose(merged(ids).logits, trained, atol=1e-4)
        merged.save_pretrained(tmp_path)
        assert torch.allclose(load_back(tmp_path)(ids).logits, trained, atol=1e-4)


def load_back(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


class TestSaving:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_round_trip_through_transformers(self, family: str, tmp_path: Path) -> None:
        model = bridged(family)
        model.save_pretrained(tmp_path)
        again = load_back(tmp_path)
        assert isinstance(again, type(tiny_model(family)))
        assert torch.equal(again(probe()).logits, model(probe()).logits)
        assert describe_bridges(again) == describe_bridges(model)
        again.save_pretrained(tmp_path / "second")
        assert (tmp_path / "second" / "config.json").read_text() == (tmp_path / "config.json").read_text()

    def test_round_trip_through_regrow(self, tmp_path: Path) -> None:
        model = bridged()
        loaded = LoadedModel(model, tiny_tokenizer(), "tiny")
        save_checkpoint(loaded, tmp_path / "out", CheckpointFacts(source="tiny", unpruned_blocks=8))
        again = load_model(tmp_path / "out", dtype="float32", device="cpu")
        assert torch.equal(again.model(probe()).logits, model(probe()).logits)
        text = "Bridges, 2 of them."
        assert again.tokenizer(text)["input_ids"] == tiny_tokenizer()(text)["input_ids"]

    def test_sharded_and_half_precision(self, tmp_path: Path) -> None:
        from transformers import AutoModelForCausalLM

        model = bridged()
        model.save_pretrained(tmp_path, max_shard_size="20KB")
        assert len(list(tmp_path.glob("*.safetensors"))) > 1
        assert torch.equal(load_back(tmp_path)(probe()).logits, model(probe()).logits)
        half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
        assert all(weight.dtype == torch.bfloat16 for weight in half.parameters())
        assert bridges_of(half)

    def test_the_backbone_alone(self, tmp_path: Path) -> None:
        from transformers import AutoModel

        model = bridged()
        model.save_pretrained(tmp_path)
        backbone = AutoModel.from_pretrained(tmp_path)
        assert torch.equal(backbone(probe()).last_hidden_state, model.model(probe()).last_hidden_state)

    def test_options_reach_the_real_config(self, tmp_path: Path) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        bridged().save_pretrained(tmp_path)
        model = AutoModelForCausalLM.from_pretrained(tmp_path, use_cache=False, attn_implementation="eager")
        assert model.config.use_cache is False and model.config._attn_implementation == "eager"
        config = AutoConfig.from_pretrained(tmp_path)
        assert (config.model_type, config.hidden_size, config.num_hidden_layers) == (MODEL_TYPE, WIDTH, 6)

    def test_writing_twice_changes_nothing(self, tmp_path: Path) -> None:
        model = bridged()
        model.save_pretrained(tmp_path)
        before = (tmp_path / "config.json").read_bytes()
        write_bridged_config(tmp_path, model)
        assert (tmp_path / "config.json").read_bytes() == before

    def test_absent_bridge_weights_are_refused(self, tmp_path: Path) -> None:
        from safetensors.torch import load_file, save_file

        bridged().save_pretrained(tmp_path)
        file = tmp_path / "model.safetensors"
        weights = {name: weight for name, weight in load_file(file).items() if "exit_bridge" not in name}
        save_file(weights, file, metadata={"format": "pt"})
        with pytest.raises(ModelError, match="bridges"):
            load_back(tmp_path)

    def test_a_newer_format_is_refused(self, tmp_path: Path) -> None:
        bridged().save_pretrained(tmp_path)
        file = tmp_path / "config.json"
        content = json.loads(file.read_text())
        content["regrow"]["format"] = 99
        file.write_text(json.dumps(content))
        with pytest.raises(ModelError, match="99"):
            load_back(tmp_path)

    def test_pushing_while_saving_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="pushed"):
            bridged().save_pretrained(tmp_path, push_to_hub=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bridged")
    bridged().save_pretrained(made)
    tiny_tokenizer().save_pretrained(made)
    return made


class TestOtherProcesses:
    """Each in a new interpreter, because registration is per process."""

    def test_without_regrow_the_load_fails_and_the_tokenizer_alone_still_loads(self, folder: Path) -> None:
        code = """
import json, sys, traceback, transformers
said = {}
for name in ("AutoModelForCausalLM", "LlamaForCausalLM", "AutoModel", "LlamaModel", "AutoConfig"):
    try:
        getattr(transformers, name).from_pretrained(sys.argv[1])
        said[name] = "loaded"
    except Exception:
        said[name] = traceback.format_exc()
assert "regrow" not in sys.modules
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
print(json.dumps([said, tokenizer("ab")["input_ids"]]))
"""
        done = run_python(code, str(folder))
        assert done.returncode == 0, done.stderr
        said, ids = json.loads(done.stdout)
        assert len(said) == 5 and all(text.startswith("Traceback") and "regrow" in text for text in said.values()), said
        assert ids == tiny_tokenizer()("ab")["input_ids"]

    @pytest.mark.parametrize(
        "imports",
        [
            "import regrow\nfrom transformers import AutoModelForCausalLM",
            "from transformers import AutoModelForCausalLM\nimport regrow",
            "from transformers import AutoConfig\nimport regrow\nfrom transformers import AutoModelForCausalLM",
            "import transformers\nimport regrow\nAutoModelForCausalLM = transformers.AutoModelForCausalLM",
        ],
        ids=["regrow-first", "transformers-first", "in-between", "lazy"],
    )
    def test_with_regrow_in_any_order(self, folder: Path, imports: str) -> None:
        code = f"""
import sys
{imports}
import inspect, torch
from transformers.models.auto import modeling_auto as watched
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
ids = torch.randint(3, 96, (2, 11), generator=torch.Generator().manual_seed(5))
torch.save(model(ids).logits, sys.argv[2])
print(type(model).__module__, type(model).__name__)
print(type(watched.__spec__.loader).__name__, type(watched.__loader__).__name__, len(inspect.getsource(watched)) > 1000)
"""
        target = folder / "logits.pt"
        done = run_python(code, str(folder), str(target))
        assert done.returncode == 0, done.stderr
        name, trace = done.stdout.splitlines()
        assert name == "transformers.models.llama.modeling_llama LlamaForCausalLM"
        assert trace == "SourceFileLoader SourceFileLoader True"  # the watcher leaves none
        assert torch.equal(torch.load(target), bridged()(probe()).logits)

    def test_importing_regrow_imports_nothing_heavy(self) -> None:
        code = "import sys, regrow; print({m.split('.')[0] for m in sys.modules} & {'torch', 'transformers', 'numpy'})"
        assert run_python(code).stdout.strip() == "set()"


def test_pruned_then_bridged_then_reloaded(tmp_path: Path) -> None:
    model = tiny_model("qwen3")
    remove_blocks(model, [2, 3])
    attach_bridge(model, 1, random_bridge(8))
    model.save_pretrained(tmp_path)
    again = load_back(tmp_path)
    assert len(blocks_of(again)) == 4
    assert torch.equal(again(probe()).logits, model(probe()).logits)
