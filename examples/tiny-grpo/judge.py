"""The reward of this example: the share of digits in what the model said.

`compute_reward` is the interface of every judge: the trainer calls it once for each answer.
"""

from __future__ import annotations


def compute_reward(response: str, ground_truth: object, metadata: dict) -> float:  # noqa: ARG001 - every judge takes it
    """How much of `response` is digits.

    Args:
        response: the model's answer, without special tokens.
        ground_truth: the row's `ground_truth`; here the least number of characters of an answer
            that can earn the full reward, so that one lucky digit is not worth as much as eight.
        metadata: the row's `id` and `messages`, and the `step` of the training; not needed here.

    Returns:
        From 0.0 (no digit at all, or nothing said) to 1.0 (digits only, and enough of them).
    """
    digits = sum(character.isdigit() for character in response)
    return digits / max(len(response), int(ground_truth), 1)
