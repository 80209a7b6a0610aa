"""Turns results.json into Markdown: results.md beside it, and the block of the same tables in docs/performance.md.

python benchmarks/peers/tables.py
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from race import mark_of, seconds_to, smoothed

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "performance.md"
TITLES = {
    "lockstep": "Lockstep",
    "tensorflow": "DeePMD-kit, TensorFlow",
    "pytorch": "DeePMD-kit, PyTorch",
}
PEERS = ("tensorflow", "pytorch")
AIMS = {"float64": "8 / 10", "float32": "6 / 10"}
BUSY = 0.97
"""A run that had less of its core than this was disturbed by others."""

Record = dict[str, Any]
Row = tuple[str, ...]


def write_report(folder: Path, page: Path | None) -> None:
    """Write the tables of `folder` / results.json, and put them into `page`."""
    results = json.loads((folder / "results.json").read_text())
    text = "\n\n".join(section(results) if name in results else missing(name) for name, section in SECTIONS.items())
    for name, section in FURTHER.items():
        if name in results:
            text += "\n\n" + section(results)
    note = "<!-- Written by benchmarks/peers/tables.py from results.json. -->"
    (folder / "results.md").write_text(f"{note}\n# Lockstep and DeePMD-kit side by side\n\n{text}\n")
    if page:
        replace_block(page, "peers", text)


def replace_block(page: Path, name: str, text: str) -> None:
    """Put `text` between the marks of a block."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    content, count = re.subn(
        f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n{text}\n{end}", page.read_text(), flags=re.S
    )
    assert count == 1, f"{page} has no block {name}"
    page.write_text(content)


def speed_section(results: Record) -> str:
    """Ratios first, then start-up and memory, then how far the limit is."""
    record = results["speed"]
    cases: Record = record["cases"]
    keys = [key for key in TITLES if all(key in r for case in cases.values() for r in case["rounds"])]
    peers = [key for key in keys if key != "lockstep"]
    header = ("", TITLES["lockstep"], *(title for key in peers for title in (TITLES[key], "ratio")), "aim")
    rows = [case_row(name, case, peers) for name, case in cases.items()]
    first = next(iter(cases.values()))
    rows += [
        plain_row("command to first step, s", first, keys, "first_step", ".1f", "under 4"),
        plain_row("peak memory of the largest process, MB", first, keys, "memory", ".0f", "under 800"),
        plain_row("peak memory of all processes, MB", first, keys, "memory_all", ".0f", ""),
    ]
    last_name, last = list(cases.items())[-1]
    rows.append(plain_row(f"largest process, {last_name}, MB", last, keys, "memory", ".0f", ""))
    rounds = ", ".join(str(len(case["rounds"])) for case in cases.values())
    return "\n\n".join(
        [
            "### Speed, start-up, memory",
            table(header, rows),
            f"Medians of rounds in alternation ({rounds} of them); in brackets the lowest and highest ratio within "
            "one round. Steps in milliseconds, divided by the batch size. Aims are ratios to TensorFlow / PyTorch. "
            "Start-up and memory are those of the first line's runs.",
            disturbance(r[key] for case in cases.values() for r in case["rounds"] for key in keys),
            limit_table(cases),
            about(record),
        ]
    )


def threads_section(results: Record) -> str:
    """One thread and two of each program, and what the second one gives."""
    record = results["threads"]
    cases: Record = record["cases"]
    keys = [key for key in TITLES if all(key in r for case in cases.values() for r in case["rounds"])]
    header = (
        "",
        *(f"{TITLES[key]}, {n}" for key in keys for n in ("1 thread", "2 threads", "gain")),
        "ratios",
        "limit",
    )
    rows = []
    for name in (name for name in cases if not name.endswith("threads")):
        one, two = cases[name]["rounds"], cases[f"{name}, 2 threads"]["rounds"]
        steps = {key: (median(one, key, "step"), median(two, key, "step")) for key in keys}
        cells = [cell for slow, fast in steps.values() for cell in (ms(slow), ms(fast), f"**{slow / fast:.2f}**")]
        ratios = ", ".join(f"{steps[key][1] / steps['lockstep'][1]:.1f}" for key in keys if key != "lockstep")
        limits = [statistics.median(r["limit"] for r in rounds) for rounds in (one, two)]
        rows.append((name, *cells, ratios, f"{limits[0] / limits[1]:.2f}"))
    note = (
        "Milliseconds a step. Ratios are those of DeePMD-kit's steps to Lockstep's on two threads; the limit is what "
        "the matrix products alone gain by a second thread."
    )
    return "\n\n".join(["### Two threads", table(header, rows), note, about(record)])


def descriptors_section(results: Record) -> str:
    """Other descriptors than the water example's own: steps, and the ratio to DeePMD-kit's PyTorch where it was run."""
    record = results["descriptors"]
    cases: Record = record["cases"]
    peers = [key for key in PEERS if all(key in r for case in cases.values() for r in case["rounds"])]
    header = ("", TITLES["lockstep"], *(title for key in peers for title in (TITLES[key], "ratio")), "aim")
    rows = [(*case_row(name, case, peers, "step_processor")[:-1], "4") for name, case in cases.items()]
    note = "Processor time of a step, which a busy machine disturbs less than the time on the clock."
    return "\n\n".join(["### Other descriptors", note, table(header, rows), about(record)])


