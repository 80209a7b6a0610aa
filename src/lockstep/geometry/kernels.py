"""The loops over pairs, compiled by numba: one pass each, a pair touching eight splines of its neighbour's type.

Compiled code is kept on disk by numba, so that a machine compiles once. `moments.py` has the same mathematics in
plain tensor operations, for other devices and for where numba is missing.

Innermost loops run over the eight splines and hold nothing in memory between them: the compiler turns each into a few
vector instructions.

Atoms, with their pairs, may be a share of all: `first` is then the number of the first one among all atoms.

Columns of `pair`: position in the interval; the row's radial and angular parts; slopes of the radial part, of the
angular part across and along the bond; slope of the position by distance; distance; unit vector.
"""

from __future__ import annotations

import math
from typing import Any

from lockstep.compiled import compiled, inlined, unsigned

OFFSET, RADIAL, ANGULAR, RADIAL_SLOPE, TURN, OVER_R, POSITION_SLOPE, DISTANCE, UNIT = range(9)
N_COLUMNS = UNIT + 3


@inlined
def _value(b: Any, x: Any, j: Any) -> Any:
    """The j-th polynomial of an interval at x."""
    high = ((b[7, j] * x + b[6, j]) * x + b[5, j]) * x + b[4, j]
    return (((high * x + b[3, j]) * x + b[2, j]) * x + b[1, j]) * x + b[0, j]


@inlined
def _slope(b: Any, x: Any, j: Any) -> Any:
    """Its derivative, from the derivatives' coefficients."""
    high = ((b[6, j] * x + b[5, j]) * x + b[4, j]) * x + b[3, j]
    return ((high * x + b[2, j]) * x + b[1, j]) * x + b[0, j]


@compiled
def columns(
    vector: Any,
    counts: Any,
    types: Any,
    mean: Any,
    inverse_radial: Any,
    inverse_angular: Any,
    rcut_smth: float,
    rcut: float,
    protection: float,
    s0: float,
    per_unit: float,
    intervals: int,
    pair: Any,
    cell: Any,
) -> None:
    """Fill `pair` and `cell` from the vectors to the neighbours and the types of all atoms, as `pair_columns` does."""
    p = 0
    for atom in range(counts.shape[0]):
        t = types[atom]
        middle, radial_scale, angular_scale = mean[t], inverse_radial[t], inverse_angular[t]
        for _ in range(counts[atom].sum()):
            x, y, z = vector[p, 0], vector[p, 1], vector[p, 2]
            r = math.sqrt(x * x + y * y + z * z)
            u = min(max((r - rcut_smth) / (rcut - rcut_smth), 0.0), 1.0)
            w = u * u * u * ((-6.0 * u + 15.0) * u - 10.0) + 1.0
            dw = -30.0 * (u * (u - 1.0)) ** 2 / (rcut - rcut_smth)
            inverse, inverse_r = 1.0 / (r + protection), 1.0 / r
            radial = w * inverse
            radial_slope = (dw - radial) * inverse
            over_r = radial * inverse
            angular_slope = (dw * r + w * (protection - r) * inverse) * inverse * inverse
            stretched = radial / s0
            root = math.sqrt(1.0 + stretched * stretched)
            position = math.log(stretched + root) * per_unit
            k = min(int(position), intervals - 1)
            cell[p] = k
            pair[p, OFFSET] = position - k
            pair[p, RADIAL] = (radial - middle) * radial_scale
            pair[p, ANGULAR] = over_r * r * angular_scale
            pair[p, RADIAL_SLOPE] = radial_slope * radial_scale
            pair[p, TURN] = (angular_slope - over_r) * angular_scale
            pair[p, OVER_R] = over_r * angular_scale
            pair[p, POSITION_SLOPE] = radial_slope / root * (per_unit / s0)
            pair[p, DISTANCE] = r
            pair[p, UNIT] = x * inverse_r
            pair[p, UNIT + 1] = y * inverse_r
            pair[p, UNIT + 2] = z * inverse_r
            p += 1


