"""Processes that train together: counts, sums and checks over all of them."""

import keras
import numpy as np


def check_whole_state():
    """Raises if a process sees only a part of the state."""
    if count_processes() > 1 and keras.backend.backend() == "jax":
        raise ValueError(
            "Under JAX the state needs one process, because each sees a part of it: train in one "
            f"process, on as many devices, or under torch. Received: {count_processes()} processes"
        )


def count_processes():
    """Returns the number of processes that train together."""
    if keras.backend.backend() == "torch":
        from torch import distributed

        started = distributed.is_available() and distributed.is_initialized()
        return distributed.get_world_size() if started else 1
    if keras.backend.backend() == "jax":
        import jax

        return jax.process_count()
    return 1


def process_index():
    """Returns the number of this torch process; 0 for a single one."""
    if keras.backend.backend() != "torch" or count_processes() == 1:
        return 0
    from torch import distributed

    return distributed.get_rank()


def anywhere(flag):
    """Whether a flag is True in any process; all processes must call this together."""
    if keras.backend.backend() != "torch" or count_processes() == 1:
        return flag
    return bool(sum_over_processes([np.array([float(flag)])])[0][0])


def sum_over_processes(arrays):
    """Sums arrays over torch's processes."""
    if keras.backend.backend() != "torch" or count_processes() == 1 or not arrays:
        return arrays
    import torch
    from torch import distributed

    device = "cuda" if torch.cuda.is_available() else "cpu"
    flat = np.concatenate([array.reshape(-1).astype("float64") for array in arrays])
    flat = torch.from_numpy(flat).to(device)
    distributed.all_reduce(flat)
    parts = np.split(flat.cpu().numpy(), np.cumsum([array.size for array in arrays])[:-1])
    pairs = zip(parts, arrays, strict=True)
    return [part.reshape(array.shape).astype(array.dtype) for part, array in pairs]


def gather_states(states):
    """Gathers the random states of all torch processes, by name and process."""
    count = count_processes()
    if keras.backend.backend() != "torch" or count == 1:
        return states
    found = {}
    for name, state in states.items():
        mine = np.zeros((count, *state.shape))
        mine[process_index()] = state
        for process, value in enumerate(sum_over_processes([mine])[0]):
            found[f"{name}@{process}"] = value.astype(state.dtype)
    return found


def check_same_step(steps, folder):
    """Raises unless all torch processes found a state of the same step."""
    found = np.zeros(count_processes())
    found[process_index()] = steps
    found = sum_over_processes([found])[0]
    if len(set(found.tolist())) > 1:
        raise ValueError(
            "All processes must resume from one state: name a folder that every machine sees. "
            f"Received: {str(folder)!r} with states after steps {found.astype(int).tolist()}"
        )
