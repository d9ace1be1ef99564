"""The recurrence of an LSTM, with or without a projection, and its hand-written gradient.

One product before the loop computes the contribution of the inputs to the gates for all steps. One
product after the loop computes the gradient of each weight matrix. Only the products with the state
stay in the loop. Automatic differentiation would add a product and a sum over all weights for every
step.

Shapes: T steps, B batch, D width of the input, n cells, P width of the hidden state (n without a
projection).
"""

import functools

import keras
from keras import ops

from keras_plm.layers._fused.scan import fold


def lstm(
    x, kernel, recurrent_kernel, bias, projection, state, cell_clip=None, projection_clip=None
):
    """Runs an LSTM over time.

        i, j, f, o = x_t K + m W + b,    c = clip(σ(f) c + σ(i) tanh(j)),
        m = clip((σ(o) tanh(c)) W_P).

    Reference: Sak et al. 2014, arXiv 1402.1128, section 2, without peepholes.

    Args:
        x: (T, B, D).
        kernel: (D, 4 n), K: the columns of the gates i, j, f, o.
        recurrent_kernel: (P, 4 n), W.
        bias: (4 n,).
        projection: (n, P), or `None` for P = n and m = σ(o) tanh(c).
        state: `(m, c)` before the first step, (B, P) and (B, n) float32.
        cell_clip, projection_clip: Largest absolute value of c and of m; `None` for no limit.

    Returns:
        `(ms, cs)`, (T, B, P) and (T, B, n) float32. For a plain LSTM on torch `cs` is `None`:
        the kernel returns no cells per step. No gradient flows back from `cs`.
    """
    clips = cell_clip, projection_clip
    if keras.backend.backend() == "torch":
        if projection is None and clips == (None, None):
            return _torch_plain_lstm(x, kernel, recurrent_kernel, bias, state)
        inputs = (x.flatten(0, 1) @ kernel + bias).view(*x.shape[:2], -1)
        return _torch_lstm()(inputs, recurrent_kernel, projection, *state, *clips)
    inputs = ops.matmul(x, kernel) + bias  # (T, B, 4 n)
    # Tensors, because eager TensorFlow asks a custom gradient for gradients of variables, too.
    recurrent_kernel = _read(recurrent_kernel)
    if projection is None:

        @ops.custom_gradient
        def run(inputs, recurrent_kernel, m, c):
            outputs, saved = _forward(inputs, recurrent_kernel, None, m, c, *clips)
            return outputs, functools.partial(_backward, saved, recurrent_kernel, None, clips)

        return run(inputs, recurrent_kernel, *state)

    projection = _read(projection)

    @ops.custom_gradient
    def run_projected(inputs, recurrent_kernel, projection, m, c):
        outputs, saved = _forward(inputs, recurrent_kernel, projection, m, c, *clips)
        return outputs, functools.partial(_backward, saved, recurrent_kernel, projection, clips)

    return run_projected(inputs, recurrent_kernel, projection, *state)


def _read(weight):
    """Converts a weight to a tensor."""
    return ops.cast(weight, weight.dtype)


def _clip(x, limit):
    return x if limit is None else ops.clip(x, -limit, limit)


def _gates(z, units):
    """Computes the four gates from (B, 4 n) in float32."""
    z = ops.cast(z, "float32")
    sigmoid, tanh = ops.sigmoid, ops.tanh
    i, j = sigmoid(z[..., :units]), tanh(z[..., units : 2 * units])
    return i, j, sigmoid(z[..., 2 * units : 3 * units]), sigmoid(z[..., 3 * units :])


def _forward(inputs, recurrent_kernel, projection, m, c, cell_clip, projection_clip):
    units = c.shape[-1]

    def step(state, inputs):
        m, c = state
        i, j, f, o = _gates(inputs[0] + ops.matmul(m, recurrent_kernel), units)
        c = _clip(f * c + i * j, cell_clip)
        h = ops.cast(o * ops.tanh(c), m.dtype)
        m = h if projection is None else _clip(ops.matmul(h, projection), projection_clip)
        return (m, c), (m, c, i, j, f, o)

    _, (ms, cs, *gates) = fold(step, (m, c), (inputs,))
    return (ms, cs), (m, c, ms, cs, *gates)


