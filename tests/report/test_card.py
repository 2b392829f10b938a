import pytest
import yaml
from huggingface_hub import ModelCard

from regrow.records.checkpoint import BridgeFacts, CheckpointFacts, Step
from regrow.report.card import hub_id, model_card
from regrow.report.tables import main_table
from tests.report.sample_runs import all_stages, record_of


def facts(**changes):
    given = {
        "source": "example/Synthetic-135M-Instruct",
        "source_weights_sha256": "ab" * 32,
        "architecture": "LlamaForCausalLM",
        "unpruned_blocks": 30,
        "removed_blocks": (13, 14),
        "healing_tokens": 61_000,
        "steps": (
            Step(
                kind="heal",
                options={"pruned": "/work-of-mine/pruned", "tokens": 61_000},
                outcome={"note": "``` | \n"},
                provenance=record_of("healed").provenance,
            ),
        ),
    }
    return CheckpointFacts(**{**given, **changes})


def test_front_matter_is_what_the_hub_reads():
    card = ModelCard(model_card(facts(), license="apache-2.0", table=main_table(all_stages())))
    assert card.data.base_model == "example/Synthetic-135M-Instruct"
    front = card.data.to_dict()
    assert front["library_name"] == "transformers" and front["license"] == "apache-2.0"
    assert {"regrow", "depth-pruning", "healed"} <= set(card.data.tags)
    assert "| Math | 30% (20–43) |" in card.text
    assert "Removing blocks 13 and 14 of 30 broke" in card.text


def test_a_bridge_needs_regrow():
    bridge = BridgeFacts(after_block=12, method="lra", spans=(13, 14), parameters=332_352)
    text = model_card(facts(bridges=(bridge,)))
    assert yaml.safe_load(text.split("---")[1])["library_name"] == "regrow"
    assert "load_model(" in text and "332,352" in text and "from_pretrained" not in text


def test_nobodys_folders_are_published():
    text = model_card(facts(source="/models-of-mine/mine"))
    assert "models-of-mine" not in text and "base_model" not in text
    assert '"pruned": "pruned"' in text


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("org/name", "org/name"),
        ("embedded:smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("./org/name", ""),
        ("models/a.gguf", ""),
        ("/a/b", ""),
        ("plain", ""),
    ],
)
def test_hub_ids(source, found):
    assert hub_id(source) == found
