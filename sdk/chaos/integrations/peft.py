"""Adapters of PEFT (LoRA and others) on a base that every site has: only what is trained is averaged and sent.

    coordinator.register(model=model, optimizer=optimizer, **settings_of(model))

The base is compared when a site joins, by digest, and the first tensor that differs is named. So is what PEFT was told:
the scale of LoRA, for instance, is in no tensor, and sites with another one would differ in silence. The callbacks for
the Trainer and for Lightning, and `join` for Accelerate, do this by themselves for a model of PEFT.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any

from chaos.frameworks import Setting

OF_THE_SITE = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "inference_mode",
        "peft_version",
        "revision",
        "tokenizer_name_or_path",
    }
)
"""Entries of a configuration that say where a site has its files, and the like."""


def settings_of(model: Any) -> dict[str, Any]:
    """Arguments of `Coordinator.register` for a model that `peft.get_peft_model` gave: `frozen`, `alike`. Raises
    ValueError for another model."""
    if not has_adapters(model):
        raise ValueError(f"a {type(model).__name__} has no adapters; register what peft.get_peft_model(...) gave")
    alike: dict[str, Setting] = {}
    for adapter, config in sorted(model.peft_config.items()):
        for key, value in sorted(config.to_dict().items()):
            if key not in OF_THE_SITE and value is not None:
                alike[f"PEFT {adapter}.{key}"] = _plain(value)
    return {"frozen": "compare", "alike": alike}


def agreed_of(model: Any, frozen: str | None, settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The same for whatever model, with more settings; `frozen`: what the user says, or None."""
    more: dict[str, Any] = settings_of(model) if has_adapters(model) else {"frozen": "replicate", "alike": {}}
    return {"frozen": frozen or more["frozen"], "alike": {**more["alike"], **settings}}


def has_adapters(model: Any) -> bool:
    """Whether PEFT has put adapters into it. Works without PEFT."""
    return isinstance(getattr(model, "peft_config", None), dict)


def _plain(value: Any) -> Setting:
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, set | frozenset):
        value = sorted(value)
    return json.dumps(value, sort_keys=True, default=str)
