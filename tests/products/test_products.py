"""Products by NumPy's OpenBLAS: those of torch, whatever the layouts and threads, and chosen by the processor alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lockstep import products
from lockstep.products import choice
from lockstep.products.openblas import OpenBlas, loaded
from runs import dp_process, tiny_input, tiny_system, write_input

BLAS = loaded()
needs_openblas = pytest.mark.skipif(BLAS is None, reason="this NumPy was not built with OpenBLAS")


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def matrix(rows: int, columns: int, dtype: torch.dtype, layout: str, seed: int) -> Tensor:
    """Rows in one piece, columns in one piece, or part of a wider matrix."""
    drawn = torch.randn(rows + 3, columns + 5, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    if layout == "columns":
        return drawn[:rows, :columns].T.contiguous().T
    return drawn[:rows, :columns] if layout == "part" else drawn[:rows, :columns].contiguous()


@needs_openblas
@given(
    rows=st.integers(0, 150),
    inner=st.integers(1, 150),
    columns=st.integers(0, 150),
    layouts=st.tuples(*[st.sampled_from(("rows", "columns", "part"))] * 2),
    single=st.booleans(),
    threads=st.integers(1, 3),
    keep=st.booleans(),
)
def test_products_are_those_of_torch(
    rows: int, inner: int, columns: int, layouts: tuple[str, str], single: bool, threads: int, keep: bool
) -> None:
    assert BLAS is not None
    dtype = torch.float32 if single else torch.float64
    left, right = matrix(rows, inner, dtype, layouts[0], 1), matrix(inner, columns, dtype, layouts[1], 2)
    around = matrix(rows + 2, columns + 2, dtype, "rows", 3)
    out, expected = around.clone(), around.clone()
    inside = (slice(1, rows + 1), slice(1, columns + 1))
    expected[inside] = left @ right + (around[inside] if keep else 0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        BLAS.multiply(left, right, out[inside], keep)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-3 if single else 1e-11)


@needs_openblas
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(640, 130, 240), (64, 1344, 240), (1344, 64, 240)])
def test_large_products_on_several_threads(dtype: torch.dtype, shape: tuple[int, int, int], threads: int) -> None:
    """The same to the last digits as on one thread, every time."""
    assert BLAS is not None
    rows, inner, columns = shape
    left, right = matrix(rows, inner, dtype, "columns", 1), matrix(inner, columns, dtype, "rows", 2)
    results = [torch.full((rows, columns), torch.nan, dtype=dtype) for _ in range(3)]
    for result in results:
        BLAS.multiply(left, right, result, keep=False)
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], left @ right, rtol=0, atol=1e-3 if dtype == torch.float32 else 1e-11)


@needs_openblas
def test_numpy_keeps_its_own_number_of_threads() -> None:
    assert BLAS is not None
    before = BLAS._threads()
    square = torch.ones(300, 300)
    BLAS.multiply(square, square, torch.empty(300, 300), keep=False)
    assert BLAS._threads() == before


def test_small_products_other_numbers_and_places_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "choose", lambda: choice.Choice(BLAS, ""))
    monkeypatch.setattr(OpenBlas, "multiply", lambda *_: pytest.fail("not one for OpenBLAS"))
    for others in (torch.ones(128, 128, dtype=torch.bfloat16), torch.ones(32, 32, dtype=torch.float64)):
        assert torch.equal(products.mm(others, others, out=torch.empty_like(others)), len(others) * others)
        assert torch.equal(products.add_mm(others, others, out=others.clone()), (len(others) + 1) * others)
    nowhere = torch.empty(128, 128, device="meta")
    assert products.mm(nowhere, nowhere, out=torch.empty_like(nowhere)).device.type == "meta"


@pytest.mark.parametrize(
    ("cpu", "core", "forced", "taken", "said"),
    [
        ("vendor_id : AuthenticAMD\nflags : avx2 avx512f fma", "SkylakeX", None, True, "NumPy's OpenBLAS (SkylakeX)"),
        (
            "vendor_id : AuthenticAMD\nflags : avx2 avx512f fma",
            "Haswell",
            "Haswell",
            False,
            "OPENBLAS_CORETYPE=Haswell",
        ),
        ("vendor_id : AuthenticAMD\nflags : avx2 avx512f fma", "Zen", None, False, "OpenBLAS (Zen)"),
        ("vendor_id : AuthenticAMD\nflags : avx2 fma", "Zen", None, False, ""),
        ("vendor_id : GenuineIntel\nflags : avx2 avx512f fma", "SkylakeX", None, False, ""),
        ("", "SkylakeX", None, False, ""),
    ],
)
def test_the_processor_decides(
    cpu: str, core: str, forced: str | None, taken: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = object.__new__(OpenBlas)
    library.core = core
    monkeypatch.setattr(choice, "_cpu_info", lambda: cpu)
    monkeypatch.setattr(choice, "loaded", lambda: library)
    monkeypatch.setattr(choice.platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    if forced is not None:
        monkeypatch.setenv("OPENBLAS_CORETYPE", forced)
    found = choice.choose.__wrapped__()
    assert (found.library is library) == taken
    assert said in found.why
    assert bool(found.why) == bool(said)


@pytest.mark.skipif("avx512f" not in choice._cpu_info().split(), reason="this processor has no AVX-512")
@pytest.mark.parametrize("optimizer", ["Adam", "SOAP"])
@pytest.mark.parametrize("threads", [1, 2])
def test_either_library_trains_the_same_and_restarts_bit_for_bit(optimizer: str, threads: int, tmp_path: Path) -> None:
    tiny_system(tmp_path / "train")
    changes = {"training__training_data__systems": ["../train"], "model__fitting_net__neuron": [48, 48]}
    write_input(tmp_path, tiny_input(optimizer={"type": optimizer}, **changes))
    curves = []
    for core in ("SkylakeX", "Haswell"):
        run = tmp_path / core
        run.mkdir()
        trained(run, core, threads)
        whole = (run / "lcurve.out").read_text()
        trained(run, core, threads, "--restart", "model.ckpt-4.safetensors")
        assert (run / "lcurve.out").read_text() == whole
        curves.append(np.loadtxt(run / "lcurve.out"))
    np.testing.assert_allclose(*curves, rtol=0.02)


def trained(folder: Path, core: str, threads: int, *options: str) -> None:
    """Train in a process of its own, on a kind of processor that OpenBLAS is told."""
    environ = {"OPENBLAS_CORETYPE": core, "OMP_NUM_THREADS": str(threads)}
    process = dp_process("train", "../input.json", *options, cwd=folder, env=environ)
    said, complaints = process.communicate(timeout=240)
    assert process.returncode == 0, complaints
    assert ("matrix products: " in said + complaints) == bool(products.choose().why)
