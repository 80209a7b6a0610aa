"""The table of systems for the log, in the columns that readers of DeePMD-kit's log know."""

from __future__ import annotations

from lockstep.data.plan import Plan

_NAME = 42
_RULE = 86
_MOST, _ENDS = 20, 5


def summary_lines(title: str, plan: Plan) -> list[str]:
    """Lines of the table; of more than 20 systems only the first and last 5 are shown."""
    count = len(plan.dataset)
    lines = [
        f"---Summary of DataSystem: {title.capitalize():13s}".ljust(_RULE, "-"),
        f"Found {count} System(s):",
        f"{'system':>{_NAME}}  natoms  bch_sz   n_bch       prob  pbc",
    ]
    if count <= _MOST:
        lines += [_row(plan, system) for system in range(count)]
    else:
        lines += [_row(plan, system) for system in range(_ENDS)]
        lines.append(f"{f'... {count - 2 * _ENDS} more ...':>{_NAME}}")
        lines += [_row(plan, system) for system in range(count - _ENDS, count)]
    data = plan.dataset
    lines.append(f"{data.total_frames} frames, {data.natoms.min()} to {data.natoms.max()} atoms")
    lines.append("-" * _RULE)
    return lines


def _row(plan: Plan, system: int) -> str:
    data = plan.dataset
    name = data.name(system)
    periodic = "T" if data.periodic[system] else "F"
    if len(name) > _NAME:
        name = "-- " + name[-(_NAME - 3) :]
    return (
        f"{name:>{_NAME}}  {data.natoms[system]:6d}  {plan.batch_sizes[system]:6d}  "
        f"{plan.counts[system]:6d}  {plan.probabilities[system]:9.3e}  {periodic:>3}"
    )
