"""What lets Megatron-core 0.16 train on CPUs over gloo, for examples and tests: import it before megatron.core.

A job with GPUs needs none of this, and smon_rt neither. Each stand-in says which code of Megatron asks for it. Beside
them a job on CPUs needs the settings that `megatron_pretrain.model_config` explains.
"""

import functools
import warnings

import torch

warnings.filterwarnings("ignore", module="megatron")  # of what is not installed for GPUs

CPU = torch.device("cpu")


def on_cpu(make):
    """A factory of tensors that takes `device="cuda"` for the CPU."""

    @functools.wraps(make)
    def make_on_cpu(*args, **kwargs):
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = CPU
        return make(*args, **kwargs)

    return make_on_cpu


def type_as_on_gpu(tensor, *args, **kwargs):
    found = type_of(tensor, *args, **kwargs)
    return found.replace("torch.", "torch.cuda.", 1) if isinstance(found, str) and "cuda" not in found else found


# Where buffers of gradients and parameters, and tensors to receive into, are made.
torch.cuda.current_device = lambda: CPU
# The number of tokens (schedules), norms (clip_grads) and the loss scale (optimizer) are made on "cuda" by name.
torch.zeros, torch.tensor = on_cpu(torch.zeros), on_cpu(torch.tensor)
# Batches and tied embeddings are moved with it.
torch.Tensor.cuda = lambda tensor, *_, **__: tensor
# Comes after each batch of messages (`batch_p2p_sync`): over gloo a message that was waited for is there.
torch.cuda.synchronize = lambda *_: None
# Optimizers and clipping tell full from half precision by the name "torch.cuda.FloatTensor".
type_of, torch.Tensor.type = torch.Tensor.type, type_as_on_gpu
# Recomputation of activations puts generators back to where they were: there is none on a GPU here, and no dropout.
torch.cuda.random.get_rng_state = lambda *_, **__: torch.zeros(0, dtype=torch.uint8)
torch.cuda._lazy_call = lambda *_, **__: None
