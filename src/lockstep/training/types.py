"""`model.type_map` where the input leaves it out: the names of the atom types, taken from the data."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)


def with_types(content: Any) -> Any:
    """The content of an input file, with the names of the types that its training data have.

    Anything that is wrong with it is for the check of the input to say.
    """
    systems = _systems(content)
    if systems is None:
        return content
    from lockstep.data.names import type_names

    names = type_names(systems, content["training"]["training_data"].get("rglob_patterns"))
    log.info("model.type_map is not given; the data have %s", ", ".join(names))
    return {**content, "model": {**content["model"], "type_map": names}}


def _systems(content: Any) -> Any:
    """The training data of an input without types; None where it has them, or is wrong in another way."""
    model = _part(content, "model")
    parts = model.get("models", []) if model else []
    named = [each for each in parts if isinstance(each, dict) and "type_map" in each]
    if not model or named or "type_map" in model or "model_dict" in model:
        return None
    systems = _part(_part(content, "training"), "training_data").get("systems")
    paths = [systems] if isinstance(systems, str) else systems
    valid = isinstance(paths, list) and paths and all(isinstance(path, str) for path in paths)
    return paths if valid else None


def _part(content: Any, key: str) -> dict[str, Any]:
    part = content.get(key) if isinstance(content, dict) else None
    return part if isinstance(part, dict) else {}
