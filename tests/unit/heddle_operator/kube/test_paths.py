"""heddle_operator/kube/paths.py: a name is one segment of a path, or no name at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_operator.kube.paths import is_plain, object_path

MAPS = "/api/v1/namespaces/ns/configmaps"


def test_a_name_becomes_a_segment():
    assert (
        object_path("/api/v1/namespaces", "ns", "configmaps", "tiny-epoch-1")
        == f"{MAPS}/tiny-epoch-1"
    )
    assert object_path("/api/v1/nodes") == "/api/v1/nodes"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../kube-system/secrets/x", "%2e%2e"])
def test_what_would_leave_the_collection_is_no_name(name):
    with pytest.raises(ValueError, match="is no name of an object"):
        object_path(MAPS, name)


@given(st.text(max_size=20))
def test_whatever_a_name_holds_it_is_one_segment_without_a_query(name):
    try:
        path = object_path(MAPS, name)
    except ValueError:
        return
    assert is_plain(path)
    assert path.count("/") == MAPS.count("/") + 1
    assert not set(path) & set("?#\\ ")


@pytest.mark.parametrize(
    "path", ["/api/../x", "/a?b", "/a#b", "/a//b", "/a/%2E%2e/b", "a", "", "/./a"]
)
def test_a_path_that_leads_elsewhere_is_not_plain(path):
    assert not is_plain(path)
