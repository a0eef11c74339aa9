"""Each formula against plain loops, and one case worked out by hand."""

import math

import pytest
import torch

from tasks.pretrain.losses import alignment, group_contrastive, inverse_cloze, masked_tokens, nearest_span_accuracy, uniformity
from tasks.pretrain.step import reduce_losses


def reference_loss(text: torch.Tensor, spans: torch.Tensor, temperature: float) -> torch.Tensor:
    """Eq. 8, sum over texts, as it is written: i over texts, p over own spans, j over all vectors but i."""
    n, s, _ = spans.shape
    total = torch.zeros((), dtype=text.dtype)
    targets = [("text", j, text[j]) for j in range(n)] + [("span", j, spans[j, p]) for j in range(n) for p in range(s)]
    for i in range(n):
        for p in range(s):
            denominator = torch.zeros((), dtype=text.dtype)
            for kind, j, vector in targets:
                if (kind, j) != ("text", i):
                    denominator = denominator + torch.exp(text[i] @ vector / temperature)
            total = total - torch.log(torch.exp(text[i] @ spans[i, p] / temperature) / denominator) / s
    return total


def test_group_contrastive_and_its_gradient_equal_a_triple_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    values = []
    for loss_of in (lambda t, s: group_contrastive(t, s, 0.5).sum(), lambda t, s: reference_loss(t, s, 0.5)):
        generator.manual_seed(1)
        text = torch.randn(5, 7, dtype=torch.float64, generator=generator, requires_grad=True)
        spans = torch.randn(5, 6, 7, dtype=torch.float64, generator=generator, requires_grad=True)
        loss = loss_of(text, spans)
        loss.backward()
        values.append((loss.detach(), text.grad, spans.grad))
    for ours, theirs in zip(*values, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_group_contrastive_of_two_texts_by_hand() -> None:
    """z_1 = (1, 0), z_2 = (0, 1), one span each: s_1 = (2, 0), s_2 = (1, 1); tau = 1.

    Text 1: dot products z_2 0, s_1 2, s_2 1 -> -log(e^2 / (1 + e^2 + e)). Text 2: z_1 0, s_1 0, s_2 1 -> -log(e / (2 + e)).
    """
    text = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    spans = torch.tensor([[[2.0, 0.0]], [[1.0, 1.0]]])
    e = math.e
    expected = [-math.log(e**2 / (1 + e**2 + e)), -math.log(e / (2 + e))]
    assert group_contrastive(text, spans, 1.0).tolist() == pytest.approx(expected, abs=1e-6)
    assert expected == pytest.approx([0.40760596, 0.55144471], abs=1e-7)


def test_inverse_cloze_equals_a_loop() -> None:
    generator = torch.Generator().manual_seed(2)
    queries, passages = torch.randn(4, 3, generator=generator), torch.randn(4, 3, generator=generator)
    for i, loss in enumerate(inverse_cloze(queries, passages, 0.2).tolist()):
        weights = [math.exp(float(queries[i] @ passages[j]) / 0.2) for j in range(4)]
        assert loss == pytest.approx(-math.log(weights[i] / sum(weights)), rel=1e-4)


def test_masked_tokens_equals_a_loop() -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(3))
    for row, (loss, token) in enumerate(zip(masked_tokens(logits, torch.tensor([4, 0, 2])).tolist(), [4, 0, 2], strict=True)):
        assert loss == pytest.approx(-math.log(math.exp(logits[row, token]) / sum(map(math.exp, logits[row].tolist()))), rel=1e-5)


def test_alignment_and_uniformity_by_hand() -> None:
    text = torch.tensor([[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])  # of length 1: squared distances 2, 4, 2
    assert float(uniformity(text)) == pytest.approx(math.log((2 * math.exp(-4) + math.exp(-8)) / 3), abs=1e-5)
    assert float(uniformity(torch.ones(3, 2))) == pytest.approx(0.0, abs=1e-5)
    own = torch.tensor([[[5.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 4.0]], [[1.0, 0.0], [-2.0, 0.0]]])
    assert float(alignment(text, own)) == pytest.approx((0 + 2 + 0 + 0 + 4 + 0) / 6, abs=1e-5)
    assert float(nearest_span_accuracy(text, own)) == pytest.approx(1.0)
    assert float(nearest_span_accuracy(text, own.roll(1, 0))) == pytest.approx(0.0)
    one_each = torch.eye(3, 5).unsqueeze(1)  # one span, of more numbers than spans
    assert float(nearest_span_accuracy(torch.eye(3, 5), one_each)) == pytest.approx(1.0)
    assert float(nearest_span_accuracy(torch.eye(3, 5), one_each[[0, 2, 1]])) == pytest.approx(1 / 3)
    assert float(alignment(torch.eye(3, 5), 3 * one_each[[0, 2, 1]])) == pytest.approx((0 + 2 + 2) / 3)


@pytest.mark.parametrize(("losses", "mean"), [([], 0.0), ([3.0], 3.0), ([1.0, 4.0, 4.0], 3.0)])
def test_the_mean_and_the_sum_of_losses(losses: list[float], mean: float) -> None:
    assert [float(reduce_losses(torch.tensor(losses), reduction)) for reduction in ("mean", "sum")] == [mean, sum(losses)]
