"""Which directives an agent accepts."""

import pytest

from planner.plans.plan import FilledTemplate, PlacedStage, Plan, Stage
from worker.agent.admission import Refused, admit, advances, read_directive
from worker.contract import Directive

TRAINING = {
    "model": "tiny-llama",
    "data": "text",
    "global_batch": 4,
    "sequence_length": 32,
    "steps": 10,
}


def plan(node: str = "a") -> Plan:
    template = FilledTemplate((Stage(gpu_type="demo-fast", tp=2, layers=6),), 2, (2,))
    return Plan((template,), (PlacedStage(0, 0, 0, node, (0, 1)),))


def body(**changes: object) -> dict:
    members = [
        {"pod": "tiny-a-0", "slot": slot, "node": "a", "gpu": slot, "rank": slot, "holds": None}
        for slot in (0, 1)
    ]
    return {
        "job": "tiny",
        "epoch": 2,
        "phase": "prepare",
        "reason": "start",
        "plan": plan().to_json(),
        "plan_digest": plan().digest,
        "members": members,
        "store": "127.0.0.1:1",
        "training": TRAINING,
        **changes,
    }


def directive(**changes: object) -> Directive:
    found = read_directive(body(**changes))
    assert isinstance(found, Directive), found
    return found


def test_a_good_directive_is_read() -> None:
    assert directive().epoch == 2


def test_what_a_newer_operator_adds_is_left_out() -> None:
    newer = directive(contract=99, surprise=1, training={**TRAINING, "later": {}})
    assert newer.model_copy(update={"contract": directive().contract}) == directive()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        pytest.param([], "a directive is a JSON object, found a list", id="not-an-object"),
        pytest.param({}, "job: Field required", id="empty"),
        pytest.param(body(plan={"templates": []}), "this is not a plan", id="not-a-plan"),
        pytest.param(body(plan_digest="0" * 16), "the plan's own is", id="wrong-digest"),
        pytest.param(body(members=[]), "the plan has ranks 0 to 1", id="no-members"),
        pytest.param(
            body(training={**TRAINING, "global_batch": 5}),
            "train 4 samples a step, the global batch is 5",
            id="does-not-tile",
        ),
        pytest.param(
            body(training={**TRAINING, "model": "gpt-9"}),
            "model 'gpt-9' is unknown",
            id="unknown-model",
        ),
        pytest.param(
            body(plan=plan("b").to_json(), plan_digest=plan("b").digest),
            "placed on GPU 0 of 'b', its member is GPU 0 of 'a'",
            id="member-on-another-node",
        ),
        pytest.param(
            body(members=[{**m, "holds": 1} for m in body()["members"]]),
            "members hold layouts of epochs [1], which `layouts` lacks",
            id="layout-missing",
        ),
    ],
)
def test_what_is_wrong_with_a_body_is_said_in_one_sentence(content: object, sentence: str) -> None:
    found = read_directive(content)
    assert isinstance(found, Refused)
    assert found.status == 400
    assert sentence in found.sentence
    assert "\n" not in found.sentence


@pytest.mark.parametrize(
    ("current", "changes", "status"),
    [
        pytest.param(None, {}, None, id="first"),
        pytest.param({}, {}, None, id="again"),
        pytest.param({}, {"epoch": 3}, None, id="newer"),
        pytest.param({}, {"epoch": 1}, 409, id="older"),
        pytest.param({"plan_digest": "f" * 16}, {}, 409, id="same-epoch-other-plan"),
        pytest.param({"phase": "abort"}, {}, 409, id="after-abort"),
        pytest.param({"phase": "switch"}, {}, None, id="prepare-after-switch-changes-nothing"),
        pytest.param({}, {"job": "other"}, 409, id="other-job"),
    ],
)
def test_an_epoch_only_grows_and_keeps_its_plan(
    current: dict | None, changes: dict, status: int | None
) -> None:
    following = None if current is None else directive().model_copy(update=current)
    found = admit(following, directive(**changes), "tiny")
    assert (found.status if found else None) == status


def test_an_older_phase_of_the_same_epoch_says_nothing_new() -> None:
    assert advances(None, directive())
    assert not advances(directive(), directive())
    assert advances(directive(), directive(phase="switch"))
    assert not advances(directive(phase="switch"), directive())
    assert advances(directive(), directive(store="127.0.0.1:2"))
