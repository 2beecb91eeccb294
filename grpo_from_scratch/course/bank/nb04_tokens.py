"""Exercises of 04_tokens: where a token's log-prob stands, which tokens count, and how parts add up to a whole."""

import torch

from grpo_from_scratch.course.exercises import Case, Exercise, Mistake

# ---------------------------------------------------------------- reply_logps


def reply_logps(logits, ids, prompt_length):
    log_probs = torch.log_softmax(logits[:, prompt_length - 1 : -1], -1)  # (B, T, V): place t is about token t + 1
    return log_probs.gather(-1, ids[:, prompt_length:, None])[..., 0]  # (B, T)


def at_its_own_place(logits, ids, prompt_length):
    log_probs = torch.log_softmax(logits[:, prompt_length:], -1)
    return log_probs.gather(-1, ids[:, prompt_length:, None])[..., 0]


def loses_the_first(logits, ids, prompt_length):
    log_probs = torch.log_softmax(logits[:, prompt_length:-1], -1)
    return log_probs.gather(-1, ids[:, prompt_length + 1 :, None])[..., 0]


def keeps_a_prompt_token(logits, ids, prompt_length):
    log_probs = torch.log_softmax(logits[:, :-1], -1)
    return log_probs.gather(-1, ids[:, 1:, None])[:, prompt_length - 2 :, 0]


def with_the_prompt(logits, ids, prompt_length):
    return torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]


def shifted_backwards(logits, ids, prompt_length):
    log_probs = torch.log_softmax(logits[:, prompt_length:], -1)
    return log_probs.gather(-1, ids[:, prompt_length - 1 : -1, None])[..., 0]


def ids_not_shifted(logits, ids, prompt_length):
    log_probs = torch.log_softmax(logits[:, prompt_length - 1 : -1], -1)
    return log_probs.gather(-1, ids[:, prompt_length - 1 : -1, None])[..., 0]


def normalised_over_places(logits, ids, prompt_length):
    log_probs = torch.log_softmax(logits[:, prompt_length - 1 : -1], 1)
    return log_probs.gather(-1, ids[:, prompt_length:, None])[..., 0]


def negative_log_probs(logits, ids, prompt_length):
    return -reply_logps(logits, ids, prompt_length)


def without_the_batch(logits, ids, prompt_length):
    return reply_logps(logits, ids, prompt_length).squeeze()


def raw_logits_of_tokens(logits, ids, prompt_length):
    return logits[:, prompt_length - 1 : -1].gather(-1, ids[:, prompt_length:, None])[..., 0]


def probabilities_of_tokens(logits, ids, prompt_length):
    return reply_logps(logits, ids, prompt_length).exp()


def keeps_the_last_dimension(logits, ids, prompt_length):
    return reply_logps(logits, ids, prompt_length)[..., None]


def summed_over_the_reply(logits, ids, prompt_length):
    return reply_logps(logits, ids, prompt_length).sum(1)


def counting_logits(*shape: int) -> torch.Tensor:
    """Logits without a pattern that a wrong place could share, and not normalised."""
    return torch.arange(float(torch.tensor(shape).prod())).mul(1.7).sin().mul(2).view(shape)


