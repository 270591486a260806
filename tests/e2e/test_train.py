"""`heddle train` end to end: this machine's own processor, a move to a node that joins, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from heddle.local.processes import processes_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
HEDDLE = str(Path(sys.executable).parent / "heddle")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job on texts and a tokenizer of the user's own, and a node that joins."""
    made = tmp_path_factory.mktemp("train")
    texts = [path.read_text() for path in Path(json.__file__).parent.glob("*.py")]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (made / "text.jsonl").write_text(lines)
    tokenizer = Tokenizer(BPE(unk_token="<unk>"))
    trainer = BpeTrainer(vocab_size=256, special_tokens=["<unk>", "</s>"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(made / "tokenizer.json"))
    data = {"path": str(made / "text.jsonl"), "tokenizer": str(made), "documentMask": True}
    body = yaml.safe_load((ROOT / "manifests" / "examples" / "tiny.yaml").read_text())
    body["spec"] |= {"steps": 100_000, "data": data}
    body["spec"]["training"] |= {"globalBatch": 4, "sequenceLength": 32, "precision": "bf16"}
    body["spec"]["elastic"] |= {"joinDebounceSeconds": 0.2, "minHolders": 1, "minGainPercent": 0}
    (made / "job.yaml").write_text(yaml.safe_dump(body))
    join = "- {at_step: 3, join: {name: more, type: cpu, gpus: 1}}"
    (made / "script.yaml").write_text(f"{join}\n- {{at_step: 6, drain: here}}")
    return made


def interrupted_after(
    words: tuple[str, ...],
    command: list[str],
    folder: Path,
    number: signal.Signals = signal.SIGINT,
) -> tuple[int, str, str]:
    """(exit status, standard output, standard error) of a run that gets a signal after words.

    All its processes get SIGTERM, as Slurm and systemd send it.
    """
    said, awaited = [], list(words)
    with (folder / "result.json").open("w+") as result:
        process = subprocess.Popen(
            command, stdout=result, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        )  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line)
            if awaited and awaited[0] in line:
                awaited.pop(0)
                if not awaited:
                    pids = (process.pid,)
                    if number == signal.SIGTERM:
                        pids = processes_with(XDG_CACHE_HOME=str(folder / "cache"))
                    for pid in pids:
                        os.kill(pid, number)
        result.seek(0)
        return process.wait(timeout=60), result.read(), "".join(said)


def test_ctrl_c_saves_a_job_and_the_same_command_goes_on(folder: Path) -> None:
    command = [HEDDLE, "train", str(folder / "job.yaml"), "--output", "json", "--ranks", "1"]
    command += ["--log-format", "json", "--output-path", str(folder / "out")]
    command += ["--script", str(folder / "script.yaml")]
    words = ("node here is drained", "is live")
    status, out, err = interrupted_after(words, command, folder)
    assert status == 130, err
    assert "its state is saved" in err
    result = json.loads(out)
    assert (result["phase"], result["emulated"]) == ("Suspended", False)
    assert [epoch["reason"] for epoch in result["epochs"]][-1] == "drain"
    assert [node["name"] for node in result["epochs"][-1]["composition"]] == ["more"]
    assert result["orphan_processes"] == 0
    assert len(result["losses"]) > 3
    rows = [
        json.loads(line)
        for log in (folder / "out" / "logs").glob("*.log")
        for line in log.read_text().splitlines()
        if line.startswith("{")
    ]
    assert all(row["job"] == "tiny" and row["pod"].startswith("tiny-") for row in rows)
    (profile,) = (folder / "cache").glob("heddle/profiles/cpu-*/model/cpu-*.json")
    assert json.loads(profile.read_text())["origin"] == "measured"
    saved = result["checkpoint"]
    assert saved["folder"] == str(folder / "out" / "checkpoints" / "tiny")
    assert saved["step"] == result["epochs"][-1]["last_step"] + 1

    status, out, err = interrupted_after(("trains on",), command[:-2], folder, signal.SIGTERM)
    assert status == 143, err
    assert f"note: the run goes on from the checkpoint of step {saved['step']} in " in err
    assert "SIGTERM: the training ends after this step, and its state is saved" in err
    again = json.loads(out)
    assert again["epochs"][0]["first_step"] == again["begun_from_step"] == saved["step"]
    assert again["checkpoint"]["step"] > saved["step"]


def test_a_program_reads_why_a_job_failed_and_how_far_it_came(tmp_path: Path) -> None:
    body = yaml.safe_load((ROOT / "manifests" / "examples" / "tiny.yaml").read_text())
    body["spec"]["training"] |= {"globalBatch": 1}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(body))
    (tmp_path / "script.yaml").write_text("[{at_step: 2, kill: a}]")
    command = [HEDDLE, "train", "job.yaml", "--nodes", "-", "--script", "script.yaml", "-o", "json"]
    done = subprocess.run(
        command, cwd=tmp_path, input="[{name: a, type: demo-fast, gpus: 2}]",
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert (result["error"]["code"], result["orphan_processes"]) == ("Failed", 0)
    assert f"Error: {result['error']['message']}\n" in done.stderr
    assert len(result["losses"]) >= 2
