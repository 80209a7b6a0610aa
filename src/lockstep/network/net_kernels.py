"""The loops of `nodes.py` and `compiled_nets.py`, compiled: nets whose activation is tanh, of which the value alone
gives all derivatives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lockstep.compiled import compiled, from_bits, inlined
from lockstep.products.region import address, product


@inlined
def tanh(x: Any) -> Any:
    """tanh(x) = e / (e + 2) with e = exp(2 |x|) - 1, to three units in the last place of a float64; without branches,
    so that the compiler makes vectors of it, which are six times as fast as torch's."""
    y = 2.0 * abs(x)
    exponent = y * 1.4426950408889634
    n = np.rint(exponent if exponent < 60.0 else 60.0)
    # ln 2 in two parts, so that n times the first is exact.
    r = (y - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * r * r + r
    power = from_bits((np.int64(n) + np.int64(1023)) << np.int64(52))
    e = power * p + (power - 1.0)
    # Not "less than": what is not a number has to stay so.
    return math.copysign(1.0 if y > 700.0 else e / (e + 2.0), x)


# Places of matrices are addresses; what is computed on the way is in `work`, [kind, layer, row, column] without gaps.

VALUE, OUTPUT, GRADIENT, SCALED, BAR = range(5)
"""tanh(z) with z = x W + b; y = tanh(z) idt (+ x); dE/dy, then the cotangent of the slope; dE/dz, then the cotangent of
z; the cotangent of dE/dy, then that of y."""


@inlined
def _share(start: int, stop: int, share: int, shares: int) -> Any:
    """This share's part of a range."""
    size = stop - start
    return start + size * share // shares, start + size * (share + 1) // shares


@inlined
def _columns(work: Any, kind: int, before: int, width: int, rows: int) -> Any:
    """A layer's numbers of one kind, [rows, width]; `before` is the width of all layers before it."""
    return work[kind, before * rows : (before + width) * rows].reshape(rows, width)


@inlined
def _through(
    routine: int, factors: Any, pieces: Any, first: int, last: int, x: Any, out: Any, start: int, stop: int
) -> None:
    """out = x W, for some rows."""
    size, apart, width = x.itemsize, x.shape[1], out.shape[1]
    for piece in range(first, last):
        low, high = pieces[piece, 0], pieces[piece, 1]
        product(
            routine, size, False, False, stop - start, width, high - low,
            address(x) + (start * apart + low) * size, apart, factors[piece], width,
            0.0 if piece == first else 1.0, address(out) + start * width * size, width,
        )  # fmt: skip


@inlined
def _back(
    routine: int, factors: Any, pieces: Any, first: int, last: int, y: Any, out: Any, start: int, stop: int
) -> None:
    """out = y W^T, for some rows."""
    size, width = y.itemsize, y.shape[1]
    for piece in range(first, last):
        low, high = pieces[piece, 0], pieces[piece, 1]
        product(
            routine, size, False, True, stop - start, high - low, width,
            address(y) + start * width * size, width, factors[piece], width,
            0.0, address(out) + (start * out.shape[1] + low) * size, out.shape[1],
        )  # fmt: skip


@inlined
def _add_input(x: Any, copies: int, out: Any, i: int) -> None:
    """The residual connection of a row."""
    for number in range(copies):
        for j in range(x.shape[1]):
            out[i, number * x.shape[1] + j] += x[i, j]


@inlined
def _add_bar(bar: Any, copies: int, out: Any, start: int, stop: int) -> None:
    """Its transpose: what comes through it for the cotangent of a layer's input."""
    for i in range(start, stop):
        for number in range(copies):
            for j in range(out.shape[1]):
                out[i, j] += bar[i, number * out.shape[1] + j]


@inlined
def _activate(value: Any, bias: Any, idt: Any, x: Any, copies: int, out: Any, start: int, stop: int) -> None:
    for i in range(start, stop):
        for j in range(value.shape[1]):
            v = tanh(value[i, j] + bias[j])
            value[i, j] = v
            out[i, j] = v * idt[j]
        _add_input(x, copies, out, i)


@inlined
def _add_up(x: Any, weight: Any, last: int, energy: Any, gradient: Any, start: int, stop: int) -> None:
    """The last layer's energies and their gradient."""
    for i in range(start, stop):
        total = weight[last]
        for j in range(last):
            total += x[i, j] * weight[j]
            gradient[i, j] = weight[j]
        energy[i] = total


@inlined
def _scale(gradient: Any, value: Any, idt: Any, out: Any, start: int, stop: int) -> None:
    """out = gradient (1 - value^2) idt."""
    one = value.dtype.type(1)
    for i in range(start, stop):
        for j in range(value.shape[1]):
            v = value[i, j]
            out[i, j] = gradient[i, j] * (one - v * v) * idt[j]


@compiled
def nets_forward(
    routine: int,
    factors: Any,
    pieces: Any,
    first_piece: Any,
    shape: Any,
    small: Any,
    ends: Any,
    x: Any,
    work: Any,
    gradient: Any,
    energy: Any,
    share: int,
    shares: int,
) -> None:
    """Energies, and their gradient by the input.

    Args:
        factors: [net, piece] addresses of the matrices that pieces of the inputs are multiplied with.
        pieces: [piece, 2] columns of a layer's input, from where to where; first_piece: [layer + 1] of each layer.
        shape: [layer, 3] widths of input and output, and how often the one is added to the other.
        small: [net, ...] of each layer bias and idt, then the last layer's weight and bias.
        ends: [net + 1] the rows of each net.
    """
    n, layers = x.shape[0], shape.shape[0]
    for net in range(ends.size - 1):
        start, stop = _share(ends[net], ends[net + 1], share, shares)
        if start == stop:
            continue
        at, before, given = 0, 0, x
        for layer in range(layers):
            width = shape[layer, 1]
            value, out = _columns(work, VALUE, before, width, n), _columns(work, OUTPUT, before, width, n)
            first, last = first_piece[layer], first_piece[layer + 1]
            _through(routine, factors[net], pieces, first, last, given, value, start, stop)
            bias, idt = small[net, at : at + width], small[net, at + width : at + 2 * width]
            _activate(value, bias, idt, given, shape[layer, 2], out, start, stop)
            at, before, given = at + 2 * width, before + width, out
        width = shape[layers - 1, 1]
        _add_up(given, small[net, at:], width, energy, _columns(work, GRADIENT, before - width, width, n), start, stop)
        for number in range(layers):
            layer = layers - 1 - number
            width = shape[layer, 1]
            at, before = at - 2 * width, before - width
            value, scaled = _columns(work, VALUE, before, width, n), _columns(work, SCALED, before, width, n)
            above = _columns(work, GRADIENT, before, width, n)
            _scale(above, value, small[net, at + width : at + 2 * width], scaled, start, stop)
            out = gradient
            if layer:
                out = _columns(work, GRADIENT, before - shape[layer - 1, 1], shape[layer - 1, 1], n)
            first, last = first_piece[layer], first_piece[layer + 1]
            _back(routine, factors[net], pieces, first, last, scaled, out, start, stop)
            _add_bar(above, shape[layer, 2], out, start, stop)


@inlined
def _push(value: Any, idt: Any, gradient: Any, bar: Any, copies: int, out: Any, start: int, stop: int) -> None:
    """From q_bar in `out`: the cotangent of the slope in place of the gradient, that of the gradient in `out`."""
    one = value.dtype.type(1)
    for i in range(start, stop):
        for j in range(value.shape[1]):
            v, q_bar = value[i, j], out[i, j]
            gradient[i, j] *= q_bar
            out[i, j] = q_bar * (one - v * v) * idt[j]
        _add_input(bar, copies, out, i)


@compiled
def nets_gradient_backward(
    routine: int,
    factors: Any,
    pieces: Any,
    first_piece: Any,
    shape: Any,
    small: Any,
    ends: Any,
    bar: Any,
    energy_bar: Any,
    work: Any,
    last_bars: Any,
    share: int,
    shares: int,
) -> None:
    """From the cotangent of the gradient upwards; `last_bars` [net, ...] is added that of the last layer's weight."""
    n, layers = bar.shape[0], shape.shape[0]
    for net in range(ends.size - 1):
        start, stop = _share(ends[net], ends[net + 1], share, shares)
        if start == stop:
            continue
        at, before, given = 0, 0, bar
        for layer in range(layers):
            width = shape[layer, 1]
            value, above = _columns(work, VALUE, before, width, n), _columns(work, GRADIENT, before, width, n)
            out, idt = _columns(work, BAR, before, width, n), small[net, at + width : at + 2 * width]
            first, last = first_piece[layer], first_piece[layer + 1]
            _through(routine, factors[net], pieces, first, last, given, out, start, stop)
            _push(value, idt, above, given, shape[layer, 2], out, start, stop)
            at, before, given = at + 2 * width, before + width, out
        width = shape[layers - 1, 1]
        output = _columns(work, OUTPUT, before - width, width, n)
        for i in range(start, stop):
            for j in range(width):
                last_bars[net, j] += output[i, j] * energy_bar[i] + given[i, j]
            last_bars[net, width] += energy_bar[i]


@inlined
def _turn_back(
    value: Any, idt: Any, bar: Any, slope_bar: Any, z_bar: Any, bias_bar: Any, idt_bar: Any, start: int, stop: int
) -> None:
    """From the cotangents of y and of the slope to those of z, the bias and the idt."""
    one, two = value.dtype.type(1), value.dtype.type(2)
    for i in range(start, stop):
        for j in range(value.shape[1]):
            v, b, s = value[i, j], bar[i, j], slope_bar[i, j]
            slope = one - v * v
            through = idt[j] * slope * (b - two * v * s)
            z_bar[i, j] = through
            bias_bar[j] += through
            idt_bar[j] += b * v + s * slope


@compiled
def nets_backward(
    routine: int,
    factors: Any,
    pieces: Any,
    first_piece: Any,
    shape: Any,
    small: Any,
    ends: Any,
    energy_bar: Any,
    work: Any,
    bar: Any,
    small_bars: Any,
    share: int,
    shares: int,
) -> None:
    """From the cotangents of energies and slopes downwards, to that of the input; those of biases and idts are added
    to `small_bars`."""
    n, layers = bar.shape[0], shape.shape[0]
    for net in range(ends.size - 1):
        start, stop = _share(ends[net], ends[net + 1], share, shares)
        if start == stop:
            continue
        before, at = shape[:, 1].sum(), 2 * shape[:, 1].sum()
        last = shape[layers - 1, 1]
        above = _columns(work, BAR, before - last, last, n)
        for i in range(start, stop):
            for j in range(last):
                above[i, j] = energy_bar[i] * small[net, at + j]
        for number in range(layers):
            layer = layers - 1 - number
            width = shape[layer, 1]
            at, before = at - 2 * width, before - width
            value, slope_bar = _columns(work, VALUE, before, width, n), _columns(work, GRADIENT, before, width, n)
            above, z_bar = _columns(work, BAR, before, width, n), _columns(work, SCALED, before, width, n)
            idt, bias_bar = small[net, at + width : at + 2 * width], small_bars[net, at : at + width]
            idt_bar = small_bars[net, at + width : at + 2 * width]
            _turn_back(value, idt, above, slope_bar, z_bar, bias_bar, idt_bar, start, stop)
            out = bar
            if layer:
                out = _columns(work, BAR, before - shape[layer - 1, 1], shape[layer - 1, 1], n)
            first, last = first_piece[layer], first_piece[layer + 1]
            _back(routine, factors[net], pieces, first, last, z_bar, out, start, stop)
            _add_bar(above, shape[layer, 2], out, start, stop)


@compiled
def nets_weight_bars(
    routine: int,
    targets: Any,
    keeps: Any,
    pieces: Any,
    first_piece: Any,
    shape: Any,
    ends: Any,
    x: Any,
    kind: int,
    work: Any,
    share: int,
    shares: int,
) -> None:
    """Products left^T right of all rows: `left` is x and what of `kind` is in `work`, `right` is there too.

    Args:
        targets: [net, piece] addresses of the results; 0 where there is nothing to be done.
        keeps: [net, piece] whether the product is added to what is there.
    """
    size, n = x.itemsize, x.shape[0]
    for net in range(ends.size - 1):
        start, rows = ends[net], ends[net + 1] - ends[net]
        before, left, apart = 0, address(x), x.shape[1]
        for layer in range(shape.shape[0]):
            width = shape[layer, 1]
            right = address(_columns(work, SCALED, before, width, n)) + start * width * size
            for piece in range(first_piece[layer], first_piece[layer + 1]):
                low, high = _share(pieces[piece, 0], pieces[piece, 1], share, shares)
                if rows and high > low and targets[net, piece]:
                    product(
                        routine, size, True, False, high - low, width, rows,
                        left + (start * apart + low) * size, apart, right, width,
                        1.0 if keeps[net, piece] else 0.0,
                        targets[net, piece] + (low - pieces[piece, 0]) * width * size, width,
                    )  # fmt: skip
            left, apart = address(_columns(work, kind, before, width, n)), width
            before += width


# Of `nodes.py`. weights[net] has W, b and idt of one layer after the other.


@compiled
def node_coefficients(
    routine: int, weights: Any, shape: Any, which: Any, fit: Any, x: Any, own: Any, work: Any, result: Any
) -> None:
    """result[group] = fit times the values of the group's net on its rows of x, if the net is among `own`."""
    n, number, size = x.shape[0], fit.shape[1], x.itemsize
    for group in range(which.size):
        net, start, stop = which[group], group * number, (group + 1) * number
        at, before, given = 0, 0, x
        for layer in range(shape.shape[0] if own[0] <= net < own[1] else 0):
            n_in, width = shape[layer, 0], shape[layer, 1]
            value, out = _columns(work, VALUE, before, width, n), _columns(work, OUTPUT, before, width, n)
            product(
                routine, size, False, False, number, width, n_in,
                address(given) + start * n_in * size, n_in, address(weights[net, at:]), width,
                0.0, address(value) + start * width * size, width,
            )  # fmt: skip
            bias = at + n_in * width
            at, before = bias + 2 * width, before + width
            _activate(
                value, weights[net, bias : bias + width], weights[net, bias + width : at], given, shape[layer, 2], out,
                start, stop,
            )  # fmt: skip
            given = out
        if before:
            width = given.shape[1]
            product(
                routine, size, False, False, fit.shape[0], width, number, address(fit), number,
                address(given) + start * width * size, width, 0.0, address(result[group]), width,
            )  # fmt: skip


@inlined
def _turn_value_back(
    value: Any, idt: Any, bar: Any, z_bar: Any, bias_bar: Any, idt_bar: Any, start: int, stop: int
) -> None:
    """From the cotangent of y to those of z, the bias and the idt."""
    one = value.dtype.type(1)
    for i in range(start, stop):
        for j in range(value.shape[1]):
            v, b = value[i, j], bar[i, j]
            through = idt[j] * (one - v * v) * b
            z_bar[i, j] = through
            bias_bar[j] += through
            idt_bar[j] += b * v


@compiled
def node_gradients(
    routine: int, weights: Any, shape: Any, which: Any, fit: Any, x: Any, own: Any, work: Any, bar: Any, bars: Any
) -> None:
    """Add to `bars` what cotangents of the coefficients mean for the weights."""
    n, number, size, layers = x.shape[0], fit.shape[1], x.itemsize, shape.shape[0]
    for group in range(which.size):
        net, start, stop = which[group], group * number, (group + 1) * number
        if not own[0] <= net < own[1]:
            continue
        width, end, before = shape[layers - 1, 1], weights.shape[1], shape[:, 1].sum()
        above = _columns(work, BAR, before - width, width, n)
        product(
            routine, size, True, False, number, width, fit.shape[0], address(fit), number,
            address(bar[group]), width, 0.0, address(above) + start * width * size, width,
        )  # fmt: skip
        for back in range(layers):
            layer = layers - 1 - back
            n_in, width = shape[layer, 0], shape[layer, 1]
            before, idt, bias = before - width, end - width, end - 2 * width
            value, above = _columns(work, VALUE, before, width, n), _columns(work, BAR, before, width, n)
            z_bar = _columns(work, SCALED, before, width, n)
            _turn_value_back(
                value, weights[net, idt:end], above, z_bar, bars[net, bias:idt], bars[net, idt:end], start, stop
            )
            end = bias - n_in * width
            given = x if not layer else _columns(work, OUTPUT, before - n_in, n_in, n)
            right = address(z_bar) + start * width * size
            product(
                routine, size, True, False, n_in, width, number, address(given) + start * n_in * size, n_in,
                right, width, 1.0, address(bars[net, end:]), width,
            )  # fmt: skip
            if layer:
                below = _columns(work, BAR, before - n_in, n_in, n)
                product(
                    routine, size, False, True, number, n_in, width, right, width,
                    address(weights[net, end:]), width, 0.0, address(below) + start * n_in * size, n_in,
                )  # fmt: skip
                _add_bar(above, shape[layer, 2], below, start, stop)
