"""checkpoint/vaults/open_vault.py: a folder is a vault; a scheme without a vault is refused."""

from __future__ import annotations

import pytest

from worker.checkpoint.vaults.open_vault import folder_of, open_vault
from worker.checkpoint.vaults.vault import VaultFailed


@pytest.mark.parametrize("form", ["{}", "file://{}", "FILE://{}"])
def test_a_folder_has_a_path_or_a_url(tmp_path, form):
    open_vault(form.format(tmp_path / "a")).put("b/c", [b"x"], 1)
    assert (tmp_path / "a" / "b" / "c").read_bytes() == b"x"


def test_a_url_may_escape_letters_and_a_path_is_taken_as_it_is(tmp_path):
    assert folder_of(f"file://{tmp_path}/a%20b") == tmp_path / "a b"
    assert folder_of(f"{tmp_path}/a%20b") == tmp_path / "a%20b"


@pytest.mark.parametrize("scheme", ["gs", "az", "http", "", "file"])
def test_another_scheme_is_refused_by_its_name_and_nothing_else_of_it_is_said(scheme):
    with pytest.raises(VaultFailed) as refusal:
        open_vault(f"{scheme}://name:word@host/folder")
    assert refusal.value.code == "scheme"
    assert f"{scheme}://" in str(refusal.value)
    assert "word" not in str(refusal.value)


@pytest.mark.parametrize("path", ["", " "])
def test_an_empty_path_is_not_the_folder_of_the_process(path):
    with pytest.raises(VaultFailed) as refusal:
        open_vault(path)
    assert refusal.value.code == "name"
