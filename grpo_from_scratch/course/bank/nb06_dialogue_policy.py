"""Exercises of 06_dialogue_policy: the reply's labels, left padding that changes nothing, a reward with no answer."""

import torch

from grpo_from_scratch.course.exercises import Case, Exercise, Mistake

IGNORED = -100  # what PyTorch's cross-entropy leaves out

# ---------------------------------------------------------------- training_item


def training_item(prompt, reply, max_tokens):
    reply = reply[: max_tokens - 1]
    prompt = prompt[-(max_tokens - len(reply)) :]  # at least one token, so never [-0:], which would be all
    return {"input_ids": prompt + reply, "labels": [-100] * len(prompt) + reply}


def learns_the_prompt(prompt, reply, max_tokens):
    ids = training_item(prompt, reply, max_tokens)["input_ids"]
    return {"input_ids": ids, "labels": list(ids)}


def shifts_the_labels(prompt, reply, max_tokens):
    item = training_item(prompt, reply, max_tokens)
    return {"input_ids": item["input_ids"], "labels": item["labels"][1:] + [IGNORED]}


def loses_the_first_token(prompt, reply, max_tokens):
    item = training_item(prompt, reply, max_tokens)
    length = len(item["input_ids"]) - len(reply[: max_tokens - 1]) + 1
    return {"input_ids": item["input_ids"], "labels": [IGNORED] * length + item["input_ids"][length:]}


def labels_of_the_reply_alone(prompt, reply, max_tokens):
    return {**training_item(prompt, reply, max_tokens), "labels": reply[: max_tokens - 1]}


def zeros_for_ignored(prompt, reply, max_tokens):
    item = training_item(prompt, reply, max_tokens)
    return {"input_ids": item["input_ids"], "labels": [max(label, 0) for label in item["labels"]]}


def never_cut(prompt, reply, max_tokens):
    return {"input_ids": prompt + reply, "labels": [IGNORED] * len(prompt) + reply}


def cuts_the_row_at_its_end(prompt, reply, max_tokens):
    return {name: row[:max_tokens] for name, row in never_cut(prompt, reply, max_tokens).items()}


def cuts_the_row_at_its_beginning(prompt, reply, max_tokens):
    return {name: row[-max_tokens:] for name, row in never_cut(prompt, reply, max_tokens).items()}


def prompt_loses_its_end(prompt, reply, max_tokens):
    reply = reply[: max_tokens - 1]
    return never_cut(prompt[: max_tokens - len(reply)], reply, max_tokens)


def reply_not_cut(prompt, reply, max_tokens):
    return never_cut(prompt[-(max_tokens - len(reply)) :], reply, max_tokens)


def reply_takes_all_the_room(prompt, reply, max_tokens):
    reply = reply[:max_tokens]
    return never_cut(prompt[-(max_tokens - len(reply)) :], reply, max_tokens)


def as_the_listing(prompt, reply, max_tokens):
    return {"input_ids": prompt[:max_tokens], "labels": reply[:max_tokens]}


TRAINING_ITEM = Exercise(
    training_item,
    difficulty="easy",
    minutes=10,
    cases=(
        Case(
            {"prompt": [1, 7, 8, 9, 5], "reply": [11, 12, 2], "max_tokens": 12},
            "both fit: five tokens of prompt, three of reply, 2 is EOS",
        ),
        Case(
            {"prompt": [1, 7, 8, 9, 5], "reply": [11, 12, 2], "max_tokens": 5},
            "room for five: the reply stays whole and the prompt keeps its last two",
        ),
        Case(
            {"prompt": [1, 7, 8, 9, 5], "reply": [11, 12, 13, 14, 2], "max_tokens": 4},
            "the reply alone is too long: its first three tokens, after the last one of the prompt",
        ),
        Case(
            {"prompt": [1, 7, 5], "reply": [11, 12, 13, 2], "max_tokens": 4},
            "the reply would fill all four places; one token of prompt is still left",
        ),
    ),
    hints=(
        "Cut the reply first, to max_tokens - 1. What is then left is the room for the prompt.",
        "The prompt keeps its *last* tokens: prompt[-room:]. The labels are -100 as often as the prompt has tokens, "
        "then the reply.",
        "reply = reply[: max_tokens - 1]; prompt = prompt[-(max_tokens - len(reply)) :]; then "
        '{"input_ids": prompt + reply, "labels": [-100] * len(prompt) + reply}',
    ),
    mistakes=(
        Mistake(learns_the_prompt, "the prompt has labels too: the policy would learn to talk like the user"),
        Mistake(
            shifts_the_labels,
            "the labels are shifted already, and the loss shifts them once more: the label at place t is the id at "
            "place t",
        ),
        Mistake(
            loses_the_first_token,
            "the reply's first token has no label; the loss shifts, so it is predicted at the prompt's last token",
        ),
        Mistake(
            labels_of_the_reply_alone,
            "there are fewer labels than ids: every place needs one, -100 over the prompt",
        ),
        Mistake(zeros_for_ignored, "0 is a token like any other; only -100 is left out of the loss"),
        Mistake(never_cut, "nothing is cut: the item may have at most max_tokens places"),
        Mistake(
            cuts_the_row_at_its_end,
            "the row is cut at its end, where the lesson is: let the prompt lose its beginning instead",
        ),
        Mistake(
            cuts_the_row_at_its_beginning,
            "the row keeps its last tokens even when the reply is too long, so no prompt is left: cut the reply to "
            "max_tokens - 1 first",
        ),
        Mistake(
            prompt_loses_its_end,
            "the prompt loses its end, which holds the question; keep the last ones, prompt[-room:]",
        ),
        Mistake(
            reply_not_cut, "a reply too long for max_tokens - 1 is not cut, and the slice of the prompt goes wrong"
        ),
        Mistake(
            reply_takes_all_the_room,
            "the reply is cut to max_tokens, which leaves no room, and prompt[-0:] is not empty but all of it. Cut the "
            "reply to max_tokens - 1",
        ),
        Mistake(
            as_the_listing,
            "this is the listing: the model reads the prompt alone and never its own words. Put both into one row",
        ),
    ),
)

