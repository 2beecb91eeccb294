"""How far the policy is from the reference: estimates from sampled tokens, and the exact sum over the vocabulary."""

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 10.0  # exp(10) ≈ 22,000: nothing a gradient should follow lies beyond, and float16 still holds it


def log_ratio(logps: Tensor, other_logps: Tensor) -> Tensor:
    """log(p/q) of the same tokens, at least in float32."""
    dtype = torch.promote_types(torch.promote_types(logps.dtype, other_logps.dtype), torch.float32)
    return logps.to(dtype) - other_logps.to(dtype)


def limited(log_ratios: Tensor) -> Tensor:
    """Log-ratios that are safe to exponentiate: exp(inf) would make 0·inf = NaN of the backward pass.

    Only from above: a ratio towards 0 is harmless, and there k3 must go on pulling.
    """
    return log_ratios.clamp(max=LOG_RATIO_LIMIT)


def kl_estimate(logps: Tensor, ref_logps: Tensor, kind: str = "k3", *, ratio: Tensor | None = None) -> Tensor:
    """Estimate KL(π‖ref) from tokens sampled by π (Schulman 2020, "Approximating KL divergence").

    With d = log(ref/π): k1 = −d, k2 = d²/2, k3 = eᵈ − 1 − d, k3_weighted = ratio·k3. As values k1 and k3 are unbiased.
    As losses, per token given its prefix and on-policy, their expected gradients differ: k1 zero, k2 and k3_weighted
    that of KL(π‖ref), k3 that of KL(ref‖π). None contains what a token does to later prefixes.

    Args:
        logps, ref_logps: (B, T) log-probs of the sampled tokens; fill masked places with any finite number.
        kind: "k1", "k2", "k3", or "k3_weighted" (DeepSeek-V3.2, arXiv 2512.02556, section 3.1).
        ratio: (B, T) π/π_old *with its gradient*, for "k3_weighted" only.

    Returns:
        (B, T), in float32 at least. k3 is constant beyond a log-ratio of 10.

    Raises:
        ValueError: an unknown kind; "k3_weighted" without a ratio.
    """
    d = log_ratio(ref_logps, logps)
    match kind:
        case "k1":
            return -d
        case "k2":
            return d.square() / 2
        case "k3" | "k3_weighted":
            d = limited(d)
            k3 = torch.expm1(d) - d  # expm1, because eᵈ − 1 loses all digits of a small d
            if kind == "k3":
                return k3
            if ratio is None:
                raise ValueError("k3_weighted needs ratio, π/π_old with its gradient")
            return ratio * k3
        case _:
            raise ValueError(f"kind must be k1, k2, k3 or k3_weighted, not {kind!r}")


def exact_kl(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """KL(π‖ref) over the whole vocabulary.

    Args:
        logits, ref_logits: (..., V), normalised or not; −inf marks an impossible token.

    Returns:
        (...), in float32 at least; inf where π allows a token that the reference does not.
    """
    dtype = torch.promote_types(torch.promote_types(logits.dtype, ref_logits.dtype), torch.float32)
    logps, ref_logps = logits.to(dtype).log_softmax(-1), ref_logits.to(dtype).log_softmax(-1)
    # An impossible token adds nothing, but 0·(−inf) would be NaN, so it is taken out before the product.
    possible = logps > -torch.inf
    difference = torch.where(possible, logps, 0.0) - torch.where(possible, ref_logps, 0.0)
    return (logps.exp() * difference).sum(-1)