@compiled
def moments(pair: Any, cell: Any, counts: Any, row_of_atom: Any, pieces: Any, result: Any) -> None:
    """Add R_c b_k of every pair to `result` [C, 4, columns * size]."""
    n_atoms, ntypes = counts.shape
    size = result.shape[2] // ntypes
    p = 0
    for atom in range(n_atoms):
        out = result[row_of_atom[atom]]
        for t in range(ntypes):
            for _ in range(counts[atom, t]):
                x, r0, angular = pair[p, OFFSET], pair[p, RADIAL], pair[p, ANGULAR]
                r1, r2, r3 = angular * pair[p, UNIT], angular * pair[p, UNIT + 1], angular * pair[p, UNIT + 2]
                k = t * size + cell[p]
                for j in range(8):
                    value = _value(pieces, x, j)
                    out[0, k + j] += r0 * value
                    out[1, k + j] += r1 * value
                    out[2, k + j] += r2 * value
                    out[3, k + j] += r3 * value
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
    first: int,
    force: Any,
    virial: Any,
) -> None:
    """Add to `force` [n, 3] and `virial` [B, 3, 3] what dE/d(moments) means for them."""
    n_atoms, ntypes = counts.shape
    size = gradient.shape[2] // ntypes
    zero = pieces.dtype.type(0)
    p = 0
    for row in range(n_atoms):
        atom = first + row
        g = gradient[row_of_atom[row]]
        fx, fy, fz = 0.0, 0.0, 0.0
        xx, xy, xz, yx, yy, yz, zx, zy, zz = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for t in range(ntypes):
            for _ in range(counts[row, t]):
                x, r0, angular = pair[p, OFFSET], pair[p, RADIAL], pair[p, ANGULAR]
                ux, uy, uz = pair[p, UNIT], pair[p, UNIT + 1], pair[p, UNIT + 2]
                r1, r2, r3 = angular * ux, angular * uy, angular * uz
                k = unsigned(t * size + cell[p])
                h0, h1, h2, h3, through = zero, zero, zero, zero, zero
                for number in range(8):
                    j = unsigned(number)
                    value, slope = _value(pieces, x, j), _slope(slopes, x, j)
                    g0, g1, g2, g3 = g[0, k + j], g[1, k + j], g[2, k + j], g[3, k + j]
                    h0 += g0 * value
                    h1 += g1 * value
                    h2 += g2 * value
                    h3 += g3 * value
                    through += (r0 * g0 + r1 * g1 + r2 * g2 + r3 * g3) * slope
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
                dx, dy, dz = r * ux, r * uy, r * uz
                xx += px * dx
                xy += px * dy
                xz += px * dz
                yx += py * dx
                yy += py * dy
                yz += py * dz
                zx += pz * dx
                zy += pz * dy
                zz += pz * dz
                p += 1
        force[atom, 0] += fx
        force[atom, 1] += fy
        force[atom, 2] += fz
        v = virial[atom // n_atoms_frame]
        v[0, 0] -= xx
        v[0, 1] -= xy
        v[0, 2] -= xz
        v[1, 0] -= yx
        v[1, 1] -= yy
        v[1, 2] -= yz
        v[2, 0] -= zx
        v[2, 1] -= zy
        v[2, 2] -= zz


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
    first: int,
    result: Any,
) -> None:
    """Add to `result` [C, 4, columns * size] what `forces` turns cotangents of forces and virials into."""
    n_atoms, ntypes = counts.shape
    size = result.shape[2] // ntypes
    kind = pieces.dtype.type
    p = 0
    for row in range(n_atoms):
        atom = first + row
        out = result[row_of_atom[row]]
        w = virial_bar[atom // n_atoms_frame]
        fx, fy, fz = force_bar[atom, 0], force_bar[atom, 1], force_bar[atom, 2]
        for t in range(ntypes):
            for _ in range(counts[row, t]):
                ux, uy, uz, r = pair[p, UNIT], pair[p, UNIT + 1], pair[p, UNIT + 2], pair[p, DISTANCE]
                other = neighbour[p]
                bx = fx - force_bar[other, 0] - r * (w[0, 0] * ux + w[0, 1] * uy + w[0, 2] * uz)
                by = fy - force_bar[other, 1] - r * (w[1, 0] * ux + w[1, 1] * uy + w[1, 2] * uz)
                bz = fz - force_bar[other, 2] - r * (w[2, 0] * ux + w[2, 1] * uy + w[2, 2] * uz)
                along = kind(ux * bx + uy * by + uz * bz)
                turn, over_r = pair[p, TURN] * along, pair[p, OVER_R]
                h0, h1 = pair[p, RADIAL_SLOPE] * along, turn * ux + over_r * kind(bx)
                h2, h3 = turn * uy + over_r * kind(by), turn * uz + over_r * kind(bz)
                through = pair[p, POSITION_SLOPE] * along
                e0, angular = through * pair[p, RADIAL], through * pair[p, ANGULAR]
                e1, e2, e3 = angular * ux, angular * uy, angular * uz
                k = t * size + cell[p]
                x = pair[p, OFFSET]
                for j in range(8):
                    value, slope = _value(pieces, x, j), _slope(slopes, x, j)
                    out[0, k + j] += h0 * value + e0 * slope
                    out[1, k + j] += h1 * value + e1 * slope
                    out[2, k + j] += h2 * value + e2 * slope
                    out[3, k + j] += h3 * value + e3 * slope
                p += 1


@compiled
def counts(pair: Any, cell: Any, counts: Any, row_of_atom: Any, pieces: Any, result: Any) -> None:
    """Add b_k of every pair to `result` [C, columns * size]."""
    n_atoms, ntypes = counts.shape
    size = result.shape[1] // ntypes
    p = 0
    for atom in range(n_atoms):
        out = result[row_of_atom[atom]]
        for t in range(ntypes):
            for _ in range(counts[atom, t]):
                x, k = pair[p, OFFSET], t * size + cell[p]
                for j in range(8):
                    out[k + j] += _value(pieces, x, j)
                p += 1


@compiled
def count_forces(
    gradient: Any,
    pair: Any,
    cell: Any,
    neighbour: Any,
    counts: Any,
    row_of_atom: Any,
    slopes: Any,
    n_atoms_frame: int,
    first: int,
    force: Any,
    virial: Any,
) -> None:
    """Add to `force` [n, 3] and `virial` [B, 3, 3] what dE/d(counts) means for them."""
    n_atoms, ntypes = counts.shape
    size = gradient.shape[1] // ntypes
    zero = slopes.dtype.type(0)
    p = 0
    for row in range(n_atoms):
        atom = first + row
        g = gradient[row_of_atom[row]]
        v = virial[atom // n_atoms_frame]
        for t in range(ntypes):
            for _ in range(counts[row, t]):
                x, k = pair[p, OFFSET], unsigned(t * size + cell[p])
                through = zero
                for number in range(8):
                    j = unsigned(number)
                    through += g[k + j] * _slope(slopes, x, j)
                stretch, r = pair[p, POSITION_SLOPE] * through, pair[p, DISTANCE]
                other = neighbour[p]
                for a in range(3):
                    f = stretch * pair[p, UNIT + a]
                    force[atom, a] += f
                    force[other, a] -= f
                    for b in range(3):
                        v[a, b] -= f * pair[p, UNIT + b] * r
                p += 1


@compiled
def count_adjoint(
    force_bar: Any,
    virial_bar: Any,
    pair: Any,
    cell: Any,
    neighbour: Any,
    counts: Any,
    row_of_atom: Any,
    slopes: Any,
    n_atoms_frame: int,
    first: int,
    result: Any,
) -> None:
    """Add to `result` [C, columns * size] what `count_forces` turns cotangents of forces and virials into."""
    n_atoms, ntypes = counts.shape
    size = result.shape[1] // ntypes
    kind = slopes.dtype.type
    p = 0
    for row in range(n_atoms):
        atom = first + row
        out = result[row_of_atom[row]]
        w = virial_bar[atom // n_atoms_frame]
        for t in range(ntypes):
            for _ in range(counts[row, t]):
                other, r = neighbour[p], pair[p, DISTANCE]
                along = 0.0
                for a in range(3):
                    bar = force_bar[atom, a] - force_bar[other, a]
                    for b in range(3):
                        bar -= r * w[a, b] * pair[p, UNIT + b]
                    along += pair[p, UNIT + a] * bar
                through = pair[p, POSITION_SLOPE] * kind(along)
                x, k = pair[p, OFFSET], t * size + cell[p]
                for j in range(8):
                    out[k + j] += through * _slope(slopes, x, j)
                p += 1
