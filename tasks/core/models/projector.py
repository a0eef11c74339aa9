"""The projector of a pre-training, kept beside its encoder for rounds that fine-tune with it (COSTA, arXiv:2204.10641, Eq. 5 and Table 6).

Nothing else reads it: exported encoders and their vectors do not include it.
"""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tasks.core.errors import UserError
from tasks.core.models.bi_encoder import Towers
from tasks.core.models.head import Head
from tasks.core.stage.draws import PROJECTOR, draw_seed

HEADS = {"linear": "linear", "nonlinear": "tanh"}  # the head of an encoder by the kind of projector


def make_projector(kind: str, width: int, seed: int) -> Head | None:
    """A new projector of `kind` (a key of HEADS), its weights N(0, 0.02); None for kind none."""
    if kind == "none":
        return None
    head = Head(width, HEADS[kind])
    head.draw(torch.Generator().manual_seed(draw_seed(seed, PROJECTOR)))
    return head


def save_projector(projector: Head, encoder: Path) -> None:
    """Write a projector beside the encoder in `encoder` (existing)."""
    (encoder / "projector").mkdir()
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in projector.linear.state_dict().items()}
    save_file(tensors, encoder / "projector" / f"{projector.kind}.safetensors")


def add_projector(towers: Towers, kind: str, init: Path, seed: int) -> str:
    """Put a head over `towers`, in place: the projector beside `init` if that is of `kind`, otherwise a new one from `seed`.

    Return where it comes from, in words. UserError if the towers already have a head.
    """
    path = init / "projector" / f"{HEADS[kind]}.safetensors"
    for tower in [towers.document] if towers.shared else [towers.query, towers.document]:
        if tower.head is not None:
            raise UserError(f"{init}: already has a head ({tower.shape.head}); set projector: none to keep it")
        head = make_projector(kind, tower.pooled, seed)
        assert head is not None
        if path.exists():
            try:
                head.linear.load_state_dict(load_file(path))
            except (SafetensorError, RuntimeError) as error:
                raise UserError(f"{path}: does not match its encoder ({' '.join(str(error).split())})") from None
        tower.head, tower.shape = head, replace(tower.shape, head=head.kind)
    return "of the pre-training" if path.exists() else "new"
