"""The loops over pairs, compiled by numba: one pass each, a pair touching eight splines of its neighbour's type.

Compiled code is kept on disk by numba, so that a machine compiles once. `moments.py` has the same mathematics in
plain tensor operations, for other devices and for where numba is missing.

Columns of `pair`: position in the interval; the row's radial and angular parts; slopes of the radial part, of the
angular part across and along the bond; slope of the position by distance; distance; unit vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lockstep.compiled import compiled

OFFSET, RADIAL, ANGULAR, RADIAL_SLOPE, TURN, OVER_R, POSITION_SLOPE, DISTANCE, UNIT = range(9)
N_COLUMNS = UNIT + 3


@compiled
def _evaluate(pieces: Any, x: Any, out: Any) -> None:
    """The eight polynomials of an interval at x, by Horner's rule on all of them at once."""
    last = pieces.shape[0] - 1
    for j in range(8):
        out[j] = pieces[last, j]
    for power in range(last - 1, -1, -1):
        for j in range(8):
            out[j] = out[j] * x + pieces[power, j]


@compiled
def moments(pair: Any, cell: Any, counts: Any, row_of_atom: Any, pieces: Any, result: Any) -> None:
    """Add R_c b_k of every pair to `result` [C, 4, ntypes * size]."""
    n_atoms, ntypes = counts.shape
    size = result.shape[2] // ntypes
    value = np.empty(8, result.dtype)
    p = 0
    for atom in range(n_atoms):
        out = result[row_of_atom[atom]]
        for t in range(ntypes):
            for _ in range(counts[atom, t]):
                _evaluate(pieces, pair[p, OFFSET], value)
                r0, angular = pair[p, RADIAL], pair[p, ANGULAR]
                r1, r2, r3 = angular * pair[p, UNIT], angular * pair[p, UNIT + 1], angular * pair[p, UNIT + 2]
                k = t * size + cell[p]
                for j in range(8):
                    out[0, k + j] += r0 * value[j]
                    out[1, k + j] += r1 * value[j]
                    out[2, k + j] += r2 * value[j]
                    out[3, k + j] += r3 * value[j]
                p += 1


@compiled
def forces(
    gradient: Any,
    pair: Any,
    cell: Any,
    neighbour: Any,
    counts: Any,
    row_of_atom: Any,
    pieces: Any,
    slopes: Any,
    n_atoms_frame: int,
    force: Any,
    virial: Any,
) -> None:
    """Add to `force` [n, 3] and `virial` [B, 3, 3] what dE/d(moments) means for them."""
    n_atoms, ntypes = counts.shape
    size = gradient.shape[2] // ntypes
    value, slope = np.empty(8, gradient.dtype), np.empty(8, gradient.dtype)
    zero = value.dtype.type(0)
    p = 0
    for atom in range(n_atoms):
        g = gradient[row_of_atom[atom]]
        v = virial[atom // n_atoms_frame]
        fx, fy, fz = 0.0, 0.0, 0.0
        for t in range(ntypes):
            for _ in range(counts[atom, t]):
                _evaluate(pieces, pair[p, OFFSET], value)
                _evaluate(slopes, pair[p, OFFSET], slope)
                k = t * size + cell[p]
                h0, h1, h2, h3, e0, e1, e2, e3 = zero, zero, zero, zero, zero, zero, zero, zero
                for j in range(8):
                    h0 += g[0, k + j] * value[j]
                    h1 += g[1, k + j] * value[j]
                    h2 += g[2, k + j] * value[j]
                    h3 += g[3, k + j] * value[j]
                    e0 += g[0, k + j] * slope[j]
                    e1 += g[1, k + j] * slope[j]
                    e2 += g[2, k + j] * slope[j]
                    e3 += g[3, k + j] * slope[j]
                ux, uy, uz = pair[p, UNIT], pair[p, UNIT + 1], pair[p, UNIT + 2]
                through = pair[p, RADIAL] * e0 + pair[p, ANGULAR] * (ux * e1 + uy * e2 + uz * e3)
                stretch = (
                    pair[p, RADIAL_SLOPE] * h0
                    + pair[p, POSITION_SLOPE] * through
                    + pair[p, TURN] * (ux * h1 + uy * h2 + uz * h3)
                )
                over_r, r = pair[p, OVER_R], pair[p, DISTANCE]
                px, py, pz = stretch * ux + over_r * h1, stretch * uy + over_r * h2, stretch * uz + over_r * h3
                fx += px
                fy += py
                fz += pz
                other = neighbour[p]
                force[other, 0] -= px
                force[other, 1] -= py
                force[other, 2] -= pz
                v[0, 0] -= px * ux * r
                v[0, 1] -= px * uy * r
                v[0, 2] -= px * uz * r
                v[1, 0] -= py * ux * r
                v[1, 1] -= py * uy * r
                v[1, 2] -= py * uz * r
                v[2, 0] -= pz * ux * r
                v[2, 1] -= pz * uy * r
                v[2, 2] -= pz * uz * r
                p += 1
        force[atom, 0] += fx
        force[atom, 1] += fy
        force[atom, 2] += fz


@compiled
def adjoint(
    force_bar: Any,
    virial_bar: Any,
    pair: Any,
    cell: Any,
    neighbour: Any,
    counts: Any,
    row_of_atom: Any,
    pieces: Any,
    slopes: Any,
    n_atoms_frame: int,
    result: Any,
) -> None:
    """Add to `result` [C, 4, ntypes * size] what `forces` turns cotangents of forces and virials into."""
    n_atoms, ntypes = counts.shape
    size = result.shape[2] // ntypes
    value, slope = np.empty(8, result.dtype), np.empty(8, result.dtype)
    p = 0
    for atom in range(n_atoms):
        out = result[row_of_atom[atom]]
        w = virial_bar[atom // n_atoms_frame]
        fx, fy, fz = force_bar[atom, 0], force_bar[atom, 1], force_bar[atom, 2]
        for t in range(ntypes):
            for _ in range(counts[atom, t]):
                _evaluate(pieces, pair[p, OFFSET], value)
                _evaluate(slopes, pair[p, OFFSET], slope)
                ux, uy, uz, r = pair[p, UNIT], pair[p, UNIT + 1], pair[p, UNIT + 2], pair[p, DISTANCE]
                other = neighbour[p]
                bx = fx - force_bar[other, 0] - r * (w[0, 0] * ux + w[0, 1] * uy + w[0, 2] * uz)
                by = fy - force_bar[other, 1] - r * (w[1, 0] * ux + w[1, 1] * uy + w[1, 2] * uz)
                bz = fz - force_bar[other, 2] - r * (w[2, 0] * ux + w[2, 1] * uy + w[2, 2] * uz)
                along = ux * bx + uy * by + uz * bz
                turn, over_r = pair[p, TURN] * along, pair[p, OVER_R]
                h0 = pair[p, RADIAL_SLOPE] * along
                h1, h2, h3 = turn * ux + over_r * bx, turn * uy + over_r * by, turn * uz + over_r * bz
                through = pair[p, POSITION_SLOPE] * along
                e0, angular = through * pair[p, RADIAL], through * pair[p, ANGULAR]
                e1, e2, e3 = angular * ux, angular * uy, angular * uz
                k = t * size + cell[p]
                for j in range(8):
                    out[0, k + j] += h0 * value[j] + e0 * slope[j]
                    out[1, k + j] += h1 * value[j] + e1 * slope[j]
                    out[2, k + j] += h2 * value[j] + e2 * slope[j]
                    out[3, k + j] += h3 * value[j] + e3 * slope[j]
                p += 1
