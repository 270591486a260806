"""Quantities as the API server stores them, held to the kubernetes client's own parser."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from heddle_operator.inventory.quantities import times, whole

SUFFIXES = ("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@pytest.mark.parametrize(
    ("quantity", "number"),
    [("8", 8), (8, 8), ("1k", 1000), ("2e3", 2000), ("4Ki", 4096), ("500m", 1), ("+3", 3),
     ("1E", 10**18), ("1.5Ki", 1536), ("-1", 0), (".5k", 500), ("0", 0), (1.5, 2), (8.0, 8)],
)  # fmt: skip
def test_every_form_of_a_quantity_is_read(quantity, number):
    assert whole(quantity) == number


ODD = (
    "",
    "x",
    "1kk",
    "1ki",
    "\u0663",
    "1e999999",
    "9" * 99,
    None,
    True,
    [],
    {},
    math.nan,
    math.inf,
)


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_quantity_counts_as_nothing(odd):
    assert whole(odd) == 0


@given(
    st.integers(0, 10**9),
    st.one_of(st.sampled_from(SUFFIXES), st.integers(-9, 18).map(lambda e: f"e{e}")),
)
def test_it_agrees_with_the_kubernetes_client(number, suffix):
    text = f"{number}{suffix}"
    assert whole(text) == math.ceil(parse_quantity(text))


@given(st.text(max_size=8))
def test_no_text_is_an_error(text):
    assert whole(text) >= 0


@pytest.mark.parametrize(
    ("quantity", "product"), [("500m", "1500m"), ("64Gi", "192Gi"), ("0.5", "1.5"), ("2e3", "6e3")]
)
def test_so_many_of_a_quantity_keep_its_unit(quantity, product):
    assert times(quantity, 3) == product


def test_what_is_no_quantity_is_said():
    with pytest.raises(ValueError, match="'much' is no quantity; write for example 8"):
        times("much", 2)
