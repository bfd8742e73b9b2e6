"""A small GPT trained with Megatron-core: tensor, pipeline and data parallel. One line records it.

    torchrun --nproc-per-node 4 examples/megatron_pretrain.py --pp 2 --overlap-grad-reduce && smon analyze traces
    torchrun --nproc-per-node 4 -m smon_rt.run examples/megatron_pretrain.py --no-smon --pp 2

Written as pretraining scripts are, on the parts of megatron.core that they use, and runs on CPUs: megatron_on_cpu.py
stands in for what a GPU gives. Needs megatron-core 0.16.1.
"""

import argparse
import dataclasses
import functools

import megatron_on_cpu  # noqa: F401  before megatron.core
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_attr_wrapped_model, get_model_config

VOCABULARY, LENGTH, HIDDEN, MICRO_BATCH, LEARNING_RATE = 128, 32, 64, 2, 3e-3


@dataclasses.dataclass
class Settings:
    """Each is a flag of the command line, by the name that Megatron's own flags have where there is one."""

    tp: int = 1
    pp: int = 2
    vpp: int = 0  # chunks of the model a rank has; 0: one, and the plain 1F1B schedule
    layers: int = 4
    microbatches: int = 4
    steps: int = 20
    optimizer: str = "distributed"  # megatron: Adam on each rank; torch: torch's own, without clipping
    bf16: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    align_param_gather: bool = False
    overlap_p2p: bool = False
    batch_p2p: bool = True
    tie_embeddings: bool = False
    per_token_loss: bool = False
    recompute: bool = False
    eval_every: int = 0
    passes: int = 1  # forward and backward so often in an iteration: Megatron repeats one to check its results


@dataclasses.dataclass
class Result:
    losses: list[float]  # of each step, over all replicas; on ranks of the last stage only
    grad_norms: list[float]


def make_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", default="traces")
    parser.add_argument("--smon", action=argparse.BooleanOptionalAction, default=True)
    for field in dataclasses.fields(Settings):
        flag = f"--{field.name.replace('_', '-')}"
        if field.type is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            parser.add_argument(flag, type=field.type, default=field.default)
    return parser


def main(args, plant=lambda chunks: None):
    """`plant` gets this rank's chunks of the model: megatron_faults.py makes them slow."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if args.smon:
        import smon_rt

        smon_rt.start(args.dir, sample_ratio=1.0)  # the one line
    train(Settings(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Settings)}), plant)
    dist.destroy_process_group()


def train(settings, plant):
    """Trains, and gives the groups of ranks up again."""
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=settings.tp,
        pipeline_model_parallel_size=settings.pp,
        virtual_pipeline_model_parallel_size=settings.vpp or None,
    )
    # What takes a generator of a GPU takes none by this one: there is no dropout, weights are made on the CPU.
    tensor_parallel.random.initialize_rng_tracker(inference_rng_tracker=True)
    torch.manual_seed(1234 + 100 * parallel_state.get_pipeline_model_parallel_rank())
    config = model_config(settings)
    model = get_model(settings, config)
    plant(model)
    optimizer = get_optimizer(settings, config, model)
    iterators = [data_iterator() for _ in model]
    result = Result([], [])
    for iteration in range(1, settings.steps + 1):
        loss, grad_norm = train_step(settings, model, optimizer, iterators)
        result.grad_norms.append(grad_norm)
        if loss is not None:
            result.losses.append(loss)
            if iteration % 10 == 0 and dist.get_rank() == dist.get_world_size() - 1:
                print(f"iteration {iteration:3}: lm loss {loss:.4f}, grad norm {grad_norm:.3f}", flush=True)
        if settings.eval_every and iteration % settings.eval_every == 0:
            evaluate(settings, model, iterators)
    parallel_state.destroy_model_parallel()
    return result


def model_config(settings):
    dtype = torch.bfloat16 if settings.bf16 else torch.float32
    return TransformerConfig(
        num_layers=settings.layers,
        hidden_size=HIDDEN,
        num_attention_heads=4,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=settings.tp,
        pipeline_model_parallel_size=settings.pp,
        virtual_pipeline_model_parallel_size=settings.vpp or None,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=settings.bf16,
        batch_p2p_comm=settings.batch_p2p and not settings.overlap_p2p,
        overlap_p2p_comm=settings.overlap_p2p,
        # An output that is on its way must stay: gloo reads it while it sends.
        deallocate_pipeline_outputs=not settings.overlap_p2p,
        calculate_per_token_loss=settings.per_token_loss,
        recompute_granularity="full" if settings.recompute else None,
        recompute_method="uniform" if settings.recompute else None,
        recompute_num_layers=1 if settings.recompute else None,
        # What has no code for CPUs.
        use_cpu_initialization=True,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )


def get_model(settings, config):
    """This rank's chunks of the model, one unless stages are interleaved."""
    chunks = []
    for number in range(settings.vpp or 1):
        vp_stage = number if settings.vpp else None
        chunk = GPTModel(
            config,
            get_gpt_layer_local_spec(),
            vocab_size=VOCABULARY,
            max_sequence_length=LENGTH,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
            share_embeddings_and_output_weights=settings.tie_embeddings,
            vp_stage=vp_stage,
        )
        chunks.append(Float16Module(config, chunk) if settings.bf16 else chunk)
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=settings.optimizer == "distributed",
        overlap_grad_reduce=settings.overlap_grad_reduce,
        overlap_param_gather=settings.overlap_param_gather,
        align_param_gather=settings.align_param_gather,
        bucket_size=40_000,
    )
    model = [DistributedDataParallel(config, ddp_config, chunk) for chunk in chunks]
    for chunk in model:
        chunk.broadcast_params()
    return model


