"""Updates: what the optimizers do with one prepared batch, in passes, minibatches and pieces."""

import math

import torch
from torch import Tensor

from grpo_from_scratch.distributed.precision import LossScaler
from grpo_from_scratch.distributed.process_group import World
from grpo_from_scratch.distributed.randomness import numpy_generator
from grpo_from_scratch.distributed.sharding import placed_like
from grpo_from_scratch.objective.surrogates import loss_denominator
from grpo_from_scratch.policy.modules import trained_weights
from grpo_from_scratch.training.algorithm import Algorithm, Batch
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.schedule import warmup_cosine


class Updater:
    """The policy's optimizer and, with a critic, the critic's; how many updates each has made."""

    def __init__(self, config: TrainConfig, algorithm: Algorithm):
        self.config, self.algorithm = config, algorithm
        groups = [{"params": list(trained_weights(algorithm.model).values())}]
        if algorithm.shares_body:
            groups.append({"params": list(algorithm.critic.value_head.parameters()), "lr": config.critic_learning_rate})
        self.optimizer = torch.optim.AdamW(
            groups, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
        )
        self.critic_optimizer = None
        if algorithm.critic is not None:
            module = algorithm.critic.value_head if algorithm.shares_body else algorithm.critic
            self.critic_optimizer = torch.optim.AdamW(
                trained_weights(module).values(), lr=config.critic_learning_rate, betas=config.betas, weight_decay=0.0
            )
        device = next(algorithm.model.parameters()).device
        self.scaler, self.critic_scaler = (LossScaler(config.precision, device) for _ in range(2))
        self.updates = 0

    def step(self, batch: Batch, step: int) -> dict[str, float]:
        """All updates of one step. Returns metrics, means over tokens; of the policy only when it was updated.

        ``sampler_gap``, ``kl_k1_first`` and ``kl_k3_first`` are of the first update alone, before which the policy is
        still the one that sampled: there the gap is 0, and both estimates of the KL are unbiased.

        An update that overflows in fp16 is skipped: weights, moments, learning rate and, when no update of the step is
        made, moving averages stay what they were. ``updates_skipped`` counts them.

        Raises:
            FloatingPointError: a gradient is not finite; the weights are as they were before its update.
        """
        warming_up = self.algorithm.critic is not None and step < self.config.critic_warmup
        before = self.updates
        metrics = {} if warming_up else self._update_policy(batch, step)
        if self.critic_optimizer is not None and (warming_up or not self.algorithm.shares_body):
            self._update_critic(batch, step)
        if self.updates > before:
            self.algorithm.finish(batch)
        return metrics

    def _update_policy(self, batch: Batch, step: int) -> dict[str, float]:
        preset, config, world = self.config.preset, self.config, batch.share.world
        parts, norms, skipped = [], [], 0  # (tokens, metrics) of every piece; gradient norms of every update
        first = []  # those of the first update: there the policy is still the one that sampled
        for number in range(preset.passes):
            for rows in self._minibatches(batch, "minibatches", step, number):
                mask = batch.mask[rows]
                own = loss_denominator(mask, preset.aggregate, max_new_tokens=config.max_new_tokens)
                denominator, tokens = world.sum("denominators", torch.stack([own, mask.sum()]))
                rate = self._set_learning_rate()
                self.optimizer.zero_grad()
                for piece in self._pieces(batch, rows):
                    loss, metrics = self.algorithm.loss(piece, denominator=denominator, tokens=tokens)
                    self.scaler.backward(loss)
                    parts.append((float(piece.mask.sum()), metrics))
                first = first or list(parts)
                norm, made = self._make(self.optimizer, self.scaler, world, step)
                if made:
                    norms.append(norm)
                    self.updates += 1
                else:
                    skipped += 1
        found = {"grad_norm": sum(norms) / len(norms) if norms else math.nan, "learning_rate": rate}
        if config.precision == "fp16":
            found |= {"updates_skipped": skipped, "loss_scale": self.scaler.scale}
        on_policy = weighted_means(first, world)
        found["sampler_gap"] = on_policy.get("sampler_gap", math.nan)
        found |= {f"{name}_first": on_policy[name] for name in ("kl_k1", "kl_k3") if name in on_policy}
        return weighted_means(parts, world) | found

    def _update_critic(self, batch: Batch, step: int) -> None:
        world = batch.share.world
        for number in range(self.config.critic_passes):
            for rows in self._minibatches(batch, "critic minibatches", step, number):
                tokens = world.sum("tokens", batch.mask[rows].sum())
                self.critic_optimizer.zero_grad()
                for piece in self._pieces(batch, rows):
                    self.critic_scaler.backward(self.algorithm.critic_loss(piece, tokens=tokens))
                self._make(self.critic_optimizer, self.critic_scaler, world, step)

    def _minibatches(self, batch: Batch, purpose: str, step: int, number: int) -> list[Tensor]:
        """This rank's rows of ``config.minibatches`` lots, in an order keyed by step and pass.

        The lots are of all ranks' prompts, each with its whole group; a rank may have no row of some lot.
        """
        prompts = batch.prompts.cpu()
        if self.config.minibatches == 1:
            return [torch.arange(len(prompts))]
        generator = numpy_generator(self.config.seed, purpose, step, number)
        order = torch.from_numpy(generator.permutation(batch.share.units))
        return [torch.isin(prompts, lot).nonzero()[:, 0] for lot in order.tensor_split(self.config.minibatches)]

    def _pieces(self, batch: Batch, rows: Tensor) -> list[Batch]:
        """The minibatch in pieces of at most ``config.microbatch_tokens`` tokens, or of one group: groups stay whole.

        What counts is what a packed forward pass computes: a prompt once, and its completions. There are as many pieces
        on every rank, some perhaps empty, since weights in slices are gathered anew for each.
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
        most = int(torch.cat(batch.share.world.gather("pieces", torch.tensor([piece + 1]))).max())
        of_rows = torch.tensor(pieces, dtype=torch.long)[index]  # (B,)
        return [whole.select(of_rows == number) for number in range(most)] if most > 1 else [whole]

    def _make(self, optimizer, scaler: LossScaler, world: World, step: int) -> tuple[float, bool]:
        """One update from the gradients that all ranks have: its norm, and whether it was made."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        world.sum_gradients(f"gradients of step {step + 1}", parameters)
        try:
            return scaler.step(optimizer, parameters, self.config.max_grad_norm)
        except FloatingPointError as error:
            raise FloatingPointError(
                f"step {step + 1}: {error}, and this update was not made; look at the rewards, or "
                "run again in another folder with a lower learning rate"
            ) from None

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
        """Moments of every parameter, the counter that the schedule follows, and the loss scales."""
        states = {name: optimizer.state_dict() for name, optimizer in self._optimizers().items()}
        for saved in states.values():
            saved["state"] = {str(number): moments for number, moments in saved["state"].items()}
        scales = {"scaler": self.scaler.state_dict(), "critic_scaler": self.critic_scaler.state_dict()}
        return states | scales | {"updates": self.updates}

    def load_state_dict(self, state: dict) -> None:
        for name, optimizer in self._optimizers().items():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            saved = {int(number): moments for number, moments in state[name]["state"].items()}
            moments = {number: _laid_out(saved[number], parameters[number]) for number in saved}
            optimizer.load_state_dict({"state": moments, "param_groups": state[name]["param_groups"]})
        self.scaler.load_state_dict(state["scaler"])
        self.critic_scaler.load_state_dict(state["critic_scaler"])
        self.updates = state["updates"]


def weighted_means(parts: list[tuple[float, dict]], world: World) -> dict[str, float]:
    """Means of metrics over pieces of different sizes on all ranks, each piece weighted by its tokens: never a mean of
    means."""
    names = list(parts[0][1]) if parts else []
    sums = [sum(weight * float(metrics[name]) for weight, metrics in parts) for name in names]
    own = torch.tensor([sum(weight for weight, _ in parts), *sums], dtype=torch.float64)
    total, *sums = world.sum("metrics", own).tolist()
    return {name: value / total for name, value in zip(names, sums, strict=True)} if total else {}


def _laid_out(moments: dict[str, Tensor], parameter: Tensor) -> dict[str, Tensor]:
    """One parameter's moments on the ranks like the parameter; its count of steps is everywhere."""
    return {name: placed_like(m, parameter) if m.shape == parameter.shape else m for name, m in moments.items()}
