"""Templates that differ in nothing but the nodes that they stand on are one.

To the search nodes of each size are a type of their own, so that it finds a template once for each.
Invariant: every replica keeps its stages, its micro-batches and its GPUs, and replicas keep their
order.
Source: Heddle, section 5.3 (a plan is a set of templates with replica counts).
"""

from __future__ import annotations

from dataclasses import replace

from planner.plans.plan import FilledTemplate, Plan


def joined(plan: Plan) -> Plan:
    """The plan with neighbouring templates that are alike as one.

    Where experts are spread, templates stay apart: replicas of one template share them.
    """
    templates: list[FilledTemplate] = []
    moved: list[tuple[int, int]] = []  # by template: its new number, and replicas before its own
    for template in plan.templates:
        if templates and _are_alike(templates[-1], template):
            last = templates[-1]
            moved.append((len(templates) - 1, last.replicas))
            shares = last.micro_batches + template.micro_batches
            templates[-1] = replace(last, micro_batches=shares)
        else:
            moved.append((len(templates), 0))
            templates.append(template)
    if len(templates) == len(plan.templates):
        return plan
    placement = (
        replace(one, template=number, replica=before + one.replica)
        for one in plan.placement
        for number, before in [moved[one.template]]
    )
    return Plan(tuple(templates), tuple(placement))


def _are_alike(one: FilledTemplate, other: FilledTemplate) -> bool:
    are_equal = one.stages == other.stages and one.micro_batch == other.micro_batch
    return are_equal and not one.is_tiled
