"""Right answers to the exercises of 02 beside the solutions, and wrong ones beside the known mistakes."""

RANKS = 3  # with two, a swap with one partner is as good as an allreduce
REDUCE = "comm.Allreduce(mine, total)"
WRITE = "p.grad.copy_(torch.from_numpy(total / comm.size))"
AVERAGE = "average(model, comm)"
SCHEDULE = "schedule.step()"
FLAT = "comm.Allreduce(flat.numpy(), total.numpy())"
PUT_BACK = "p.grad.copy_(piece.view(p.shape))"

RIGHT = {
    "average_gradients": {
        "one message for all parameters": """
            def average_gradients(model, comm):
                flat = torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()
                mean = np.empty_like(flat)
                comm.Allreduce(flat, mean)
                mean, at = torch.from_numpy(mean / comm.size), 0
                for p in model.parameters():
                    p.grad.copy_(mean[at:at + p.numel()].view(p.shape))
                    at += p.numel()
            """,
        "objects": """
            def average_gradients(model, comm):
                for p in model.parameters():
                    p.grad = comm.allreduce(p.grad) / comm.size
            """,
        "divided first": """
            def average_gradients(model, comm):
                for p in model.parameters():
                    mine, total = p.grad.numpy().copy() / comm.size, np.empty(p.shape, dtype=np.float32)
                    comm.Allreduce(mine, total)
                    p.grad.copy_(torch.from_numpy(total))
            """,
    },
    "ranks_agree": {
        "all weights gathered": """
            def ranks_agree(model, comm):
                every = comm.allgather([p.detach().numpy() for p in model.parameters()])
                return all(np.array_equal(a, b) for other in every for a, b in zip(every[0], other))
            """,
        "compared with rank 0, and then with all": """
            def ranks_agree(model, comm):
                flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
                same = bool((flat == comm.bcast(flat)).all())
                return all(comm.allgather(same))
            """,
        "smallest and largest": """
            def ranks_agree(model, comm):
                flat = torch.cat([p.data.flatten() for p in model.parameters()]).numpy()
                low, high = np.empty_like(flat), np.empty_like(flat)
                comm.Allreduce(flat, low, op=MPI.MIN)
                comm.Allreduce(flat, high, op=MPI.MAX)
                return (low == high).all()
            """,
        "rank 0 decides": """
            def ranks_agree(model, comm):
                data = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
                digests = comm.gather(hashlib.sha256(data).hexdigest())
                return comm.bcast(digests.count(digests[0]) == comm.size if comm.rank == 0 else None)
            """,
        "each with its neighbor": """
            def ranks_agree(model, comm):
                mine = [p.tolist() for p in model.parameters()]
                left = comm.sendrecv(mine, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
                return comm.allreduce(int(mine != left)) == 0
            """,
    },
    "weighted_mean": {
        "by NumPy": """
            def weighted_mean(gradient, n_samples, comm):
                return np.average(comm.allgather(gradient), axis=0, weights=comm.allgather(n_samples))
            """
    },
    "train_epoch": {
        "cleared after the step": """
            def train_epoch(model, optimizer, schedule, batches, average, comm):
                for images, labels in batches:
                    cross_entropy(model(images), labels).backward()
                    average(model, comm)
                    optimizer.step(); schedule.step(); model.zero_grad()
            """
    },
    "average_in_one_message": {
        "calls that send nothing": """
            def average_in_one_message(model, comm):
                flat = torch.cat([p.grad.flatten() for p in model.parameters()])
                flat = torch.from_numpy(comm.allreduce(flat.numpy()) / comm.Get_size())
                for p, piece in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()])):
                    p.grad.copy_(piece.view(p.shape))
            """,
        "in place": """
            def average_in_one_message(model, comm):
                flat = torch.nn.utils.parameters_to_vector(p.grad for p in model.parameters())
                comm.Allreduce(MPI.IN_PLACE, flat.numpy())
                at = 0
                for p in model.parameters():
                    p.grad = (flat[at:at + p.numel()] / comm.size).view_as(p); at += p.numel()
            """,
    },
}
WRONG = {
    "average_gradients": {
        "in place": ([(REDUCE, "comm.Allreduce(mine, mine)"), ("total /", "mine /")], "Allreduce(MPI.IN_PLACE, g)"),
        "parameters and gradients": ([(WRITE, f"{WRITE}; p.data.mul_(0.5)")], "average `p.grad`, not `p`"),
        "in memory that nobody wrote": ([(REDUCE, "comm.Reduce(mine, total, root=0)")], ""),
        "only roughly the same": ([(WRITE, f"{WRITE}; p.grad *= 1 + 1e-6 * comm.rank")], "they agree only roughly"),
    },
    "ranks_agree": {
        "the digests instead of an answer": ([("len(set(digests)) == 1", "digests")], "it should `return`"),
        "always": ([("len(set(digests)) == 1", "True")], "rank 0 says True"),
        "on rank 0 only": ([("len(set(digests)) == 1", "len(set(digests)) == 1 or comm.rank > 0")], ""),
        "almost equal": (
            """
            def ranks_agree(model, comm):
                flat = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
                return all(comm.allgather(np.allclose(flat, comm.bcast(flat))))
            """,
            "tolerance",
        ),
        "the first rank and the last": ([("len(set(digests)) == 1", "digests[0] == digests[-1]")], ""),
        "neighbors": ([("len(set(digests)) == 1", "digests[comm.rank] == digests[comm.rank - 1]")], ""),
        "never": ([("len(set(digests)) == 1", "len(set(digests)) == comm.size")], "rank 0 says False"),
        "by Python's hash": (
            """
            def ranks_agree(model, comm):
                data = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
                return len(set(comm.allgather(hash(data)))) == 1
            """,
            "use hashlib",
        ),
    },
    "broadcast_weights": {
        "from a seed": (
            [
                (
                    "comm.Bcast(array, root=0)",
                    "torch.manual_seed(0); [m.reset_parameters() for m in model if hasattr(m, 'reset_parameters')]; "
                    "array = p.numpy().copy()",
                )
            ],
            "",
        )
    },
    "train_epoch": {
        "the first batch only": ([(SCHEDULE, f"{SCHEDULE}; return")], "took 1 of 2 batches"),
        "averaged before backward": (
            [(AVERAGE, "pass"), ("loss.backward()", f"{AVERAGE}; loss.backward()")],
            "parameters had no gradient when `average` was called",
        ),
    },
    "average_in_one_message": {
        "a message for each": (
            [(FLAT, "for p in parameters: p.grad = comm.allreduce(p.grad) / comm.size"), (PUT_BACK, "pass")],
            "they went in 4 messages",
        )
    },
}
NEVER_ENDS = {"average_gradients": {"on rank 0 only": ([(REDUCE, f"if comm.rank == 0: {REDUCE}")], "inside an `if`")}}
