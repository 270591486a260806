"""heddle/cli/findings.py: a table shows values as they are, in words and with units of people."""

from __future__ import annotations

import json

from heddle.cli.findings import findings_table, print_findings


def test_a_path_in_brackets_is_no_markup():
    table = findings_table({"folder": "run[bold]1", "files": ["a[/b]", ":car:"]})
    assert table.splitlines() == ["folder  run[bold]1", "files   a[/b]", "        :car:"]


def test_people_read_yes_and_no_and_programs_true_and_false(capsys):
    about = {"is_whole": True, "is_best": False, "loss": None, "removed": []}
    assert findings_table(about).splitlines() == ["is whole  yes", "is best   no"]
    print_findings(about, "json")
    assert json.loads(capsys.readouterr().out) == about


def test_large_numbers_have_commas_and_no_row_ends_in_blanks():
    rows = findings_table({"bytes": 3519424, "boxes": 1368, "step": 26}).splitlines()
    assert rows == ["bytes  3,519,424", "boxes  1,368", "step   26"]
