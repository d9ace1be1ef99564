"""Private functions of Keras and torch that the library uses, each with its fallback.

`PRIVATE_APIS` lists every such name, and a test compares it with the source. Names with a fallback
here have no other callers than the functions below.
"""

import keras

# The versions with which every entry was checked.
VERSIONS = {"keras": "3.15", "torch": "2.13"}

OVERRIDE = "none: Keras calls it; the tests of the optimizers compare with NumPy"
STATE = "none: state of Keras' optimizers that is read or set; as for overrides"

# Name: (its owner, its use here, its fallback).
PRIVATE_APIS = {
    "_flatten_layers": ("keras.Layer", "`every_layer`", "a walk over the attributes"),
    "_symbolic_build": ("keras.Model", "`build_for_training`", "a first evaluation"),
    "_maybe_symbolic_build": ("keras.Model", "one build on several TensorFlow devices", "none"),
    "_post_quantize": ("keras.Model", "on torch, free weights", "those before `quantize` stay"),
    "_nodes_by_depth": ("keras.Model", "calls of a backbone's blocks, in order", "none"),
    "_fused_adamw_": ("torch", "`adamw_step`", "the same formula, weight by weight"),
    "_fused_adagrad_": ("torch", "`adagrad_step`", "the same formula, weight by weight"),
    "_foreach_norm": ("torch", "`norms`", "`torch.linalg.vector_norm`"),
    "_apply_weight_decay": ("keras.optimizers.Optimizer", "decay in the kernel", OVERRIDE),
    "_backend_apply_gradients": ("keras.optimizers.Optimizer", "later starts", OVERRIDE),
    "_backend_update_step": ("keras.optimizers.Optimizer", "one kernel on torch", OVERRIDE),
    "_clip_gradients": ("keras.optimizers.Optimizer", "the norm of all devices", OVERRIDE),
    "_get_current_learning_rate": ("keras.optimizers.Optimizer", "schedules", OVERRIDE),
    "_update_model_variables_moving_average": ("keras.optimizers.Optimizer", "EMA", OVERRIDE),
    "_use_weight_decay": ("keras.optimizers.Optimizer", "weights without decay", OVERRIDE),
    "_get_variable_index": ("keras.optimizers.Optimizer", "a weight's slots", STATE),
    "_accumulators": ("keras.optimizers.Adagrad", "AdaGrad's sums", STATE),
    "_iterations": ("keras.optimizers.Optimizer", "number of steps", STATE),
    "_learning_rate": ("keras.optimizers.Optimizer", "the schedule itself", STATE),
    "_model_variables_moving_average": ("keras.optimizers.Optimizer", "EMA", STATE),
}


def every_layer(model):
    """Returns a layer and all layers in it, at any depth, each once."""
    if hasattr(model, "_flatten_layers"):
        return list(model._flatten_layers())
    found, waiting = {}, [model]
    while waiting:
        x = waiting.pop(0)
        if isinstance(x, keras.Layer) and id(x) not in found:
            found[id(x)] = x
            public = list(x.layers) if isinstance(x, keras.Model) else []
            waiting[:0] = [*public, *vars(x).values()]
        elif isinstance(x, dict):
            waiting[:0] = x.values()
        elif isinstance(x, (list, tuple)):
            waiting[:0] = x
    return list(found.values())


def build_for_training(model, batch):
    """Creates the variables of a compiled model's optimizer and metrics.

    Args:
        model: A compiled `keras.Model`.
        batch: `(x, y)` or `(x, y, sample_weight)`.
    """
    if hasattr(model, "_symbolic_build"):
        model._symbolic_build(data_batch=batch)
        return
    model.test_on_batch(*batch)
    model.reset_metrics()
    model.optimizer.build(model.trainable_variables)


def norms(tensors):
    """Returns the Euclidean norm of each torch tensor of a list, a list of tensors ()."""
    import torch

    if hasattr(torch, "_foreach_norm"):
        return torch._foreach_norm(tensors)
    return [torch.linalg.vector_norm(x) for x in tensors]


def _in_one_layout(weights, gradients, *slots):
    """Returns gradients with the strides of their weights; `None` if a slot has other strides.

    torch's fused kernels read each tensor in the order of memory.
    """
    import torch

    if any(w.stride() != x.stride() for of in slots for w, x in zip(weights, of, strict=True)):
        return None
    return [
        g if g.stride() == w.stride() else torch.empty_like(w, dtype=g.dtype).copy_(g)
        for w, g in zip(weights, gradients, strict=True)
    ]


def adamw_step(weights, gradients, means, squares, *, step, lr, beta1, beta2, decay, eps, scale):
    """Takes a step of AdamW on lists of torch tensors, in place.

        g = g / scale,  w = w - lr decay w,  m = β1 m + (1 - β1) g,  v = β2 v + (1 - β2) g²,
        w = w - lr (m / (1 - β1^t)) / (sqrt(v / (1 - β2^t)) + eps).

    Args:
        weights, gradients, means, squares: Lists of tensors of the same shapes: w, g, m, v.
        step: () t, float32. A large value makes both bias corrections 1.
        lr: () learning rate.
        beta1, beta2, decay, eps: Numbers.
        scale: () divisor of the gradients, or `None`.
    """
    import torch

    laid_out = _in_one_layout(weights, gradients, means, squares)
    if hasattr(torch, "_fused_adamw_") and laid_out is not None:
        torch._fused_adamw_(
            weights,
            laid_out,
            means,
            squares,
            [],
            [step] * len(weights),
            lr=lr,
            beta1=beta1,
            beta2=beta2,
            weight_decay=decay,
            eps=eps,
            amsgrad=False,
            maximize=False,
            grad_scale=scale,
            found_inf=None if scale is None else torch.zeros((), device=scale.device),
        )
        return
    for w, g, m, v in zip(weights, gradients, means, squares, strict=True):
        g = g if scale is None else g / scale
        w.mul_(1 - lr * decay)
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        root = (v / (1 - beta2**step)).sqrt() + eps
        w.sub_(lr * m / (1 - beta1**step) / root)


def adagrad_step(weights, gradients, sums, *, lr, eps):
    """Takes a step of AdaGrad on lists of torch tensors, in place.

        s = s + g²,  w = w - lr g / (sqrt(s) + eps).

    Args:
        weights, gradients, sums: Lists of tensors of the same shapes: w, g, s.
        lr: Learning rate, a float.
        eps: Number added to the root.
    """
    import torch

    laid_out = _in_one_layout(weights, gradients, sums)
    if hasattr(torch, "_fused_adagrad_") and laid_out is not None:
        torch._fused_adagrad_(
            weights,
            laid_out,
            sums,
            [torch.tensor(1.0) for _ in sums],
            lr=lr,
            lr_decay=0.0,
            weight_decay=0.0,
            eps=eps,
            maximize=False,
        )
        return
    for w, g, s in zip(weights, gradients, sums, strict=True):
        s.addcmul_(g, g)
        w.sub_(lr * g / (s.sqrt() + eps))
