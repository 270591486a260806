"""Every whole HeddleJob that a document shows is one that the operator takes."""

import re
from pathlib import Path

import pytest
import yaml

from heddle_operator.apis.heddlejob import mistakes_of

DOCS = Path(__file__).parents[2] / "docs"
JOBS = [
    pytest.param(body, id=f"{page.name}-{body['metadata']['name']}")
    for page in sorted(DOCS.glob("*.md"))
    for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    if (body := yaml.safe_load(block))
    and isinstance(body, dict)
    and body.get("kind") == "HeddleJob"
]


def test_there_are_jobs():
    assert len(JOBS) >= 3


@pytest.mark.parametrize("job", JOBS)
def test_a_job_of_a_document_has_no_mistake(job):
    assert mistakes_of(job) == ()
