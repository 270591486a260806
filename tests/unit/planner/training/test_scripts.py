"""Scripts: what they were in a file, and what becomes of one that cannot be repeated."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from planner.policy.environment import Choice, Constructions
from planner.policy.rollouts import play
from planner.training.scripts import ScriptedChooser, script_from, script_of, templates_from
from planner.training.torch_network import as_network, initial_weights

SCRIPT = (Choice(2, ((0, 0), (0, 1)), (3, 1, 0, 2)), Choice(1, ((1, 0),)))


def test_a_script_survives_its_file():
    assert script_of(json.loads(json.dumps(SCRIPT))) == SCRIPT


def test_templates_of_a_script_are_those_it_was_made_from(curriculum):
    environment = curriculum.environment(curriculum.training[0])
    options = len(environment.menu.tp)
    templates = (tuple(range(options)), (options - 1, 0))
    assert templates_from(environment, script_from(environment, templates)) == templates


def test_a_choice_of_the_fill_that_is_impossible_is_marked_and_another_is_taken(curriculum):
    schema = replace(curriculum.schema, learns_fill=True)
    environment = replace(curriculum, schema=schema).environment(curriculum.training[0])
    network = as_network(initial_weights(schema, 0), uses_film=True)
    layers = environment.menu.layers
    scripts = tuple(
        (Choice(1, ((0, 0),), fill),) for fill in ((layers - 1, 0, 0), (0, 0, 0), (layers - 1,))
    )
    constructions = Constructions([environment], len(scripts))
    chooser = ScriptedChooser(network, constructions, scripts)
    play(constructions, chooser)
    assert chooser.went_wrong.tolist() == [False, True, True]
    for one in chooser.records().fill:
        assert one.mask[np.arange(len(one.choice)), one.choice].all()
        assert (one.mask.sum(axis=1) > 1).all()
