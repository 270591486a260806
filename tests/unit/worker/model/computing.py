"""A model of the worker on random weights, layer by layer, and what the oracle makes of it."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from planner.model.tensors import model_tensors
from worker.engine.reference.forward import forward
from worker.engine.reference.training import begins_of
from worker.model.forward_context import CurrentContext, ForwardContext
from worker.model.model import layer_class
from worker.model.parallel import TensorParallel

ALONE = TensorParallel()
WHOLE = ForwardContext(seed=4, samples=range(7, 9))


def weights_of(model):
    generator = torch.Generator().manual_seed(3)
    weights = {}
    for tensor in model_tensors(model):
        weights[tensor.name] = torch.randn(tensor.shape, generator=generator) * 0.3
        if tensor.padding:
            weights[tensor.name][-tensor.padding :] = 0.0
    return weights


def batch(model):
    tokens = torch.randint(model.vocab, (2, 13), generator=torch.Generator().manual_seed(5))
    return tokens[:, :-1], tokens[:, 1:]


def layers_of(model, tp, shards, context=WHOLE):
    parameters = {name: torch.nn.Parameter(shard.clone()) for name, shard in shards.items()}
    current = CurrentContext()
    current.context = context
    return [
        layer_class(model, index)(model, index, tp, lambda t: parameters[t.name], current)
        for index in range(model.layers + 2)
    ]


def run(layers, tokens):
    x = tokens
    for layer in layers:
        x = layer(x)
    return x


def named(layers):
    found = torch.nn.ModuleList(layers).named_parameters()  # a tied one once
    return dict(found)


def oracle(model, rows=None):
    """(loss, {tensor: gradient}) of the reference, with the documents of each row, if any.

    Of a tensor that is counted its counts.
    """
    weights = {name: weight.requires_grad_() for name, weight in weights_of(model).items()}
    tokens, labels = batch(model)
    begins = None if rows is None else begins_of(rows)
    busy = []
    logits = forward(model, weights, tokens, WHOLE.seed, WHOLE.samples[0], begins, busy)
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    gradients = {name: weight.grad for name, weight in weights.items()}
    counted = [tensor.name for tensor in model_tensors(model) if tensor.is_counted]
    visits = [of_block.visits.float() for of_block in busy]
    return loss.item(), gradients | dict(zip(counted, visits, strict=False))