def case_row(name: str, case: Record, peers: list[str], figure: str = "step") -> Row:
    """Milliseconds a sample of all programs, with the ratio of each peer to Lockstep."""
    rounds, batch = case["rounds"], case["batch"]
    row = [f"step, {name}, ms a sample", f"{1000 * median(rounds, 'lockstep', figure) / batch:.1f}"]
    for key in peers:
        ratios = [r[key][figure] / r["lockstep"][figure] for r in rounds]
        row.append(f"{1000 * median(rounds, key, figure) / batch:.1f}")
        span = f" ({min(ratios):.1f} to {max(ratios):.1f})" if len(ratios) > 1 else ""
        row.append(f"**{statistics.median(ratios):.1f}**{span}")
    return (*row, AIMS.get(name.split(",")[0], ""))


def plain_row(title: str, case: Record, keys: list[str], figure: str, form: str, aim: str) -> Row:
    own = median(case["rounds"], "lockstep", figure)
    row = [title, f"{own:{form}}"]
    for key in keys:
        if key != "lockstep":
            value = median(case["rounds"], key, figure)
            row += [f"{value:{form}}", f"{value / own:.1f}"]
    return (*row, aim)


def limit_table(cases: Record) -> str:
    rows = []
    for name, case in cases.items():
        rounds = case["rounds"]
        cells = []
        for limit in ("limit", "limit_torch"):
            known = [r for r in rounds if limit in r]
            share = [100 * r[limit] / r["lockstep"]["step"] for r in known]
            cells += [ms(median_of(known, limit)), f"**{statistics.median(share):.0f} %**"] if known else ["-", "-"]
        first_pass = median(rounds, "lockstep", "step_first_pass")
        step = median(rounds, "lockstep", "step")
        rows.append((name, ms(step), *cells, ms(first_pass)))
    header = (
        "",
        "Lockstep, ms a step",
        "matrix products by the faster library, ms",
        "their share",
        "the same by torch, ms",
        "share",
        "step in the first pass over the data, ms",
    )
    return "### The limit\n\n" + table(header, rows)


def median_of(rounds: list[Record], figure: str) -> float:
    return statistics.median(r[figure] for r in rounds)


def trained_section(results: Record) -> str:
    record = results["trained"]
    steps = record["steps"]
    rows = [
        (f"step, last sixth of {steps} steps, float64, batch 1, ms", ms(record["step"]), ""),
        ("intervals of the spline by then", str(record.get("intervals", "-")), ""),
        ("largest difference from the exact nets, forces, eV/A", difference(record, "force"), "1e-5"),
        ("largest difference from the exact nets, energy, eV/atom", difference(record, "energy"), "1e-7"),
    ]
    parts = ["### After training", table(("", "Lockstep", "aim"), rows), disturbance([record]), about(record)]
    return "\n\n".join(parts)


def many_section(results: Record) -> str:
    record = results["many"]
    many, one = record["many"], record["one"]
    ratio = many["step"] / one["step"]
    fresh = f" ({record['fresh']['first_step']:.1f} from files just written)" if "fresh" in record else ""
    rows = [
        ("command to first step, s", f"{many['first_step']:.1f}{fresh}", f"{one['first_step']:.1f}", "under 20"),
        ("peak memory, MB", f"{many['memory']:.0f}", f"{one['memory']:.0f}", "under 2048"),
        ("step, ms", f"{ms(many['step'])} ({ratio:.2f} times)", ms(one["step"]), "equal"),
    ]
    systems = record["systems"]
    header = ("Lockstep", f"{systems} systems of 2 frames and 12 atoms", "one system with the same frames", "aim")
    parts = ["### Many systems", table(header, rows)]
    if record["peers"]:
        peers = "; ".join(
            f"{TITLES[key]} {one['first_step']:.0f} s and {one['memory']:.0f} MB"
            for key, one in record["peers"].items()
        )
        parts.append(
            f"For comparison, the first {record['peer_systems']} of these systems only, to the first step: {peers}."
        )
    return "\n\n".join([*parts, disturbance([many, one]), about(record)])


def accuracy_section(results: Record) -> str:
    record = results["accuracy"]
    means = {key: statistics.mean(run["force"] for run in runs) for key, runs in record["runs"].items()}
    rows = []
    for key, runs in record["runs"].items():
        each = ", ".join(f"{run['force']:.4f}" for run in runs)
        energy = statistics.mean(run["energy"] for run in runs)
        ratio = "" if key == "lockstep" else f"{means['lockstep'] / means[key]:.3f}"
        rows.append((TITLES[key], f"{means[key]:.4f}", each, ratio, f"{1000 * energy:.3f}"))
    header = ("", "force, eV/A, mean", "each seed", "Lockstep over this", "energy, meV/atom, mean")
    text = (
        f"Root-mean-square errors on all validation frames after {record['steps']} steps (learning rate 1e-3 to 1e-5, "
        "`decay_steps` 50, batch 1, float64), by the program's own `dp test`; Lockstep's with the exact nets. Aim: "
        "Lockstep within 3 % of DeePMD-kit."
    )
    return "\n\n".join(["### Accuracy", text, table(header, rows), *seed_differences(record), about(record)])


