"""`dp scaling` from the command line to its files, with a launcher that takes a known time."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.cli.main import main


@pytest.fixture(autouse=True)
def _inside(inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(inputs)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3})


def result(folder: str = "scaling") -> dict:
    return json.loads(Path(folder, "scaling.json").read_text())


def test_the_table_is_that_of_the_runs(fake: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaling", "input.json", "-n", "4,1,2", "--launcher", fake(), "--steps", "20"]) == 0
    rows = result()["rows"]
    assert [row["workers"] for row in rows] == [1, 2, 4]
    # Two samples a worker in 20 ms, with 3 ms and 5 ms of others' company.
    assert [row["samples_per_s"] for row in rows] == pytest.approx([100, 4 / 0.023, 8 / 0.025])
    assert [row["speed_up"] for row in rows] == pytest.approx([1, 2 * 20 / 23, 4 * 20 / 25])
    assert rows[2]["efficiency"] == pytest.approx(0.8)
    assert rows[2]["budget"]["communication"] == pytest.approx(0.16)
    out = capsys.readouterr().out
    assert "| 2              | 1.1500                    | 86.96\\*2           | 1.74     | 87 %" in out
    assert Path("scaling/scaling.md").read_text().strip() == out.strip()
    assert Path("scaling/scaling.png").read_bytes().startswith(b"\x89PNG")


def test_the_prediction_is_marked_and_judged(fake: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    main(["scaling", "input.json", "-n", "1,2,4", "--launcher", fake(), "--steps", "20"])
    prediction = result()["prediction"]
    assert [row["workers"] for row in prediction["rows"]] == [8, 64, 512]
    assert max(map(abs, prediction["errors"])) < 0.03
    assert abs(prediction["held_out_error"]) < 0.05
    assert 0.02 < prediction["rows"][2]["seconds_per_step"] < 0.05
    out = capsys.readouterr().out
    assert "**Not measured**" in out
    assert "Its error on the measured points" in out


def test_strong_scaling_shares_one_batch(fake: Callable) -> None:
    main(["scaling", "input.json", "-n", "1,2,4", "--strong", "--launcher", fake(), "--steps", "20"])
    found = result()
    assert [row["samples_per_step"] for row in found["rows"]] == pytest.approx([2, 2, 2])
    assert [row["per_frame"] for row in found["rows"]] == [1, 2, 4]
    assert found["rows"][2]["speed_up"] == pytest.approx(20 / 13)
    predicted = found["prediction"]["rows"]
    assert [(row["accumulate"], row["per_frame"]) for row in predicted] == [(1, 8), (1, 64), (1, 512)]
    assert 0.004 < predicted[2]["seconds_per_step"] < 0.03, "what cannot be shared stays"
    assert "| Workers per frame |" in Path("scaling/scaling.md").read_text()


def test_a_failing_run_shows_its_last_words_and_keeps_the_rows_before(
    fake: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scaling", "input.json", "-n", "1,2", "--launcher", fake((2,)), "--steps", "20"]) == 1
    err = capsys.readouterr().err
    assert "step 7: the loss is not a number" in err
    assert "noise" not in err
    assert [row["workers"] for row in result()["rows"]] == [1]
    assert result()["prediction"] is None


def test_every_worker_has_the_same_threads(fake: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DP_INTRA_OP_PARALLELISM_THREADS", "7")
    monkeypatch.delenv("NUM_WORKERS", raising=False)
    main(["scaling", "input.json", "-n", "1", "--threads", "3", "--launcher", fake(), "--steps", "20"])
    environ = json.loads(Path("scaling/1/environment.json").read_text())
    names = ("OMP_NUM_THREADS", "DP_INTRA_OP_PARALLELISM_THREADS", "NUM_WORKERS")
    assert [environ[name] for name in names] == ["3", "3", "3"]


def test_nothing_is_overwritten(fake: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    Path("scaling").mkdir()
    Path("scaling/thesis.tex").write_text("years of work")
    assert main(["scaling", "input.json", "-n", "1", "--launcher", fake()]) == 2
    assert "none are overwritten" in capsys.readouterr().err
    assert [path.name for path in Path("scaling").iterdir()] == ["thesis.tex"]


def test_more_workers_than_cores_are_marked_and_not_believed(
    fake: Callable, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lockstep.scaling import campaign, launch

    path = fake().split()[1]
    local = launch.Launcher("torchrun", True, (sys.executable, path, "{n}"))
    monkeypatch.setattr(campaign, "find_launcher", lambda name: local)
    assert main(["scaling", "input.json", "-n", "1,4,8", "--steps", "20"]) == 0
    found = result()
    assert [row["oversubscribed"] for row in found["rows"]] == [False, False, True]
    assert found["prediction"]["fitted_to"] == [1, 4]
    captured = capsys.readouterr()
    assert "8 workers: oversubscribed, this machine has only 4 cores" in captured.err
    assert "| 8 †" in captured.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "1,two"], "expected numbers of workers such as 1,2,4"),
        (["-n", "0"], "expected numbers of workers"),
        (["--launcher", "warprun"], "no such launcher"),
        (["--launcher", "warprun -n {n}"], "no such program"),
        (["--steps", "0"], "nothing would be measured"),
        (["-o", "input.json"], "cannot be made"),
    ],
)
def test_mistakes_are_told_before_anything_runs(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scaling", "input.json", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_missing_data_are_told_before_anything_runs(inputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inputs / "data").rename(inputs / "elsewhere")
    assert main(["scaling", "input.json", "-n", "1"]) == 2
    assert "data" in capsys.readouterr().err
    assert not Path("scaling").exists()


def test_workers_do_not_start_workers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert main(["scaling", "input.json"]) == 2
    assert "starts the workers itself" in capsys.readouterr().err