# ---------------------------------------------------------------- pad_left


def pad_left(prompts, pad):
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts])  # (P, T)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}


def _repadded(prompts, pad, **changes):
    return {**pad_left(prompts, pad), **changes}


def pads_on_the_right(prompts, pad):
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([prompt + [pad] * (width - len(prompt)) for prompt in prompts])
    mask = torch.tensor([[1] * len(prompt) + [0] * (width - len(prompt)) for prompt in prompts])
    return {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}


def masks_by_value(prompts, pad):
    mask = (pad_left(prompts, pad)["input_ids"] != pad).long()
    return _repadded(prompts, pad, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))


def counts_places(prompts, pad):
    ids = pad_left(prompts, pad)["input_ids"]
    return _repadded(prompts, pad, position_ids=torch.arange(ids.shape[1]).expand(ids.shape).clone())


def starts_below_zero(prompts, pad):
    return _repadded(prompts, pad, position_ids=pad_left(prompts, pad)["attention_mask"].cumsum(1) - 1)


def starts_at_one(prompts, pad):
    return _repadded(prompts, pad, position_ids=pad_left(prompts, pad)["attention_mask"].cumsum(1))


def masks_nothing(prompts, pad):
    return _repadded(prompts, pad, attention_mask=torch.ones_like(pad_left(prompts, pad)["input_ids"]))


def ones_at_padding(prompts, pad):
    mask = pad_left(prompts, pad)["attention_mask"]
    return _repadded(prompts, pad, position_ids=(mask.cumsum(1) - 1).masked_fill(mask == 0, 1))


def without_positions(prompts, pad):
    padded = pad_left(prompts, pad)
    return {name: padded[name] for name in ("input_ids", "attention_mask")}


PAD_LEFT = Exercise(
    pad_left,
    difficulty="medium",
    minutes=15,
    cases=(
        Case(
            {"prompts": [[7, 8, 9], [4]], "pad": 0},
            "three tokens and one: the short row is 0 0 4, and its only token has position 0",
        ),
        Case({"prompts": [[1, 5, 1, 6], [1, 9]], "pad": 1}, "the pad token is also a real token of the prompts"),
        Case({"prompts": [[3, 2]], "pad": 0}, "a single prompt needs no padding"),
    ),
    hints=(
        "width = the longest prompt's length. Each row is [pad] * (width - len(prompt)) + prompt.",
        "Make the mask from the lengths, not from the ids: zeros, then a one for each real token. A position is the "
        "number of real tokens before the token.",
        "position_ids = (mask.cumsum(1) - 1).clamp(min=0)",
    ),
    mistakes=(
        Mistake(
            pads_on_the_right,
            "the padding is on the right; then the place after which a reply begins differs from row to row, and the "
            "last place of a short row is padding",
        ),
        Mistake(
            masks_by_value, "the mask asks what a token is, not where it stands: real tokens equal to pad are lost"
        ),
        Mistake(
            counts_places,
            "the positions count places, padding included: the short prompt's first token must have position 0",
        ),
        Mistake(
            starts_below_zero,
            "padding has position -1 here, which a model with learned positions cannot look up: clamp(min=0)",
        ),
        Mistake(starts_at_one, "positions start at 0: the first real token has no real token before it"),
        Mistake(masks_nothing, "the mask is all ones: attention would read the padding"),
        Mistake(
            ones_at_padding, "padding has position 1, as in some scripts; that does no harm, but here it is to be 0"
        ),
        Mistake(without_positions, "position_ids are missing: some models count places if you do not say"),
    ),
)

