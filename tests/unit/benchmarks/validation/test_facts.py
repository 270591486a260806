"""Facts: shipped ones are whole, wrong ones are refused by key."""

from __future__ import annotations

import pytest

from benchmarks.validation.facts import read_facts
from planner.cluster.gpu_types import HARDWARE
from planner.errors import InvalidMeasurements


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
        ("[]", "the whole is \\[\\], input should be a valid dictionary; it maps sets to model"),
        ("{", "cannot be read"),
        ("a: {gpu_type: h100}", "a.model is .*field required; .* each needs a model"),
        ("a: {model: gpt, colour: red}", "a.colour is 'red', extra inputs are not permitted"),
        ("a: {model: gpt, gpus_per_node: -1}", "gpus_per_node is -1, input should be greater than"),
        ("a: {model: gpt, precision: fp8}", "precision is 'fp8', input should be 'fp32', 'fp16'"),
        ("a: {model: bert}", "model is 'bert', input should be 'gpt', 'gpt-neo-2.7b-like' or"),
        ("a: gpt", "a is 'gpt', input should be a valid dictionary"),
        ("a: {model: gpt, gpus_per_node: four}", "'four', input should be a valid integer"),
    ],
)
def test_wrong_facts_are_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "facts.yaml"
    path.write_text(text)
    with pytest.raises(InvalidMeasurements, match=sentence) as caught:
        read_facts(path)
    assert "\n" not in str(caught.value)
