"""Facts: shipped ones are whole, wrong ones are refused by key."""

from __future__ import annotations

import pytest

from planner.cluster.gpu_types import HARDWARE
from planner.errors import InvalidMeasurements
from planner.validation.facts import read_facts


def test_shipped_facts_say_what_rows_do_not():
    facts = read_facts()["vtrain/a100_multi_node.csv"]
    assert (facts.gpu_type, facts.gpus_per_node, facts.recompute) == ("a100-80", 8, "full")
    gpu = facts.gpu("a100-80", HARDWARE)
    assert gpu.node_nic.bandwidth_bytes_per_s == 100e9 * gpu.nic_efficiency
    assert gpu.node_gpus == 8
    assert read_facts()["sailor/validation_measured/mit"].priced_precision == "fp32"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "must hold a mapping"),
        ("{", "cannot be read"),
        ("a: {gpu_type: h100}", "at least the key 'model'"),
        ("a: {model: gpt, colour: red}", "the key 'colour' is unknown; known are model"),
        ("a: {model: gpt, gpus_per_node: -1}", "gpus_per_node is -1; it should be greater than"),
        ("a: {model: gpt, precision: fp8}", "precision is 'fp8'; it should be 'fp32', 'fp16'"),
        ("a: {model: bert}", "model is 'bert'; it should be 'gpt', 'gpt-neo-2.7b-like' or"),
        ("a: gpt", "expected a mapping with at least the key 'model'"),
        (
            "a: {model: gpt, gpus_per_node: four}",
            "gpus_per_node is 'four'; it should be a valid integer",
        ),
    ],
)
def test_wrong_facts_are_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "facts.yaml"
    path.write_text(text)
    with pytest.raises(InvalidMeasurements, match=sentence) as caught:
        read_facts(path)
    assert "\n" not in str(caught.value)
