"""AdamW and LAMB (You et al., ICLR 2020, arXiv:1904.00962) over the parameter groups of a transformer, and the linear schedule."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import nn

Group = dict[str, Any]


def parameter_groups(module: nn.Module, weight_decay: float) -> list[Group]:
    """Trainable parameters in two groups: biases and layer norms (one-dimensional) have no weight decay."""
    trainable = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]


def make_optimizer(name: Literal["adamw", "lamb"], module: nn.Module, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """The named optimizer over `module`'s trainable parameters; betas 0.9, 0.999, eps 1e-8."""
    if name == "lamb":
        return Lamb(parameter_groups(module, weight_decay), lr=lr)
    return torch.optim.AdamW(parameter_groups(module, weight_decay), lr=lr, betas=(0.9, 0.999), eps=1e-8, fused=True)


def linear_schedule(steps: int, warmup: float) -> Callable[[int], float]:
    """The factor on the peak lr at step 0, 1, ...: rising linearly over `warmup` of `steps`, then falling linearly to 0.

    The first step trains at 1 / (warm-up steps) of the peak, the last at 1 / (the rest) of it: no step has lr 0.
    """
    rise = max(1, round(warmup * steps)) if warmup else 0

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return (steps - step) / (steps - rise)

    return factor


class Lamb(torch.optim.Optimizer):
    """LAMB as in DRhard's and ANCE's `lamb.py`: no bias correction, trust ratio min(||w||, 10) / ||u||.

    u = m / (sqrt(v) + eps) + wd w;  w -= lr * trust * u, with trust 1 if either norm is 0.
    """

    def __init__(self, params: Iterable[Group], lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None, "Lamb takes no closure"
        for group in self.param_groups:
            weights = [w for w in group["params"] if w.grad is not None]
            for w in weights:
                if not self.state[w]:
                    self.state[w] = {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(w), "exp_avg_sq": torch.zeros_like(w)}
            if weights:
                (_together if weights[0].device.type == "cuda" else _one_by_one)(weights, [self.state[w] for w in weights], group)


def _one_by_one(weights: list[torch.Tensor], states: list[Group], group: Group) -> None:
    """Update each weight in turn."""
    beta1, beta2 = group["betas"]
    for w, state in zip(weights, states, strict=True):
        assert w.grad is not None
        state["step"] += 1
        m = state["exp_avg"].mul_(beta1).add_(w.grad, alpha=1 - beta1)
        v = state["exp_avg_sq"].mul_(beta2).addcmul_(w.grad, w.grad, value=1 - beta2)
        u = (m / (v.sqrt() + group["eps"])).add_(w, alpha=group["weight_decay"])
        norm_w, norm_u = w.norm().clamp(max=10), u.norm()
        trust = torch.where((norm_w > 0) & (norm_u > 0), norm_w / norm_u, torch.ones_like(norm_u))
        w.sub_(u * (group["lr"] * trust))


def _together(weights: list[torch.Tensor], states: list[Group], group: Group) -> None:
    """Make the same update of all weights in few operations: a GPU takes longer to be given one than to compute it."""
    beta1, beta2 = group["betas"]
    gradients = [w.grad for w in weights if w.grad is not None]
    steps, first, second = ([state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq"))
    torch._foreach_add_(steps, 1)
    torch._foreach_mul_(first, beta1)
    torch._foreach_add_(first, gradients, alpha=1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
    roots = torch._foreach_sqrt(second)
    torch._foreach_add_(roots, group["eps"])
    updates = torch._foreach_div(first, roots)
    torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
    norm_w, norm_u = torch.stack(torch._foreach_norm(weights)).clamp(max=10), torch.stack(torch._foreach_norm(updates))
    trust = torch.where((norm_w > 0) & (norm_u > 0), norm_w / norm_u, torch.ones_like(norm_u))
    torch._foreach_mul_(updates, (group["lr"] * trust).unbind())
    torch._foreach_sub_(weights, updates)