REPLY_LOGPS = Exercise(
    reply_logps,
    difficulty="easy",
    minutes=10,
    cases=(
        Case(
            {
                "logits": torch.tensor([[[0.2, 0.8], [0.7, 0.3], [0.9, 0.1], [0.4, 0.6], [0.3, 0.7]]]).log() + 1,
                "ids": torch.tensor([[0, 0, 1, 1, 0]]),
                "prompt_length": 3,
            },
            "three tokens of prompt, two of reply. Place 2 says (.9, .1) and is about token 3, place 3 says (.4, .6) "
            "and is about token 4, so the answer is log .1 and log .4",
        ),
        Case(
            {
                "logits": counting_logits(2, 5, 3),
                "ids": torch.tensor([[0, 1, 2, 0, 1], [2, 2, 0, 1, 1]]),
                "prompt_length": 1,
            },
            "two rows and a prompt of one token",
        ),
        Case(
            {"logits": counting_logits(1, 4, 3), "ids": torch.tensor([[1, 0, 2, 2]]), "prompt_length": 3},
            "a reply of a single token: its logits stand at the end of the prompt",
        ),
    ),
    hints=(
        "At which place stand the logits that predict the reply's first token? The table above the exercise says it.",
        "Logits from place prompt_length - 1 on, without the last place; ids from place prompt_length on. Both are "
        "L - prompt_length long.",
        "torch.log_softmax(logits[:, prompt_length - 1 : -1], -1).gather(-1, ids[:, prompt_length:, None])[..., 0]",
    ),
    mistakes=(
        Mistake(
            at_its_own_place, "each token is looked up at its own place, whose logits are about the token after it"
        ),
        Mistake(loses_the_first, "the reply's first token is missing: its logits stand at the prompt's last token"),
        Mistake(with_the_prompt, "the prompt's tokens are in it; the model did not choose those"),
        Mistake(keeps_a_prompt_token, "it starts one place too early and has a token of the prompt in it"),
        Mistake(shifted_backwards, "the shift goes the wrong way: this is the probability of the token before"),
        Mistake(ids_not_shifted, "the logits begin at the right place; look up the token *after* it, not that at it"),
        Mistake(normalised_over_places, "log_softmax runs over the places; the vocabulary is the last dimension"),
        Mistake(negative_log_probs, "a log-prob is never positive: cross_entropy gives minus the log-prob"),
        Mistake(without_the_batch, "squeeze() takes the batch away when it has one row: use [..., 0] or squeeze(-1)"),
        Mistake(raw_logits_of_tokens, "logits are not log-probs: log_softmax over the vocabulary is missing"),
        Mistake(probabilities_of_tokens, "these are probabilities; take log_softmax rather than softmax"),
        Mistake(keeps_the_last_dimension, "gather leaves a last dimension of size 1: take it away with [..., 0]"),
        Mistake(summed_over_the_reply, "do not sum: the loss needs a log-prob for each token"),
    ),
)

# ---------------------------------------------------------------- completion_mask


def completion_mask(ids, eos):
    is_end = ids == eos
    ended_before = is_end.cumsum(1) - is_end.long()  # (B, T) EOS strictly before this token
    return ended_before == 0


def by_value(ids, eos):
    return ids != eos


def without_the_first_eos(ids, eos):
    return (ids == eos).cumsum(1) == 0


def up_to_the_second_eos(ids, eos):
    return (ids == eos).cumsum(1) <= 1


def forgets_rows_without_eos(ids, eos):
    first = (ids == eos).long().argmax(1)
    return torch.arange(ids.shape[1]) <= first[:, None]


def up_to_the_last_eos(ids, eos):
    is_end = ids == eos
    return (is_end.flip(1).cumsum(1).flip(1) > 0) | ~is_end.any(1, keepdim=True)


def first_eos_of_the_batch(ids, eos):
    return ((ids == eos).any(0).cumsum(0) - (ids == eos).any(0).long() == 0).expand(ids.shape).clone()


COMPLETION_MASK = Exercise(
    completion_mask,
    difficulty="easy",
    minutes=10,
    cases=(
        Case(
            {"ids": torch.tensor([[7, 8, 1, 1, 1], [7, 1, 9, 1, 1]]), "eos": 1},
            "7, 8, EOS and padding; then 7, EOS and padding that is not EOS everywhere",
        ),
        Case(
            {"ids": torch.tensor([[1, 1, 1, 1, 1]]), "eos": 1},
            "a reply that is nothing but EOS: one real token",
        ),
        Case(
            {"ids": torch.tensor([[7, 8, 9, 10, 11], [5, 6, 0, 4, 4]]), "eos": 0},
            "a reply that was cut: it never says EOS, and all of it is real",
        ),
    ),
    hints=(
        "A token is real if no EOS stands *before* it. The first EOS itself has none before it.",
        "(ids == eos).cumsum(1) counts EOS up to and including each place. You want those strictly before: take the "
        "place itself away.",
        "is_end = ids == eos; then is_end.cumsum(1) - is_end.long() == 0",
    ),
    mistakes=(
        Mistake(by_value, "this asks what a token is, not where it stands: the EOS the model chose is gone too"),
        Mistake(
            without_the_first_eos, "the first EOS itself is false; it is the model's decision to stop, so it counts"
        ),
        Mistake(up_to_the_second_eos, "everything up to the second EOS is true: count only those strictly before"),
        Mistake(up_to_the_last_eos, "it goes up to the last EOS, padding included: stop at the first"),
        Mistake(first_eos_of_the_batch, "one row's EOS ends all rows: count along each row, dimension 1"),
        Mistake(
            forgets_rows_without_eos,
            "argmax is 0 in a row without EOS, so all but its first token is lost: such rows are true everywhere",
        ),
    ),
)

