"""The linear layers of an encoder built like BERT in 8-bit integers, for CPUs that multiply these fastest.

    x ~ s_T (u - 128),  s_T = max |x_T| / 127         each token's activations: dynamic, unsigned, a scale for each token
    w ~ s_N v,          s_N = max |w_N| / m           weights: fixed, signed, a scale for each output; m is 127, or 63 (largest_weight)
    x w' + b ~ b + s_T s_N (u - 128) v'               the sum of integers is exact, so a token's bits do not depend on its batch

(Q8BERT, arXiv:1910.06188; a scale for each token as in ZeroQuant, arXiv:2206.01861: no texts for calibration are needed.)
Attention, softmax, norms, and residuals are not quantized.

Shapes: B rows, L tokens of a row, T tokens of a batch (and a few of padding), K inputs, N outputs, H hidden width.
"""

from dataclasses import dataclass
from functools import cache

import torch

LARGEST, ZERO = 127, 128  # the largest value without its sign; the unsigned value of 0
NARROW = 63  # the largest weight where the sum of two products has 16 bits: 2 x 255 x 63 is below 2^15
TINY = torch.finfo(torch.float32).tiny * LARGEST  # so that zeros have a scale, too


def has_int8_layers() -> bool:
    """Whether this torch has oneDNN and the (private) operations used here, and this CPU has AVX2: no other kind has been tried."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    has_operations = all(hasattr(torch.ops.onednn, name) for name in ("qlinear_prepack", "qlinear_pointwise"))
    return has_operations and bool(torch.cpu._is_avx2_supported())


@cache
def largest_weight() -> int:
    """127, or 63 where oneDNN adds two products in 16 bits, as this CPU has no VNNI or the environment forbids it: larger sums saturate."""
    packed = torch.ops.onednn.qlinear_prepack(torch.full((32, 64), LARGEST, dtype=torch.int8), None)
    sums_TN = _sums(torch.full((32, 64), 255, dtype=torch.uint8), packed, torch.ones(32), zero=0)
    return LARGEST if bool((sums_TN == 64 * 255 * LARGEST).all()) else NARROW


def _sums(values_TK: torch.Tensor, packed: torch.Tensor, scale_N: torch.Tensor, zero: int = ZERO) -> torch.Tensor:
    """Products of uint8 values less `zero` with packed weights, times `scale_N`, float32 [T, N]."""
    zero_N = torch.zeros_like(scale_N, dtype=torch.int64)
    sums_TN: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        values_TK, 1.0, zero, packed, scale_N, zero_N, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return sums_TN


@dataclass(frozen=True)
class Quantized:
    """Activations: `values_TK` uint8, and `scale_T1` float32, which converts them back: x ~ scale (values - 128)."""

    values_TK: torch.Tensor
    scale_T1: torch.Tensor

    @classmethod
    def of(cls, x_TK: torch.Tensor) -> "Quantized":
        """Quantize float32 activations, a scale for each token. A token of zeros stays zeros."""
        scale_T1 = x_TK.abs().amax(1, keepdim=True).clamp_min_(TINY).div_(LARGEST)
        values_TK = x_TK.mul(scale_T1.reciprocal()).round_().to(torch.int8)  # torch has no fast conversion of float32 to uint8
        return cls(values_TK.view(torch.uint8).bitwise_xor_(ZERO), scale_T1)


@dataclass(frozen=True)
class Linear:
    """A linear layer with quantized weights."""

    packed: torch.Tensor
    scale_N: torch.Tensor
    bias_N: torch.Tensor

    @classmethod
    def of(cls, weight_NK: torch.Tensor, bias_N: torch.Tensor) -> "Linear":
        """Quantize float32 weights, a scale for each output."""
        weight_NK = weight_NK.detach().float()
        scale_N = weight_NK.abs().amax(1).clamp_min_(TINY).div_(largest_weight())
        values_NK = (weight_NK / scale_N[:, None]).round().to(torch.int8)
        packed = torch.ops.onednn.qlinear_prepack(values_NK, None)
        return cls(packed, scale_N, bias_N.detach().float())

    def __call__(self, x: Quantized) -> torch.Tensor:
        """Outputs float32 [T, N]."""
        sums_TN = _sums(x.values_TK, self.packed, self.scale_N)
        return sums_TN.mul_(x.scale_T1).add_(self.bias_N)  # two passes in cache; addcmul is slower than both