def get_optimizer(settings, config, model):
    config.finalize_model_grads_func = finalize_model_grads
    if settings.overlap_grad_reduce:
        config.no_sync_func = one_or_all([chunk.no_sync for chunk in model])
    if settings.overlap_param_gather and settings.align_param_gather:
        config.param_sync_func = one_or_all([chunk.start_param_sync for chunk in model])
    if settings.optimizer == "torch":
        return torch.optim.Adam([each for chunk in model for each in chunk.parameters()], lr=LEARNING_RATE)
    optimizer_config = OptimizerConfig(
        optimizer="adam",
        lr=LEARNING_RATE,
        bf16=settings.bf16,
        params_dtype=config.params_dtype,
        use_distributed_optimizer=settings.optimizer == "distributed",
        overlap_param_gather=settings.overlap_param_gather,
    )
    optimizer = get_megatron_optimizer(optimizer_config, model)
    config.grad_scale_func = optimizer.scale_loss
    return optimizer


def one_or_all(functions):
    return functions[0] if len(functions) == 1 else functions


class CountingUp(torch.utils.data.Dataset):
    """Sequences that count up from a random token, the same in each run."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        tokens = (index * 2_654_435_761 + torch.arange(LENGTH + 1)) % VOCABULARY
        return {"tokens": tokens[:-1], "labels": tokens[1:]}


def data_iterator():
    dp_rank, dp_size = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    mine = range(dp_rank, len(CountingUp()), dp_size)
    return iter(torch.utils.data.DataLoader(CountingUp(), batch_size=MICRO_BATCH, sampler=mine))


def forward_step(iterator, model):
    """What the schedule calls for each microbatch."""
    vp_stage = get_attr_wrapped_model(model, "vp_stage")
    batch = {"tokens": None, "labels": None}
    if parallel_state.is_pipeline_first_stage(
        ignore_virtual=False, vp_stage=vp_stage
    ) or parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage):
        # One rank of each tensor parallel group loads, the others get it from that one.
        loaded = next(iterator) if parallel_state.get_tensor_model_parallel_rank() == 0 else None
        batch = tensor_parallel.broadcast_data(["tokens", "labels"], loaded, torch.int64)
    positions = torch.arange(LENGTH).expand(MICRO_BATCH, -1)
    mask = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)[None, None]
    output = model(batch["tokens"], positions, mask, labels=batch["labels"])
    return output, functools.partial(loss_func, get_model_config(model).calculate_per_token_loss)


def loss_func(is_per_token, output):
    losses = output.float()
    reported = {"lm loss": losses.detach().mean()}
    if is_per_token:
        return losses.sum(), torch.tensor(losses.numel(), dtype=torch.int), reported
    return losses.mean(), reported


def train_step(settings, model, optimizer, iterators):
    """Loss, None but on the last stage, and norm of the gradients: of this rank alone with torch's optimizer."""
    for _ in range(settings.passes):
        for chunk in model:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(settings, model, iterators, forward_only=False)
    if settings.optimizer == "torch":
        parameters = [each for chunk in model for each in chunk.parameters()]
        for each in parameters:
            each.grad = each.main_grad
        grad_norm = torch.nn.utils.get_total_norm([each.grad for each in parameters])
        optimizer.step()
    else:
        _, grad_norm, _ = optimizer.step()
    if not losses:
        return None, float(grad_norm)
    loss = torch.stack([each["lm loss"] for each in losses]).mean()
    dist.all_reduce(loss, dist.ReduceOp.AVG, group=parallel_state.get_data_parallel_group())
    return loss.item(), float(grad_norm)


def evaluate(settings, model, iterators):
    for chunk in model:
        chunk.eval()
    with torch.no_grad():
        forward_backward(settings, model, iterators, forward_only=True)
    for chunk in model:
        chunk.train()


def forward_backward(settings, model, iterators, forward_only):
    return get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=one_or_all(iterators),
        model=one_or_all(model),
        num_microbatches=settings.microbatches,
        seq_length=LENGTH,
        micro_batch_size=MICRO_BATCH,
        forward_only=forward_only,
    )


if __name__ == "__main__":
    main(make_parser().parse_args())
