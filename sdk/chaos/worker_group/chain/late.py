"""What comes into a layer after it got its optimizer: a holder may have it, and no other worker is sent it.

Tables (buffers that are not saved) are each worker's own and stay where they are.
"""

from __future__ import annotations

import torch

from chaos.errors import ChangedOutside


def tables_of(module: torch.nn.Module) -> dict[tuple[str, str], torch.Tensor]:
    """Copies of masks, tables and the like, by place; none of those whose memory was given back."""
    return {
        (path, name): buffer.clone()
        for path, part in module.named_modules()
        for name, buffer in part.named_buffers(recurse=False)
        if name in part._non_persistent_buffers_set and not buffer.is_meta
    }


def kept_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The persistent ones, by name."""
    tables = {
        f"{path}.{key}" if path else key
        for path, part in module.named_modules()
        for key in part._non_persistent_buffers_set
    }
    return {name: tensor for name, tensor in module.named_buffers() if name not in tables}


def names_of(module: torch.nn.Module) -> dict[str, str]:
    """Parameters and persistent buffers: kinds by name."""
    parameters = dict.fromkeys((name for name, _ in module.named_parameters()), "parameter")
    return parameters | dict.fromkeys(kept_buffers(module), "buffer")


def refuse_late(layer: str, module: torch.nn.Module, registered: dict[str, str]) -> None:
    """Raises ChangedOutside for one that was not there then. To be called where the layer goes to another worker, which
    would compute something else than the holders that are left."""
    for name, kind in names_of(module).items():
        if name not in registered:
            raise ChangedOutside(
                f"layer {layer} goes to another worker, and the {kind} {name!r} came into it after register(): no "
                "worker is sent that, so each would compute something else; what a layer is to have is added before "
                "parallelize()"
            )
