"""A small language model trained with FSDP2 as people write it. The tests plant faults in it by replacing lines."""

import os
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

OUT = Path(os.environ.get("OUT", "."))
WORDS, LENGTH, WIDTH = 50, 12, 32
ACCUMULATE = 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, inputs):
        return inputs + self.layers(self.norm(inputs))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def loss_of(model, tokens):
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def main():
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(1)
    model = Language()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    data = TensorDataset(torch.randint(WORDS, (256, LENGTH), generator=torch.Generator().manual_seed(7)))
    held_out = torch.randint(WORDS, (64, LENGTH), generator=torch.Generator().manual_seed(8))
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for number, (tokens,) in enumerate(loader):
            last = (number + 1) % ACCUMULATE == 0
            model.set_requires_gradient_sync(last)
            (loss_of(model, tokens) / ACCUMULATE).backward()
            if last:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            loss = loss_of(model, held_out[rank::size])
        distributed.all_reduce(loss)
        whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if rank == 0:
            print(f"epoch {epoch}: {loss / size:.3f}")
            torch.save(whole, OUT / "model.tmp")
            (OUT / "model.tmp").replace(OUT / "model.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