def race_section(results: Record) -> str:
    """Seconds to the mark, and what each run has in the end."""
    record = results["race"]
    runs: Record = record["runs"]
    mark = mark_of(runs)
    own = [(run["cores"], seconds_to(run, mark)) for run in runs.values() if mark and run["program"] == "lockstep"]
    rows = []
    for run in sorted(runs.values(), key=lambda run: (run["cores"], run["program"], run["optimizer"], run["rate"])):
        reached = seconds_to(run, mark) if mark else None
        best = min((seconds for cores, seconds in own if seconds and cores == run["cores"]), default=None)
        ratio = f"{reached / best:.1f}" if reached and best else "-"
        end, seconds = smoothed(run)[-1][1], f"{reached:.0f}" if reached else "-"
        name = f"{TITLES[run['program']]}, {run['optimizer']}, {run['rate']:g}"
        rows.append((name, str(run["cores"]), seconds, ratio, f"{end:.4f}", f"{run['seconds']:.0f}"))
    header = ("", "cores", "s to the mark", "over the fastest", "error in the end, eV/Å", "s in all")
    told = f"{mark:.4f} eV/Å, " if mark else ""
    text = (
        f"Seconds from the command until the force error on unseen frames is below the mark: {told}what DeePMD-kit's "
        f"TensorFlow has after {record['steps']} steps at its default learning rate on one core. Water example, "
        "float64, batch 1; the rate falls by 100 over the run. An error is the median of five rows of the learning "
        "curve, four frames each. All runs but those of SOAP and the one that sets the mark end where they have "
        "passed it."
    )
    picture = "![Error against seconds, all runs](pictures/race.png)"
    return "\n\n".join(["### Time to accuracy", text, table(header, rows), picture, about(record)])


def minutes_section(results: Record) -> str:
    """How far each program gets."""
    record = results["minutes"]
    rows = []
    for run in record["runs"].values():
        name = f"{TITLES[run['program']]}, {run['optimizer']}, {run['rate']:g}"
        rows.append((name, str(run["steps"]), f"{run['seconds']:.0f}", f"{smoothed(run)[-1][1]:.4f}"))
    text = (
        f"{record['minutes']:g} minutes on two cores, start-up included: each program with the steps that it has time "
        "for, by its speed in the race, and the learning rate falling by 100 over them. Water example, float64, batch "
        "1; force error on unseen frames, the median of five rows of the learning curve, four frames each."
    )
    header = ("", "steps", "s in all", "error in the end, eV/Å")
    return "\n\n".join([f"### {record['minutes']:g} minutes", text, table(header, rows), about(record)])


def seed_differences(record: Record) -> list[str]:
    runs = [run for run in record["runs"].get("lockstep", []) if "force_difference" in run]
    if not runs:
        return []
    worst = {name: max(run[f"{name}_difference"] for run in runs) for name in ("force", "energy")}
    return [
        f"These Lockstep models differ from their exact nets by at most {worst['force']:.1e} eV/A in forces and "
        f"{worst['energy']:.1e} eV/atom in energies."
    ]


SECTIONS: dict[str, Callable[[Record], str]] = {
    "speed": speed_section,
    "trained": trained_section,
    "many": many_section,
    "accuracy": accuracy_section,
    "race": race_section,
}

FURTHER: dict[str, Callable[[Record], str]] = {
    "minutes": minutes_section,
    "threads": threads_section,
    "descriptors": descriptors_section,
}
"""Left out where they have not been measured."""


def missing(name: str) -> str:
    return f"Part `{name}` has not been measured yet: `python benchmarks/peers/run.py {name} report`."


def about(record: Record) -> str:
    """When, where, with what."""
    facts = record["about"]
    lines = [
        f"{facts['date']}, {facts['processor']}, {facts['cores']} cores, load before {facts['load']}; "
        f"`{facts['command']}`, {record['seconds'] / 60:.0f} min.",
        "",
    ]
    lines += [f"- {TITLES[key]}: {versions}; `{facts['commands'][key]}`" for key, versions in facts["versions"].items()]
    return "\n".join(lines)


def disturbance(runs: Iterable[Record]) -> str:
    """Whether the programs had their core for themselves."""
    lowest = min(run["processor_share"] for run in runs)
    if lowest >= BUSY:
        return f"Every run had at least {100 * lowest:.0f} % of its core."
    return (
        f"**Disturbed**: a run had only {100 * lowest:.0f} % of its core, so other work on the machine, or waiting, is "
        "in these figures."
    )


def difference(record: Record, name: str) -> str:
    value = record.get(f"{name}_difference")
    return "-" if value is None else f"{value:.1e}"


def median(rounds: list[Record], key: str, figure: str) -> float:
    return statistics.median(one[key][figure] for one in rounds)


def ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def table(header: Row, rows: Iterable[Row]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    write_report(HERE, PAGE)