# ---------------------------------------------------------------- fact_reward


def fact_reward(prompts, completions, facts):
    scores = []
    for text, known in zip(completions, facts, strict=True):
        named = any(f" {fact} " in f" {text} " for fact in known)  # blanks around both: whole words only
        scores.append(float(named) if known else None)
    return scores


def zero_for_missing(prompts, completions, facts):
    return [score or 0.0 for score in fact_reward(prompts, completions, facts)]


def nan_for_missing(prompts, completions, facts):
    return [float("nan") if score is None else score for score in fact_reward(prompts, completions, facts)]


def leaves_missing_out(prompts, completions, facts):
    return [score for score in fact_reward(prompts, completions, facts) if score is not None]


def judging(score):
    """An answer that is right but for its score of (prompt, completion, facts)."""

    def answer(prompts, completions, facts):
        return [float(score(*row)) if row[2] else None for row in zip(prompts, completions, facts, strict=True)]

    return answer


parts_of_words = judging(lambda prompt, text, known: any(fact in text for fact in known))
single_words = judging(lambda prompt, text, known: any(fact in text.split() for fact in known))
words_apart = judging(lambda prompt, text, known: any({*fact.split()} <= {*text.split()} for fact in known))
not_at_the_ends = judging(lambda prompt, text, known: any(f" {fact} " in text for fact in known))
reads_the_prompt = judging(lambda prompt, text, known: any(f" {fact} " in f" {prompt} {text} " for fact in known))
every_fact = judging(lambda prompt, text, known: all(f" {fact} " in f" {text} " for fact in known))
share_of_facts = judging(lambda prompt, text, known: sum(f" {fact} " in f" {text} " for fact in known) / len(known))


def true_or_false(prompts, completions, facts):
    return [None if score is None else score == 1 for score in fact_reward(prompts, completions, facts)]


FACT_REWARD = Exercise(
    fact_reward,
    difficulty="easy",
    minutes=15,
    cases=(
        Case(
            {
                "prompts": ["where do you live ?", "do you have pets ?"],
                "completions": ["i live in rome .", "i have two dogs ."],
                "facts": [("rome",), ("two cats",)],
            },
            "the first reply names its fact, the second a wrong one",
        ),
        Case(
            {
                "prompts": ["hello !", "tell me about the river race .", "and you ?"],
                "completions": ["hi .", "it is in may", "two cats live with me ."],
                "facts": [(), ("paris", "may"), ("two cats",)],
            },
            "the first example has no facts, so there is nothing to judge; the second reply names one of two facts, "
            "at its very end; the third a fact of two words, at its very beginning",
        ),
        Case(
            {
                "prompts": ["when is it ?", "do you like soul music ?", "do you have pets ?"],
                "completions": ["maybe in june .", "yes , i do .", "two dogs and three cats ."],
                "facts": [("may", "paris"), ("soul",), ("two cats",)],
            },
            "none names its fact: 'maybe' is another word, 'soul' is the user's, and 'two' and 'cats' stand apart",
        ),
    ),
    hints=(
        "Go through completions and facts together, and append one entry for each completion: None, 1.0 or 0.0.",
        "Whole words: put a blank on both sides of the text and of the fact, then `in` finds no parts of words.",
        'float(any(f" {fact} " in f" {text} " for fact in known)) if known else None',
    ),
    mistakes=(
        Mistake(
            zero_for_missing,
            "an example without facts gets 0, as if the reply were wrong: there is nothing to judge, so None",
        ),
        Mistake(nan_for_missing, "NaN would do in this package; None is what the signature promises"),
        Mistake(
            leaves_missing_out,
            "a completion without a score is left out, so the others move up to the wrong row: give None in its place",
        ),
        Mistake(parts_of_words, "parts of words count: 'may' is found in 'maybe'"),
        Mistake(single_words, "split() leaves single words, among which a fact of two words is never found"),
        Mistake(
            not_at_the_ends,
            "a fact at the very beginning or end of the reply has no blank on one side: put blanks around the text too",
        ),
        Mistake(words_apart, "the words of a fact count wherever they stand; they have to stand together"),
        Mistake(reads_the_prompt, "what the user said counts as well: look at the completion only"),
        Mistake(share_of_facts, "this is the share of the facts that are named; one of them is enough for 1.0"),
        Mistake(every_fact, "all facts have to be named here; one is enough"),
        Mistake(true_or_false, "scores are numbers: 1.0 and 0.0, not True and False"),
    ),
)

EXERCISES = (TRAINING_ITEM, PAD_LEFT, FACT_REWARD)
