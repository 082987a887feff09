"""Right answers to the exercises of 14 beside the solutions, and wrong ones beside the known mistakes."""

from lessons.hyperparameter_search import judge as check

LOOP = "for rung in reversed(range(len(self.rungs) - 1)):"
GOOD = "len(scores) // self.eta"
LOWEST_FIRST = '''
class Asha:
    """The lowest rung first, trials numbered from 5, accuracies sorted upwards."""

    def __init__(self, draw, rungs, eta=3):
        self.draw, self.rungs, self.eta = draw, rungs, eta
        self.of = {}
        self.reached, self.next = {}, 5

    def ask(self):
        for rung in range(len(self.rungs) - 1):
            there = {t: s[rung] for t, s in self.reached.items() if len(s) > rung}
            for trial in sorted(there, key=there.get)[::-1][: int(len(there) / self.eta)]:
                if self.of[trial][1] == rung:
                    self.of[trial][1] = rung + 1
                    return [trial, self.of[trial][0], self.rungs[rung + 1]]
        trial, self.next = self.next, self.next + 1
        self.of[trial], self.reached[trial] = [self.draw(), 0], []
        return [trial, self.of[trial][0], self.rungs[0]]

    def tell(self, trial, images, accuracy):
        self.reached[trial].append(accuracy)
'''

RIGHT = {
    "draw": {
        "with exp and log": """
            def draw(random):
                lr = np.exp(random.uniform(np.log(0.001), np.log(1)))
                batch = 2 ** random.integers(4, 8)
                return {"batch": batch, "momentum": (0, 0.5, 0.9)[random.integers(3)], "lr": lr}
            """,
        "with logspace": """
            def draw(random):
                rest = {"batch": random.choice([16, 32, 64, 128]), "momentum": random.choice([0.0, 0.5, 0.9])}
                return rest | {"lr": 0.001 * 1000 ** random.random()}
            """,
    },
    "Asha": {"the lowest rung first": LOWEST_FIRST},
    "winner": {
        "sorted": """
            def winner(rows):
                *_, best = sorted(rows, key=lambda row: row["held_out"])
                return [best["trial"], best["test"]]
            """
    },
}
WRONG = {
    "draw": {
        "two momenta": ([("[0.0, 0.5, 0.9]", "[0.0, 0.9]")], "momentum was drawn as"),
        "batches by tens": ([("[16, 32, 64, 128]", "[10, 100]")], "batch was drawn as"),
        "not from the generator": ([(check.LR, "10 ** np.random.default_rng().uniform(-3, 0)")], "draws other"),
    },
    "Asha": {
        "a new setting": ([("trial, self.settings[trial], ", "trial, self.draw(), ")], check.ADVICE[check.KEEPS]),
        "from the top": ([("[-1], self.rungs[0]", "[-1], self.rungs[-1]")], check.ADVICE[check.CLIMBS]),
        "waits for the rung": (
            [
                (
                    LOOP,
                    "if self.eta ** (len(self.rungs) - 1) <= len(self.settings) > len(self.scores[0]):\n"
                    f"            return None\n        {LOOP}",
                )
            ],
            "`ask` returned None",
        ),
        "rounds up": ([(GOOD, "-(-len(scores) // self.eta)")], check.ADVICE[check.BEST]),
        "at random": ([("range(len(self.rungs) - 1)", "range(0)")], check.ADVICE[check.SOON]),
    },
}
