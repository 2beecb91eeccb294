"""Updates: what the optimizers do with one prepared batch, in passes, minibatches and pieces."""

import torch
from torch import Tensor, nn

from grpo_from_scratch.distributed.randomness import numpy_generator
from grpo_from_scratch.objective.surrogates import loss_denominator
from grpo_from_scratch.training.algorithm import Algorithm, Batch
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.schedule import warmup_cosine


class Updater:
    """The policy's optimizer and, with a critic, the critic's; how many updates each has made."""

    def __init__(self, config: TrainConfig, algorithm: Algorithm):
        self.config, self.algorithm = config, algorithm
        groups = [{"params": [p for p in algorithm.model.parameters() if p.requires_grad]}]
        if algorithm.shares_body:
            groups.append({"params": list(algorithm.critic.value_head.parameters()), "lr": config.critic_learning_rate})
        self.optimizer = torch.optim.AdamW(
            groups, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
        )
        self.critic_optimizer = None
        if algorithm.critic is not None:
            module = algorithm.critic.value_head if algorithm.shares_body else algorithm.critic
            self.critic_optimizer = torch.optim.AdamW(
                module.parameters(), lr=config.critic_learning_rate, betas=config.betas, weight_decay=0.0
            )
        self.updates = 0

    def step(self, batch: Batch, step: int) -> dict[str, float]:
        """All updates of one step. Returns metrics, means over tokens; of the policy only when it was updated.

        Raises:
            FloatingPointError: a gradient is not finite; the weights are as they were before its update.
        """
        warming_up = self.algorithm.critic is not None and step < self.config.critic_warmup
        metrics = {} if warming_up else self._update_policy(batch, step)
        if self.critic_optimizer is not None and (warming_up or not self.algorithm.shares_body):
            self._update_critic(batch, step)
        if not warming_up:
            self.algorithm.finish(batch)
        return metrics

    def _update_policy(self, batch: Batch, step: int) -> dict[str, float]:
        preset, config = self.config.preset, self.config
        parts, norms = [], []  # (tokens, metrics) of every piece; gradient norms of every update
        for number in range(preset.passes):
            for rows in self._minibatches(batch, "minibatches", step, number):
                mask = batch.mask[rows]
                denominator = loss_denominator(mask, preset.aggregate, max_new_tokens=config.max_new_tokens)
                rate = self._set_learning_rate()
                self.optimizer.zero_grad()
                for piece in self._pieces(batch, rows):
                    loss, metrics = self.algorithm.loss(piece, denominator=denominator, tokens=mask.sum())
                    loss.backward()
                    parts.append((float(piece.mask.sum()), metrics))
                norms.append(self._clip_and_step(self.optimizer, step))
                self.updates += 1
        return weighted_means(parts) | {"grad_norm": sum(norms) / len(norms), "learning_rate": rate}

    def _update_critic(self, batch: Batch, step: int) -> None:
        for number in range(self.config.critic_passes):
            for rows in self._minibatches(batch, "critic minibatches", step, number):
                self.critic_optimizer.zero_grad()
                for piece in self._pieces(batch, rows):
                    self.algorithm.critic_loss(piece, tokens=batch.mask[rows].sum()).backward()
                self._clip_and_step(self.critic_optimizer, step)

    def _minibatches(self, batch: Batch, purpose: str, step: int, number: int) -> list[Tensor]:
        """Completions in ``config.minibatches`` lots, whole groups together, in an order keyed by step and pass."""
        index = batch.rollout.prompt_index.cpu()
        if self.config.minibatches == 1:
            return [torch.arange(len(index))]
        generator = numpy_generator(self.config.seed, purpose, step, number)
        order = torch.from_numpy(generator.permutation(len(batch.rollout.prompt_ids)))
        return [torch.isin(index, lot).nonzero()[:, 0] for lot in order.tensor_split(self.config.minibatches)]

    def _pieces(self, batch: Batch, rows: Tensor) -> list[Batch]:
        """The minibatch in pieces of at most ``config.microbatch_tokens`` tokens, or of one group: groups stay whole.

        What counts is what a packed forward pass computes: a prompt once, and its completions.
        """
        whole = batch if len(rows) == len(batch.rollout) else batch.select(rows)
        limit, rollout = self.config.microbatch_tokens, whole.rollout
        if not limit:
            return [whole]
        index = rollout.prompt_index.cpu()
        tokens = rollout.prompt_mask.sum(1).cpu().index_add(0, index, rollout.completion_mask.sum(1).cpu())  # (P,)
        piece, held, pieces = 0, 0, []
        for count in tokens.tolist():
            if held and held + count > limit:
                piece, held = piece + 1, 0
            held += count
            pieces.append(piece)
        of_rows = torch.tensor(pieces)[index]  # (B,)
        return [whole.select(of_rows == number) for number in range(piece + 1)] if piece else [whole]

    def _clip_and_step(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
        if not norm.isfinite():
            raise FloatingPointError(
                f"step {step + 1}: the gradient is not finite, and this update was not made; look at the rewards, or "
                "run again in another folder with a lower learning rate"
            )
        optimizer.step()
        return norm.item()

    def _set_learning_rate(self) -> float:
        """The policy's rate follows warm-up and cosine over all updates; a head keeps the critic's constant rate."""
        total = self.config.total_updates
        factor = warmup_cosine(self.updates, warmup=round(self.config.warmup * total), total=total)
        self.optimizer.param_groups[0]["lr"] = rate = self.config.learning_rate * factor
        return rate

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        named = {"optimizer": self.optimizer, "critic_optimizer": self.critic_optimizer}
        return {name: optimizer for name, optimizer in named.items() if optimizer is not None}

    def state_dict(self) -> dict:
        """Moments of every parameter and the counter that the schedule follows."""
        states = {name: optimizer.state_dict() for name, optimizer in self._optimizers().items()}
        for saved in states.values():
            saved["state"] = {str(number): moments for number, moments in saved["state"].items()}
        return states | {"updates": self.updates}

    def load_state_dict(self, state: dict) -> None:
        for name, optimizer in self._optimizers().items():
            saved = state[name]
            moments = {int(number): moments for number, moments in saved["state"].items()}
            optimizer.load_state_dict({"state": moments, "param_groups": saved["param_groups"]})
        self.updates = state["updates"]


def weighted_means(parts: list[tuple[float, dict]]) -> dict[str, float]:
    """Means of metrics over pieces of different sizes, each piece weighted by its tokens: never a mean of means."""
    total = sum(weight for weight, _ in parts)
    if not total:
        return {}
    return {name: sum(weight * float(metrics[name]) for weight, metrics in parts) / total for name in parts[0][1]}
