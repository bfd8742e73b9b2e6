"""Hugging Face's Trainer with a small GPT-2 of its own making, nothing of smon_rt in it.

pip install transformers accelerate
torchrun --nproc-per-node 2 -m smon_rt.run --dir traces examples/hf_trainer.py && smon analyze traces
"""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCABULARY, LENGTH, BATCH = 64, 32, 8
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
tokens = (torch.randint(VOCABULARY, (1024, 1)) + torch.arange(LENGTH)) % VOCABULARY
config = GPT2Config(
    vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
with tempfile.TemporaryDirectory() as folder:
    settings = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=BATCH,
        max_steps=args.steps,
        learning_rate=3e-3,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
    )
    data = [{"input_ids": row, "labels": row} for row in tokens]
    Trainer(GPT2LMHeadModel(config), settings, train_dataset=data).train()
