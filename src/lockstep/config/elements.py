"""The elements, in the order of their numbers, and the electronic configurations of their ground states."""

from __future__ import annotations

from itertools import accumulate

_NAMES = """
H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr Nb Mo Tc Ru
Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At
Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og
"""
_ORDER = "1s 2s 2p 3s 3p 4s 3d 4p 5s 4d 5p 6s 4f 5d 6p 7s 5f 6d 7p"
"""Subshells in the order in which they are filled, by and large."""
_OTHERWISE = """
Cr 3d5 4s1, Cu 3d10 4s1, Nb 4d4 5s1, Mo 4d5 5s1, Ru 4d7 5s1, Rh 4d8 5s1, Pd 4d10 5s0, Ag 4d10 5s1, La 4f0 5d1,
Ce 4f1 5d1, Gd 4f7 5d1, Pt 5d9 6s1, Au 5d10 6s1, Ac 5f0 6d1, Th 5f0 6d2, Pa 5f2 6d1, U 5f3 6d1, Np 5f4 6d1,
Cm 5f7 6d1, Ds 6d9 7s1, Rg 6d10 7s1
"""
"""Where the ground state is not what the order of filling says."""

ELEMENTS = tuple(_NAMES.split())
_FILLING = _ORDER.split()
_SHELLS = sorted(_FILLING, key=lambda shell: (shell[0], "spdf".index(shell[1])))
_ORBITALS = {"s": 1, "p": 3, "d": 5, "f": 7}
_EXCEPTIONS = dict(entry.split(maxsplit=1) for entry in _OTHERWISE.split(","))


def electrons(element: str) -> dict[str, int]:
    """How many electrons each subshell of an element has."""
    left = ELEMENTS.index(element) + 1
    found = {}
    for shell in _FILLING:
        found[shell] = min(left, 2 * _ORBITALS[shell[1]])
        left -= found[shell]
    return found | {entry[:2]: int(entry[2:]) for entry in _EXCEPTIONS.get(element, "").split()}


def spin_orbitals(element: str) -> list[int]:
    """1 for each spin orbital that is taken and -1 for each that is not, subshell by subshell in the order of n and l.

    The two of an orbital stand side by side; electrons take the second one of every orbital of a subshell first.
    """
    taken, sizes = electrons(element), [2 * _ORBITALS[shell[1]] for shell in _SHELLS]
    result = [-1] * sum(sizes)
    for shell, size, end in zip(_SHELLS, sizes, accumulate(sizes), strict=True):
        order = [*range(1, size, 2), *range(0, size, 2)]
        for place in order[: taken[shell]]:
            result[end - size + place] = 1
    return result
