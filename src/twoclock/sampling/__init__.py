"""Sources of samples: streams, minibatches, alias tables and transitions of an MDP."""

from twoclock.sampling.minibatches import (
    Minibatches,
    Separate,
    Stream,
    as_sampler,
    common_length,
    draw_indexed,
    epoch,
    shuffle,
)

__all__ = ["Minibatches", "Separate", "Stream", "as_sampler", "common_length", "draw_indexed", "epoch", "shuffle"]
