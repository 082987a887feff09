"""Right answers to the exercises of 08c beside the solutions, and wrong ones beside the known mistakes."""

RIGHT = {
    "fit_and_test": {
        "with weights": """
            def fit_and_test(message_bytes, seconds, held_out):
                used = np.arange(len(seconds)) != held_out
                line = np.polyfit(message_bytes[used], seconds[used], 1, w=1 / seconds[used])
                error = np.polyval(line, message_bytes[held_out]) / seconds[held_out] - 1
                return [line[1], line[0], error]
            """,
        "by hand": """
            def fit_and_test(message_bytes, seconds, held_out):
                a = b = c = d = e = 0
                for i, (n, t) in enumerate(zip(message_bytes, seconds)):
                    if i != held_out:
                        a, b, c = a + 1 / t**2, b + n / t**2, c + n**2 / t**2
                        d, e = d + 1 / t, e + n / t
                alpha, beta = (d * c - e * b) / (a * c - b * b), (a * e - b * d) / (a * c - b * b)
                return alpha, beta, (alpha + beta * message_bytes[held_out]) / seconds[held_out] - 1
            """,
    },
    "overlapped_step": {
        "message after message": """
            def overlapped_step(forward_s, backward_s, message_s, messages):
                end = forward_s
                for j in range(1, messages + 1):
                    end = max(end, forward_s + backward_s * j / messages) + message_s
                return end
            """
    },
    "efficiency_range": {
        "with numpy": """
            def efficiency_range(computing_s, messages_s, step_s, late_s=0.0):
                worst_s = computing_s + late_s + 3 * messages_s
                return computing_s / np.array([worst_s, step_s, max(messages_s, computing_s)])
            """,
        "relative to computing": """
            def efficiency_range(computing_s, messages_s, step_s, late_s=0.0):
                ratio = messages_s / computing_s
                return [1 / (1 + 3 * ratio + late_s / computing_s), computing_s / step_s, 1 / max(1, ratio)]
            """,
        "the shorter efficiency": """
            def efficiency_range(computing_s, messages_s, step_s, late_s=0.0):
                best = min(1.0, computing_s / messages_s)
                return (computing_s / sum([computing_s, late_s, *[messages_s] * 3]), computing_s / step_s, best)
            """,
        "one after the other": """
            def efficiency_range(computing_s, messages_s, step_s, late_s=0.0):
                shares = []
                for seconds in (computing_s + 3 * messages_s + late_s, step_s, computing_s):
                    shares.append(computing_s / seconds)
                if messages_s > computing_s:
                    shares[-1] = computing_s / messages_s
                return shares
            """,
        "what is lost": """
            def efficiency_range(computing_s, messages_s, step_s, late_s=0.0):
                def efficiency(lost_s):
                    return 1 - lost_s / (computing_s + lost_s)
                lost = 3 * messages_s + late_s, step_s - computing_s, max(0.0, messages_s - computing_s)
                return tuple(efficiency(each) for each in lost)
            """,
    },
}
WRONG = {
    "efficiency_range": {
        "best first": (
            [("computing_s / worst_s, ", ""), ("/ best_s", "/ best_s, computing_s / worst_s")],
            "with computing of 1 s",
        )
    },
    "fit_and_test": {
        "logarithms": (
            [
                ("np.column_stack([1 / t, n / t])", "np.column_stack([np.ones(len(t)), np.log(n)])"),
                ("np.linalg.lstsq(rows, np.ones(len(t)))[0]", "np.exp(np.linalg.lstsq(rows, np.log(t))[0])"),
            ],
            "in µs for alpha, it gives",
        ),
        "nothing returned": ([("return ", "")], "alpha_s, beta_s_per_byte and the error"),
    },
    "overlapped_step": {
        "the sum of both": ([("max(keeps_up_s, busy_s)", "keeps_up_s + busy_s")], "it gives 5.75 where 3.25 is right")
    },
}
