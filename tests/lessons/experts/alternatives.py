"""Right answers to the exercises of 11d beside the solutions, and wrong ones beside the known mistakes."""

from workshop_lib.lessons.experts import judge as check

RIGHT = {
    "route": {
        "in a loop": """
            def route(probabilities, k):
                gates, chosen = probabilities.topk(k, dim=1)
                taken = [0] * probabilities.shape[1]
                places = torch.zeros_like(chosen)
                for choice in range(k):
                    for token in range(len(probabilities)):
                        expert = chosen[token, choice]
                        places[token, choice] = taken[expert]
                        taken[expert] += 1
                return chosen, gates, places
            """,
        "sorted": """
            def route(probabilities, k):
                gates, chosen = probabilities.sort(dim=1, descending=True)
                gates, chosen = gates[:, :k], chosen[:, :k]
                queue = chosen.T.flatten()
                places = torch.stack([(queue[:at] == expert).sum() for at, expert in enumerate(queue)])
                return chosen, gates, places.reshape(k, -1).T
            """,
    },
    "through_experts": {
        "token by token": """
            def through_experts(tokens, routing, seats, experts, exchange):
                chosen, gates, places = routing
                by_expert = seats.flatten(0, 1)
                for token, (of_token, at) in enumerate(zip(chosen.tolist(), places.tolist())):
                    for expert, place in zip(of_token, at):
                        if place < seats.shape[2]:
                            by_expert[expert, place] = tokens[token]
                home = exchange(experts(exchange(seats))).flatten(0, 1)
                rows = []
                for token, (of_token, at) in enumerate(zip(chosen.tolist(), places.tolist())):
                    row = torch.zeros_like(tokens[token])
                    for choice, (expert, place) in enumerate(zip(of_token, at)):
                        if place < seats.shape[2]:
                            row = row + gates[token, choice] * home[expert, place]
                    rows.append(row)
                return torch.stack(rows)
            """,
        "with places that hold nothing": """
            def through_experts(tokens, routing, seats, experts, exchange):
                chosen, gates, places = routing
                kept = places < seats.shape[2]
                size, local, capacity, width = seats.shape
                at = torch.where(kept, chosen * capacity + places, size * local * capacity)
                flat = tokens.new_zeros(size * local * capacity + 1, width)
                flat = flat.index_add(0, at.flatten(), tokens.repeat_interleave(chosen.shape[1], 0))
                home = exchange(experts(exchange(flat[:-1].view(seats.shape)))).reshape(-1, width)
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
            [("arrived = exchange(seats)", "arrived = exchange(torch.tensor(seats.detach().numpy()))")],
            "autograd",
        ),
        "nobody is dropped": ([(check.KEPT, "kept = places >= 0")], "out of bounds"),
    }
}
