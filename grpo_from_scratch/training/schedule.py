"""The learning rate over a run: linear warm-up, then half a cosine down to zero."""

import math


def warmup_cosine(update: int, *, warmup: int, total: int) -> float:
    """Factor on the base learning rate for one optimizer update.

    The first update already moves (factor 1/warmup, not 0), update number ``warmup`` runs at the full rate, and the
    last one at a small positive rate: no update of a run is wasted on a rate of zero.

    Args:
        update: how many updates have been applied before this one, from 0.
        warmup: updates until the full rate; 0 starts at the full rate.
        total: updates of the whole run. Later ones (``update >= total``) get 0.

    Source: Loshchilov and Hutter 2017 (arXiv 1608.03983), eq. 5, without restarts.
    """
    if update < warmup:
        return (update + 1) / warmup
    if update >= total:
        return 0.0
    return 0.5 * (1 + math.cos(math.pi * (update - warmup) / (total - warmup)))
