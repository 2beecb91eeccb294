"""Real people's ratings of their conversations (BYU's Chit Chat Challenge, package chitchat-dataset).

One rating for each conversation, of the conversation as a whole, 1 to 10 on three aspects. No conversation is rated
twice and no rater is named, so agreement cannot be computed from them; what can is how they are distributed, and how
automatic measures go with them. Both teach caution. 2 920 of 5 988 are 5 on every aspect: "witty" is 5 for 3 294 and
4 or 6 for 255, the mark of a form that starts at 5 and takes no choice for an answer, though the package does not say
so. And 2 284 are of a single message, which nobody answered; 70 % of those are 5 on every aspect.
"""

from dataclasses import dataclass

from grpo_from_scratch.dialogue.extras import extra

CHITCHAT_ASPECTS = ("witty", "interesting", "upbeat")


@dataclass(frozen=True)
class RatedConversation:
    """A conversation and what it was rated, 1 (worst) to 10 (best), by CHITCHAT_ASPECTS."""

    messages: tuple[str, ...]
    scores: dict[str, int]


def chitchat_ratings() -> list[RatedConversation]:
    """The conversations that have a rating (5 988 of the 7 168 of version 0.9.0), in the package's order.

    Raises:
        ImportError: the package is not installed.
    """
    found = []
    for conversation in extra("chitchat_dataset", "chitchat", "data chitchat").Dataset().values():
        if rating := conversation.get("ratings"):
            parts = (" ".join(part["text"] for part in message).strip() for message in conversation["messages"])
            scores = {aspect: int(rating[aspect]) for aspect in CHITCHAT_ASPECTS}
            found.append(RatedConversation(tuple(part for part in parts if part), scores))
    return found
