"""Right answers to the exercise of 07f beside the solution, and wrong ones beside the known mistakes."""

RIGHT = {
    "clipped_loss": {
        "the larger of two losses": """
            def clipped_loss(new, old, advantage):
                ratio = torch.exp(new - old)
                plain = -advantage * ratio
                return torch.max(plain, -advantage * torch.clamp(ratio, 1 - 0.2, 1 + 0.2)).mean()
            """,
        "a quotient of probabilities": """
            def clipped_loss(new, old, advantage):
                ratio = new.exp() / old.exp()
                products = torch.stack([advantage * ratio, advantage * ratio.clamp(0.8, 1.2)])
                return -products.min(dim=0).values.mean()
            """,
        "a limit for each sign": """
            def clipped_loss(new, old, advantage):
                ratio = (new - old).exp()
                limited = torch.where(advantage > 0, ratio.clamp(max=1.2), ratio.clamp(min=0.8))
                return -(advantage * limited).mean()
            """,
        "a mask of the digits that still push": """
            def clipped_loss(new, old, advantage):
                ratio = (new - old).exp()
                clipped = ratio.detach().clip(0.8, 1.2)
                pushes = advantage * ratio < advantage * clipped
                stays = advantage * ratio == advantage * clipped
                return -(advantage * torch.where(pushes | stays, ratio, clipped)).sum() / new.numel()
            """,
        "a digit at a time": """
            def clipped_loss(new, old, advantage):
                total = 0
                for n in range(len(new)):
                    for digit in range(new.shape[1]):
                        ratio = (new[n, digit] - old[n, digit]).exp()
                        products = [advantage[n, 0] * ratio, advantage[n, 0] * ratio.clip(0.8, 1.2)]
                        total = total - min(products)
                return total / new.numel()
            """,
    }
}
WRONG = {
    "clipped_loss": {
        "the larger product": ([("torch.minimum", "torch.maximum")], ""),
        "no clip": ([("advantage * clipped", "advantage * ratio")], ""),
    }
}
