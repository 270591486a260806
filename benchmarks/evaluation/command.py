"""`python -m benchmarks.evaluation`: how good the planner's methods are on a list of compositions.

Invariant: progress goes to stderr and only on a terminal; what is printed is the result.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import click

from benchmarks.evaluation.references import References
from benchmarks.evaluation.report import evaluation_text, to_json
from benchmarks.evaluation.run import EvaluationRequest, evaluate
from benchmarks.evaluation.trial import curve_budgets
from heddle.cli.options import A_FILE, MODEL_HELP, SHOWN, Finite, answer_options, effort_options
from heddle.cli.progress import progress_bar
from planner.api import POLICY_METHODS, require_policy_folder
from planner.cluster.composition import Composition
from planner.errors import Infeasible, InvalidPolicy, InvalidRequest, NoPolicy, PolicyMisfit
from planner.model.catalogue import find_model
from planner.model.shape import ModelShape
from planner.model.workload import usual_workload
from planner.policy.weights import find_policy
from planner.profiles.generator import find_profile
from planner.request import Method, PlanRequest
from planner.training.composition_sets import read_composition_file
from planner.training.compositions import range_for, training_compositions, usual_types
from planner.training.curriculum import curriculum_of
from planner.training.settings import TrainingSettings
from planner.wording import did_you_mean

METHODS = "policy,auto,search,columns,random"
REFERENCE_S = 30.0
CURVE_EVALUATIONS = 32768  # the paper's figure ends at 32,000


@click.command("evaluate", context_settings=SHOWN)
@click.option("--model", required=True, help=MODEL_HELP)
@click.option(
    "--compositions",
    "file",
    type=A_FILE,
    required=True,
    help="File with one composition a line; or paper, benchmark, hardware, demo.",
)
@click.option("--methods", default=METHODS, help="Methods of `heddle plan`, joined by commas.")
@click.option(
    "--reference-s",
    type=Finite(0),
    default=REFERENCE_S,
    help="Seconds of the long search that methods are compared with; 0 compares them with the best "
    "of themselves.",
)
@click.option(
    "--references",
    "kept",
    type=A_FILE,
    help="JSON file that keeps the best plans for the next run; it is made if there is none.",
)
@effort_options
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of the searches.")
@answer_options(picture="the best throughput found by number of evaluated plans")
@click.option(
    "--curve-evaluations",
    type=click.IntRange(0),
    help=f"Number of evaluated plans at which the curves end; 0 draws none.  "
    f"[default: {CURVE_EVALUATIONS} with --picture, else 0]",
)
def evaluate_command(
    model: str,
    file: Path,
    methods: str,
    reference_s: float,
    kept: Path | None,
    seed: int,
    profiles: Path | None,
    output: str,
    picture: Path | None,
    curve_evaluations: int | None,
    **effort: Any,
) -> None:
    """Measure the planner's methods on compositions, against the best plans known.

    A line of the file is a composition as `heddle plan --composition` takes it, then any of
    batch=N, name=LABEL and origin=stated|reconstructed|generated; `#` begins a comment.
    docs/evaluate.md tells it by example.
    """
    shape = find_model(model)
    workload = usual_workload(shape)
    listed, chosen = read_composition_file(file), read_methods(methods)
    if set(POLICY_METHODS) & set(chosen):
        require_policy_folder(effort["policy"])
    references = References.read(kept)
    references.save()  # what cannot be written is known before it is searched
    if curve_evaluations is None:
        curve_evaluations = CURVE_EVALUATIONS if picture is not None else 0
    asked = EvaluationRequest(
        question=PlanRequest(
            workload=workload, composition=listed[0].composition, seed=seed, **effort
        ),
        listed=listed,
        methods=chosen,
        training=trained_on(shape, effort["policy"]),
        reference_s=reference_s,
        curves=curve_budgets(curve_evaluations),
    )
    profile = find_profile(workload, profiles)
    with progress_bar() as bar:
        task = bar.add_task("", total=asked.steps, completed=-1)  # told before each step

        def say(what: str) -> None:
            bar.update(task, description=what, advance=1)

        rows = evaluate(asked, profile, references, say)
    if output == "json":
        click.echo(json.dumps(to_json(rows, asked, profile), indent=2))
    else:
        click.echo(evaluation_text(rows, asked))
    if picture is not None:  # last: what took so long is printed whatever becomes of it
        from benchmarks.evaluation.picture import draw_curves

        draw_curves(picture, rows, shape.name)
    trials = [trial for row in rows for trial in row.trials]
    if not any(trial.plan for trial in trials):
        raise Infeasible(f"no method planned any composition; the first: {trials[0].note}")


def trained_on(shape: ModelShape, policy: Path | None) -> tuple[Composition, ...]:
    """The compositions that a policy was trained on; without one, the standard set of its types.

    None where this version of Heddle generates others than the policy's card names.
    """
    try:
        card = find_policy(shape.name, policy).card
    except (NoPolicy, InvalidPolicy, PolicyMisfit):
        types = usual_types(shape.name)
        return training_compositions(types, 0, range_for(types, shape.name))
    settings = TrainingSettings(compositions=card.num_compositions)
    curriculum = curriculum_of(find_model(card.model), card.types, settings)
    if curriculum.digest != card.training_set:
        return ()
    return tuple(question.composition for question in curriculum.training)


def read_methods(text: str) -> tuple[Method, ...]:
    """The methods that a text names, joined by commas, each once.

    Raises:
        InvalidRequest: one is unknown, or there is none.
    """
    known: dict[str, Method] = {method: method for method in get_args(Method)}
    names = [name for name in (part.strip() for part in text.split(",")) if name]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        found = "--methods names no method"
        if unknown:
            found = f"the method {unknown[0]!r} is unknown{did_you_mean(unknown[0], known)}"
        raise InvalidRequest(f"{found}; there are {', '.join(known)}")
    return tuple(dict.fromkeys(known[name] for name in names))
