"""What DeePMD-kit's models are called in the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = {
    "se_e2_a": "se_e2_a",
    "se_a": "se_e2_a",
    "se_e2_r": "se_e2_r",
    "se_r": "se_e2_r",
    "se_e3": "se_e3",
    "se_t": "se_e3",
    "se_at": "se_e3",
    "se_a_3be": "se_e3",
    "se_e3_tebd": "se_e3_tebd",
    "se_atten": "DPA-1",
    "se_atten_v2": "DPA-1 (se_atten_v2)",
    "dpa1": "DPA-1",
    "dpa2": "DPA-2",
    "dpa3": "DPA-3",
    **dict.fromkeys(("dpa4", "DPA4", "sezm", "SeZM"), "DPA-4"),
    "dpa4c": "DPA-4C",
    "DPA4C": "DPA-4C",
}
_MODELS = {"linear_ener": "linear combination", "pairtab": "pair table", "frozen": "frozen model"}


def title(model: Mapping[str, Any]) -> str:
    """A short name for a `model` section: descriptor, and what is fitted where it is not the energy."""
    if "model_dict" in model:
        parts = dict.fromkeys(title(branch) for branch in model["model_dict"].values())
        return f"{' and '.join(parts)} with {len(model['model_dict'])} branches"
    kind = model.get("type", "standard")
    if kind == "linear_ener":
        return f"linear combination of {', '.join(title(part) for part in model.get('models', []))}"
    name = _NAMES.get(kind) or _MODELS.get(kind) or _descriptor(model.get("descriptor", {}))
    fitted = model.get("fitting_net", {})
    fitted = fitted.get("type", "ener") if isinstance(fitted, Mapping) else "ener"
    suffixes = [f" for {fitted}"] * (fitted not in ("ener", "dpa4_ener", "sezm_ener"))
    suffixes += [" with spin"] * ("spin" in model) + [" with ZBL"] * ("use_srtab" in model)
    return name + "".join(suffixes)


def _descriptor(descriptor: Any) -> str:
    if not isinstance(descriptor, Mapping):
        return f"shared descriptor {descriptor}"
    kind = str(descriptor.get("type"))
    if kind == "hybrid":
        return f"hybrid of {' and '.join(_descriptor(part) for part in descriptor.get('list', []))}"
    return _NAMES.get(kind, kind)
