"""Random programs: two to fourteen statements that make, change, use and differentiate tensors.

`max_pool1d` without a gradient runs another kernel on the CPU, so it always gets one.

A program is text, so that a failing one can be read, reduced and kept. Statements are templates
over the variables so far: `{v}` is one of them, `{n}` a new one. All are 6 x 6, so that any
statement fits any variable. A statement that real PyTorch rejects makes the program invalid.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

VIEWS = """
{n} = {v}.t()
{n} = {v}.transpose(0, 1)
{n} = {v}.reshape(36).view(6, 6)
{n} = {v}[None][0]
{n} = {v}.unflatten(0, (2, 3)).flatten(0, 1)
{n} = {v}[:1].expand(6, 6)
{n} = {v}.detach()
{n} = {v}.narrow(0, 0, 6)
{n} = torch.cat({v}.split(2))
{n} = torch.stack({v}.unbind(1))
{n} = {v}.diagonal().diag_embed()
""".strip().splitlines()
OPERATIONS = """
{n} = {v} * {w}
{n} = {v} + {w}
{n} = {v} - 2 * {w}
{n} = {v} / ({w}.square() + 1)
{n} = {v} @ {w}
{n} = ({v}[None] @ {w}.expand(2, 6, 6))[1]
{n} = {v}.exp().log1p()
{n} = {v}.sigmoid() * {v}
{n} = {v}.softmax(-1)
{n} = {v}.logsumexp(1, keepdim=True) + {v}
{n} = {v}.cumsum(0)
{n} = {v}.sort(dim=1).values
{n} = {v}.amax(0) + {w}
{n} = {v}.std(1, keepdim=True) * {w}
{n} = {v}.clamp(-1, 1)
{n} = {v}.clamp(min={w})
{n} = torch.where({v} > 0, {v}, {w})
{n} = {v}.masked_fill(mask, 0.5)
{n} = torch.einsum('ij,jk->ik', {v}, {w})
{n} = {v}.half().float()
{n} = {v}.norm() * {w}
{n} = {v}.roll(1, 0)
{n} = {v}.tril()
{n} = torch.lerp({v}, {w}, 0.3)
{n} = torch.addmm({v}, {w}, {v})
{n} = {v}.repeat(2, 1)[:6]
""".strip().splitlines()
INDEXING = """
{n} = {v}[order]
{n} = {v}[:, order]
{n} = {v}.index_select(0, order)
{n} = {v}.gather(1, indices)
{n} = {v}.index_add(0, order, {w})
{n} = {v}.scatter_add(1, indices, {w})
{n} = torch.take_along_dim({v}, indices, 1)
{n} = F.embedding(order, {v})
{n} = F.one_hot(order, 6) * {v}
""".strip().splitlines()
IN_PLACE = """
{v}.mul_(2)
{v}.add_({w})
{v}.relu_()
{v}[0] = 1
{v}[:, 1:3].mul_(3)
{v}.zero_()
{v}.copy_({w})
{v}.masked_fill_(mask, 0)
{v}.t().add_(1)
{v}.clamp_(-2, 2)
{v}[order] = {w}
F.leaky_relu({v}, inplace=True)
""".strip().splitlines()
MODULES = """
{n} = first({v})
{n} = second({v}).relu()
{n} = first(second({v}))
{n} = F.gelu({v})
{n} = F.silu({v})
{n} = F.layer_norm({v}, (6,))
{n} = F.rms_norm({v}, (6,))
{n} = F.group_norm({v}, 2)
{n} = F.dropout({v}, 0.5)
{n} = F.conv1d({v}[None], {w}[:, :, None])[0]
{n} = F.scaled_dot_product_attention({v}[None], {w}[None], {v}[None])[0]
{n} = gru({v}[None])[0][0]
{n} = F.cross_entropy({v}, order) * {w}
{n} = F.cross_entropy({v}, order, label_smoothing=0.1) * {w}
{n} = F.mse_loss({v}, {w}) + {v}
{n} = F.smooth_l1_loss({v}, {w}) * {v}
{n} = F.kl_div({v}.log_softmax(-1), {w}.softmax(-1), reduction='batchmean') + {v}
{n} = F.binary_cross_entropy_with_logits({v}, {w}.sigmoid()) + {v}
{n} = F.normalize({v}) + {w}
{n} = F.max_pool1d({v}[None], 3, 1, 1)[0] if {v}.requires_grad else {v}
{n} = F.max_pool2d({v}[None], 3, 1, 1)[0]
""".strip().splitlines()
AUTOGRAD = """
{n} = checkpoint(lambda a: second(first(a).tanh()), {v}, use_reentrant=False)
{n} = checkpoint(lambda a: second(first(a).tanh()), {v}, use_reentrant=True)
{n} = Doubled.apply({v})
{n} = TwoResults.apply({v})[0]
{n} = sum(TwoResults.apply({v}))
{v}.register_hook(lambda g: g * 2)
{v}.register_hook(lambda g: None)
{v}.retain_grad()
kept.append({v})
del {v}
with torch.no_grad(): {n} = {v} * 3
with torch.autocast('cpu', torch.bfloat16): {n} = first({v}).float()
with torch.autograd.graph.save_on_cpu(): {n} = {v}.exp() * {v}
first.weight.requires_grad_(False)
({v}.square().mean() + {w}.sum()).backward(retain_graph=True)
{n} = torch.autograd.grad({v}.square().sum(), [x], create_graph=True)[0]
{n} = torch.autograd.grad({v}.sum(), [x], retain_graph=True)[0]
""".strip().splitlines()
ENDINGS = """
loss.backward()
loss.backward()
loss.backward(retain_graph=True); loss.backward()
torch.autograd.grad(loss, [first.weight], allow_unused=True)
loss.backward(inputs=[x])
grad, = torch.autograd.grad(loss, [x], create_graph=True); grad.square().mean().backward()
kept.append(loss); loss.backward()
""".strip().splitlines()
OPTIMIZERS = """
SGD(parameters, 0.1)
SGD(parameters, 0.1, momentum=0.9)
SGD(parameters, 0.1, momentum=0.9, foreach=False)
Adam(parameters)
Adam(parameters, foreach=False)
Adam(parameters, fused=True)
AdamW(parameters, amsgrad=True, foreach=True)
RMSprop(parameters)
Adagrad(parameters, foreach=False)
Adadelta(parameters)
NAdam(parameters, foreach=True)
Adafactor(parameters)
""".strip().splitlines()
AFTERWARDS = """
torch.nn.utils.clip_grad_norm_(parameters, 1.0)
torch.nn.utils.clip_grad_value_([p for p in parameters if p.grad is not None] or x, 0.1)
for p in parameters: p.grad = None
optimizer.zero_grad(set_to_none=False)
""".strip().splitlines()
KINDS = ((VIEWS, 3), (OPERATIONS, 5), (INDEXING, 2), (IN_PLACE, 2), (MODULES, 4), (AUTOGRAD, 3))


@dataclass(frozen=True)
class Statements:
    """What a program is made of.

    Attributes:
        kinds: lists of statements, with their weights.
        optimizers: one of which may make an update.
        afterwards: what may happen between the backward pass and the update.
        most: statements before the loss.
    """

    kinds: Sequence[tuple[list[str], float]]
    optimizers: list[str]
    afterwards: list[str]
    most: int


NARROW = Statements(KINDS, OPTIMIZERS, AFTERWARDS, most=14)


def program_of(seed: int, attempt: int = 0, statements: Statements = NARROW) -> list[str]:
    """The lines of a program: statements, possibly an optimizer, and the backward pass."""
    chosen = random.Random(f"{seed}.{attempt}")
    names = ["v0"]
    lines = ["v0 = x * 1"]
    kinds, weights = zip(*statements.kinds, strict=True)
    for _ in range(chosen.randint(2, statements.most)):
        (kind,) = chosen.choices(kinds, weights)
        lines.append(_statement(chosen, chosen.choice(kind), names))
    used = chosen.sample(names, min(len(names), 3))
    lines.append("loss = " + " + ".join(f"{name}.float().square().mean()" for name in used))
    lines.append(chosen.choice(ENDINGS))
    if chosen.random() < 0.5:
        lines.append(f"optimizer = optimizer or {chosen.choice(statements.optimizers)}")
        lines += chosen.sample(statements.afterwards, chosen.randint(0, 1))
        lines.append("optimizer.step()")
    return lines


def _statement(chosen: random.Random, template: str, names: list[str]) -> str:
    new = f"v{int(names[-1][1:]) + 1}"
    used = chosen.choice(names)
    line = template.format(v=used, w=chosen.choice(names), n=new)
    if "{n}" in template:
        names.append(new)
    if template == "del {v}" and len(names) > 1:
        names.remove(used)
    return line