def _backward(saved, recurrent_kernel, projection, clips, *upstream, **kwargs):
    """Computes gradients for inputs, recurrent kernel, projection (if any), m and c."""
    upstream = kwargs.get("upstream", upstream)
    upstream = upstream[0] if len(upstream) == 1 else upstream
    wanted = upstream[0]  # gradient of the states; that of the cells is ignored
    first_m, first_c, ms, cs, *gates = saved
    cell_clip, projection_clip = clips
    kernel, back = ops.transpose(recurrent_kernel), None
    if projection is not None:
        back = ops.transpose(projection)
    before = ops.concatenate([first_c[None], cs[:-1]], axis=0)

    def step(state, inputs):
        dz, dc = state
        wanted, m, c, before, i, j, f, o = inputs
        dm = wanted + ops.matmul(dz, kernel)
        if projection is not None and projection_clip is not None:
            dm = dm * ops.cast(ops.abs(m) < projection_clip, dm.dtype)
        dh = ops.cast(dm if projection is None else ops.matmul(dm, back), "float32")
        tanh = ops.tanh(c)
        dc = dc + dh * o * (1 - tanh * tanh)
        if cell_clip is not None:
            dc = dc * ops.cast(ops.abs(c) < cell_clip, "float32")
        slopes = (
            dc * j * i * (1 - i),
            dc * i * (1 - j * j),
            dc * before * f * (1 - f),
            dh * tanh * o * (1 - o),
        )
        dz = ops.cast(ops.concatenate(slopes, axis=-1), dm.dtype)
        return (dz, dc * f), (dm, dz)

    start = ops.zeros_like(ops.concatenate([first_c] * 4, axis=-1)), ops.zeros_like(first_c)
    start = ops.cast(start[0], ms.dtype), start[1]
    steps = (wanted, ms, cs, before, *gates)
    (last, dc), (dm, dz) = fold(step, start, steps, reverse=True)
    first = ops.matmul(last, kernel), dc
    d_kernel = _outer(ops.concatenate([first_m[None], ms[:-1]], axis=0), dz)
    if projection is None:
        return dz, d_kernel, *first
    h = ops.cast(gates[3] * ops.tanh(cs), ms.dtype)
    return dz, d_kernel, _outer(h, dm), *first


def _outer(a, b):
    """Sums outer products over steps and rows: (T, B, x) and (T, B, y) -> (x, y)."""
    a = ops.reshape(a, (-1, a.shape[-1]))
    return ops.matmul(ops.transpose(a), ops.reshape(b, (-1, b.shape[-1])))


def _torch_plain_lstm(x, kernel, recurrent_kernel, bias, state):
    """Runs torch's kernel, fused on every device; its gates have another order: i, f, j, o."""
    import torch

    def reordered(weight):
        i, j, f, o = weight.chunk(4, dim=-1)
        return torch.cat([i, f, j, o], dim=-1).t().contiguous()  # as cuDNN requires

    weights = [reordered(w) for w in (kernel, recurrent_kernel, bias[None])]
    weights[2] = weights[2][:, 0]
    weights.append(torch.zeros_like(weights[2]))
    state = [s[None].to(x.dtype) for s in state]
    training = torch.is_grad_enabled()
    return torch.lstm(x, state, weights, True, 1, 0.0, training, False, False)[0], None


@functools.cache
def _torch_lstm():
    import torch

    class Recurrence(torch.autograd.Function):
        """The computation of `_forward` and `_backward`, in place and without copies of steps."""

        @staticmethod
        def forward(ctx, inputs, kernel, projection, m, c, cell_clip, projection_clip):
            gates, cs, hs, ms = _torch_forward(
                inputs, kernel, projection, m, c, cell_clip, projection_clip
            )
            ctx.save_for_backward(kernel, projection, m, c, gates, cs, hs, ms)
            ctx.clips = cell_clip, projection_clip
            ctx.mark_non_differentiable(cs)
            return ms, cs

        @staticmethod
        def backward(ctx, wanted, _):
            return *_torch_backward(ctx.saved_tensors, *ctx.clips, wanted), None, None

    return Recurrence.apply


