"""Right answers to the exercises of 11d beside the solutions, and wrong ones beside the known mistakes."""

RIGHT = {
    "route": {
        "in a loop": """
            def route(probabilities, k):
                gates, chosen = probabilities.topk(k, dim=1)
                taken = [0] * probabilities.shape[1]
                slots = torch.zeros_like(chosen)
                for choice in range(k):
                    for token in range(len(probabilities)):
                        expert = chosen[token, choice]
                        slots[token, choice] = taken[expert]
                        taken[expert] += 1
                return chosen, gates, slots
            """,
        "sorted": """
            def route(probabilities, k):
                gates, chosen = probabilities.sort(dim=1, descending=True)
                gates, chosen = gates[:, :k], chosen[:, :k]
                queue = chosen.T.flatten()
                slots = torch.stack([(queue[:at] == expert).sum() for at, expert in enumerate(queue)])
                return chosen, gates, slots.reshape(k, -1).T
            """,
    },
    "through_experts": {
        "token by token": """
            def through_experts(tokens, routing, buffer, experts, exchange):
                chosen, gates, slots = routing
                by_expert = buffer.flatten(0, 1)
                for token, (of_token, at) in enumerate(zip(chosen.tolist(), slots.tolist())):
                    for expert, slot in zip(of_token, at):
                        if slot < buffer.shape[2]:
                            by_expert[expert, slot] = tokens[token]
                home = exchange(experts(exchange(buffer))).flatten(0, 1)
                rows = []
                for token, (of_token, at) in enumerate(zip(chosen.tolist(), slots.tolist())):
                    row = torch.zeros_like(tokens[token])
                    for choice, (expert, slot) in enumerate(zip(of_token, at)):
                        if slot < buffer.shape[2]:
                            row = row + gates[token, choice] * home[expert, slot]
                    rows.append(row)
                return torch.stack(rows)
            """,
        "with slots that hold nothing": """
            def through_experts(tokens, routing, buffer, experts, exchange):
                chosen, gates, slots = routing
                kept = slots < buffer.shape[2]
                size, local, capacity, width = buffer.shape
                at = torch.where(kept, chosen * capacity + slots, size * local * capacity)
                flat = tokens.new_zeros(size * local * capacity + 1, width)
                flat = flat.index_add(0, at.flatten(), tokens.repeat_interleave(chosen.shape[1], 0))
                home = exchange(experts(exchange(flat[:-1].view(buffer.shape)))).reshape(-1, width)
                home = torch.cat([home, torch.zeros_like(home[:1])])
                return (home[at] * gates[:, :, None]).sum(dim=1)
            """,
    },
}
WRONG = {
    "through_experts": {
        "three exchanges": (
            [("home = exchange(experts(arrived))", "home = exchange(exchange(exchange(experts(arrived))))")],
            "two exchanges are enough",
        ),
        "as an array": (
            [("arrived = exchange(buffer)", "arrived = exchange(torch.tensor(buffer.detach().numpy()))")],
            "autograd",
        ),
        "nobody is dropped": ([("kept = slots < buffer.shape[2]", "kept = slots >= 0")], "out of bounds"),
    }
}