# ---------------------------------------------------------------- micro_batch_losses


def micro_batch_losses(parts, masks):
    tokens = sum(mask.sum() for mask in masks)  # of the whole batch
    return [torch.where(mask, part, 0.0).sum() / tokens for part, mask in zip(parts, masks, strict=True)]


def own_means(parts, masks):
    return [torch.where(mask, part, 0.0).sum() / mask.sum() for part, mask in zip(parts, masks, strict=True)]


def mean_of_means(parts, masks):
    return [loss / len(parts) for loss in own_means(parts, masks)]


def never_divided(parts, masks):
    return [torch.where(mask, part, 0.0).sum() for part, mask in zip(parts, masks, strict=True)]


def divides_by_padding_too(parts, masks):
    places = sum(mask.numel() for mask in masks)
    return [loss / places for loss in never_divided(parts, masks)]


def divides_twice(parts, masks):
    return [loss / len(parts) for loss in micro_batch_losses(parts, masks)]


def only_the_total(parts, masks):
    return sum(micro_batch_losses(parts, masks))


def by_multiplication(parts, masks):
    tokens = sum(mask.sum() for mask in masks)
    return [(part * mask).sum() / tokens for part, mask in zip(parts, masks, strict=True)]


def without_gradient(parts, masks):
    return [loss.item() for loss in micro_batch_losses(parts, masks)]


def in_one_tensor(parts, masks):
    return torch.stack(micro_batch_losses(parts, masks))


def without_the_masks(parts, masks):
    return [part.sum() / sum(part.numel() for part in parts) for part in parts]


MICRO_BATCH_LOSSES = Exercise(
    micro_batch_losses,
    difficulty="medium",
    minutes=20,
    cases=(
        Case(
            {
                "parts": [torch.tensor([[1.0, 1.0, 1.0, 1.0]]), torch.tensor([[5.0, 7.0]])],
                "masks": [torch.tensor([[True, True, True, True]]), torch.tensor([[True, False]])],
            },
            "five real tokens, so every token weighs a fifth: .8 and 1, which sum to 1.8",
        ),
        Case(
            {
                "parts": [torch.tensor([[2.0, torch.nan], [1.0, 3.0]]), torch.tensor([[4.0]]), torch.tensor([[8.0]])],
                "masks": [torch.tensor([[True, False], [True, True]]), torch.tensor([[True]]), torch.tensor([[False]])],
            },
            "three parts, the last without any real token, and a NaN behind a mask",
        ),
    ),
    hints=(
        "In the mean of the whole batch, how much does each single token weigh? The same must hold in the parts.",
        "Count the real tokens of all parts first. Each part's loss is the sum of its real tokens over that one count.",
        "tokens = sum(mask.sum() for mask in masks); then a list of torch.where(mask, part, 0.0).sum() / tokens",
    ),
    mistakes=(
        Mistake(own_means, "each part is divided by its own tokens: a token in a small part weighs too much"),
        Mistake(
            mean_of_means, "this is the mean of means; a token in a small part weighs more than one in a large part"
        ),
        Mistake(never_divided, "these are sums; divide each by the number of real tokens in the whole batch"),
        Mistake(
            divides_by_padding_too, "the number of places is counted, padding included: count what the masks let by"
        ),
        Mistake(divides_twice, "the parts are to be added up, not averaged: do not divide by their number as well"),
        Mistake(only_the_total, "return a list with one loss for each part, so that each can have its own backward()"),
        Mistake(without_gradient, "a Python number has no gradient, so backward() cannot start there: no .item()"),
        Mistake(in_one_tensor, "the numbers are right; leave them in a list, without torch.stack"),
        Mistake(without_the_masks, "the masks are not used: padding is in the sum and in the count"),
        Mistake(by_multiplication, "zero times NaN is NaN: hide with torch.where(mask, part, 0.0)"),
    ),
)

EXERCISES = (REPLY_LOGPS, COMPLETION_MASK, MICRO_BATCH_LOSSES)