def _torch_forward(inputs, kernel, projection, m, c, cell_clip, projection_clip):
    """Computes the activated gates i, j, f, o, and c, h and m, of every step."""
    import torch

    n = c.shape[-1]
    gates, hs = torch.empty_like(inputs), inputs.new_empty((len(inputs), *c.shape))
    cs = hs.new_empty(hs.shape, dtype=torch.float32)
    ms = hs if projection is None else inputs.new_empty((len(inputs), *m.shape))
    for t, gate in enumerate(gates):
        torch.addmm(inputs[t], m, kernel, out=gate)
        gate[:, :n].sigmoid_()
        gate[:, n : 2 * n].tanh_()
        gate[:, 2 * n :].sigmoid_()
        i, j, f, o = gate.split(n, dim=1)
        c = _torch_clip_(torch.mul(f, c, out=cs[t]).addcmul_(i, j), cell_clip)
        torch.tanh(c, out=hs[t]) if hs.dtype == c.dtype else hs[t].copy_(c.tanh())
        m = hs[t].mul_(o)
        if projection is not None:
            m = _torch_clip_(torch.mm(m, projection, out=ms[t]), projection_clip)
    return gates, cs, hs, ms


def _torch_backward(saved, cell_clip, projection_clip, wanted):
    """Computes gradients for inputs, recurrent kernel, projection (or `None`), m and c."""
    import torch

    kernel, projection, first_m, first_c, gates, cs, hs, ms = saved
    steps, batch, four = gates.shape
    within_c = _torch_within(cs, cell_clip)
    within_m = _torch_within(ms, None if projection is None else projection_clip)
    # Factors that need no gradient are computed for all steps at once, so a step has few kernels.
    gates = gates.view(steps, batch, 4, four // 4)
    i, j, f, o = gates.unbind(2)
    tanh = cs.tanh()
    dz = gates * (1 - gates)
    dz[:, :, 0].mul_(j)
    dz[:, :, 1] = (1 - j.square()).mul_(i)
    dz[0, :, 2].mul_(first_c)
    dz[1:, :, 2].mul_(cs[:-1])
    dz[:, :, 3].mul_(tanh)
    to_c, to_before = o * (1 - tanh.square()), f  # from h to c, and from c to the c before
    if within_c is not None:
        to_c.mul_(within_c)
        to_before = torch.cat([f[:1], f[1:] * within_c[:-1]])
    dms = wanted.new_empty(wanted.shape) if projection is not None else None
    transposed, back = kernel.t(), None if projection is None else projection.t()
    of_gates, dz = dz, dz.flatten(2)
    dc, dm = torch.zeros_like(first_c), wanted[steps - 1]
    for t in reversed(range(steps)):
        if t < steps - 1:
            dm = torch.addmm(wanted[t], dz[t + 1], transposed)
        dh = dm = _torch_held(dm, within_m, t)
        if projection is not None:
            dms[t] = dm
            dh = torch.mm(dm, back)
        dc = dc + dh * to_c[t]
        of_gates[t, :, :3].mul_(dc[:, None])
        of_gates[t, :, 3].mul_(dh)
        dc = dc * to_before[t]
    before = torch.cat([first_m[None], ms[:-1]])
    d_projection = None if projection is None else _torch_outer(hs, dms)
    return dz, _torch_outer(before, dz), d_projection, dz[0] @ transposed, dc


def _torch_clip_(x, limit):
    return x if limit is None else x.clamp_(-limit, limit)


def _torch_within(x, limit):
    """Returns a mask of values below the clip, or `None` if all are, the usual case on a CPU.

    A GPU would have to wait for the answer.
    """
    if limit is None:
        return None
    within = x.abs() < limit
    return None if within.device.type == "cpu" and within.all() else within


def _torch_held(gradient, within, t):
    return gradient if within is None else gradient * within[t]


def _torch_outer(a, b):
    """Computes `_outer` in torch."""
    return a.flatten(0, 1).t() @ b.flatten(0, 1)
