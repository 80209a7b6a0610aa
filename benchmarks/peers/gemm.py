"""Times the matrix products that no implementation of the model can avoid, and prints the seconds of a step as JSON.

    python gemm.py --precision float64 --atoms 64 128 --widths 1600 240 240 240

Energies need the fitting net forward, forces its transpose; the gradient of a loss on both needs the same two again,
and two products for the weights. So every layer of every type is multiplied six times in a step: by torch itself, and
by the library that Lockstep chooses on this processor.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from lockstep import products

Layer = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Product = Callable[..., Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("float64", "float32"), default="float64")
    parser.add_argument("--atoms", type=int, nargs="+", default=[64, 128], help="atoms of each type in a batch")
    parser.add_argument("--widths", type=int, nargs="+", default=[1600, 240, 240, 240], help="of the fitting net")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to repeat")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.precision)
    layers = [
        layer(n, inner, outer, dtype) for n in arguments.atoms for inner, outer in itertools.pairwise(arguments.widths)
    ]
    times = {
        name: median_time(layers, arguments.seconds, mm) for name, mm in (("torch", torch.mm), ("chosen", products.mm))
    }
    print(json.dumps(times))


def layer(n: int, inner: int, outer: int, dtype: torch.dtype) -> Layer:
    """Input, weights, gradient of the output; and where the three products go."""
    x, weight, grad = (torch.randn(shape, dtype=dtype) for shape in ((n, inner), (inner, outer), (n, outer)))
    return x, weight, grad, torch.empty_like(grad), torch.empty_like(x), torch.empty_like(weight)


def median_time(layers: list[Layer], seconds: float, mm: Product) -> float:
    step(layers, mm)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        began = time.perf_counter()
        step(layers, mm)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def step(layers: list[Layer], mm: Product) -> None:
    """The six passes: all layers forward and back, twice, with the products for the weights."""
    for _ in range(2):
        for x, weight, _, forward, _, _ in layers:
            mm(x, weight, out=forward)
        for x, weight, grad, _, backward, weights in reversed(layers):
            mm(grad, weight.T, out=backward)
            mm(x.T, grad, out=weights)


if __name__ == "__main__":
    main()
