"""worker/data/digest.py: equal samples give equal digests wherever they lie; labels count."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.worker.data.texts import of, write_pair
from worker.data.digest import data_digest
from worker.errors import InvalidDataset

DOCUMENTS = [[1, 2, 3, 4], [5, 6]]
WITHOUT_MASK = "0876d5d3c701ce3adadedb1c773fd32d"  # checkpoints of earlier versions hold it


def digest(folder, mask=None, documents=DOCUMENTS):
    folder.mkdir(exist_ok=True)
    return data_digest(of(write_pair(folder / "text", documents, mask=mask)))


def test_without_a_mask_it_is_that_of_earlier_versions_in_any_folder(tmp_path):
    assert digest(tmp_path / "a") == digest(tmp_path / "b") == WITHOUT_MASK


def test_it_tells_masks_apart(tmp_path):
    masks = [None, [0, 1, 1, 1, 0, 1], [0, 0, 1, 1, 0, 1]]
    assert len({digest(tmp_path / str(n), mask) for n, mask in enumerate(masks)}) == 3
    assert digest(tmp_path / "again", masks[1]) == digest(tmp_path / "1", masks[1])


def test_it_tells_tokens_apart(tmp_path):
    assert digest(tmp_path / "a") != digest(tmp_path / "b", documents=[[1, 2, 3, 4], [5, 7]])


@pytest.mark.parametrize("suffix", [".idx", ".bin"])
def test_a_file_that_is_gone_is_named(tmp_path, suffix):
    prefix = write_pair(tmp_path / "text", DOCUMENTS)
    Path(f"{prefix}{suffix}").unlink()
    with pytest.raises(InvalidDataset, match=rf"text\{suffix} cannot be read"):
        data_digest(of(prefix))
