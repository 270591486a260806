"""worker/weights/run_record.py: of two runs of one folder the first keeps it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from worker.weights import run_record
from worker.weights.run_record import RECORD, RunRecord, claim


def test_the_pods_of_one_job_share_a_folder_and_another_jobs_are_refused(tmp_path):
    for _ in range(2):
        assert claim(tmp_path, RunRecord(run="uid-1", job="tiny")) is None
    assert [path.name for path in tmp_path.iterdir()] == [RECORD]
    said = claim(tmp_path, RunRecord(run="uid-2", job="tiny"))
    assert said is not None
    assert all(word in said for word in (repr(str(tmp_path)), "tiny", "uid-1", "spec.output.path"))


def test_of_many_that_try_at_once_one_run_has_it(tmp_path):
    records = [RunRecord(run=f"uid-{number % 4}", job="tiny") for number in range(32)]
    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(lambda record: claim(tmp_path, record), records))
    owners = {record.run for record, sentence in zip(records, said, strict=True) if not sentence}
    assert len(owners) == 1


def test_an_empty_record_of_a_writer_that_died_is_taken_over_by_one_run(tmp_path, monkeypatch):
    monkeypatch.setattr(run_record, "WRITTEN_S", 0.1)
    (tmp_path / RECORD).touch()
    records = [RunRecord(run=f"uid-{number}", job="tiny") for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda record: claim(tmp_path, record), records))
    assert said.count(None) == 1
    owner = records[said.index(None)]
    assert RunRecord.of_text((tmp_path / RECORD).read_text(), tmp_path / RECORD) == owner


def test_a_file_system_without_links_is_no_hindrance(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    assert claim(tmp_path, RunRecord(run="uid-1", job="tiny")) is None
    assert claim(tmp_path, RunRecord(run="uid-2", job="tiny")) is not None


@pytest.mark.parametrize("text", ["[]", "{", '{"run": "a"}'])
def test_a_file_that_is_no_record_is_one_sentence(tmp_path, text):
    (tmp_path / RECORD).write_text(text)
    said = claim(tmp_path, RunRecord(run="uid", job="tiny"))
    assert "is not the record of a run; remove it if no run uses the folder" in said
